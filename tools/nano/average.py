"""Average two nanos: ``python tools/nano/average.py --model DIR --start DIR --share 0.85``.

Between a model and the one it went on from lies one that tells stories better than either
[arXiv:2109.01903]. The weights in ``--model`` are replaced.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file, save_file

NAME = "model.safetensors"


def average(model: Path, start: Path, *, share: float) -> None:
    """Move the weights in ``model`` towards those in ``start``.

    Args:
        model: The model that went on; its file is replaced.
        start: What it went on from.
        share: Of the first, 0 to 1.
    """
    own, before = load_file(model / NAME), load_file(start / NAME)
    mixed = {name: before[name].lerp(own[name], share) for name in own}
    save_file(mixed, model / NAME)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--start", required=True, type=Path)
    parser.add_argument("--share", type=float, default=0.85)
    arguments = parser.parse_args()
    average(arguments.model, arguments.start, share=arguments.share)


if __name__ == "__main__":
    main()
