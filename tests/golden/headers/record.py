"""Writes what tensors a model of each config here has: run it with transformers installed.

    python tests/golden/headers/record.py [NAME ...]

Each JSON file holds a published config; its ``tensors`` are replaced by what transformers' own
class makes of it on the meta device, in the names that files have.
"""

from __future__ import annotations

import json
import math
import re
import sys
from copy import deepcopy
from pathlib import Path

# The library spells these otherwise than the published file.
SPELLINGS = {"kimi_linear": (r"\.block_sparse_moe\.((?:gate|up|down)_proj)", r".mlp.\1")}
HERE = Path(__file__).parent
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def header(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Shapes by name."""
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    transformers.logging.set_verbosity_error()
    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(deepcopy(config))
    kind = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = kind(made)
    tied = set(getattr(model, "all_tied_weights_keys", {}) or {})
    state = {name: value for name, value in model.state_dict().items() if name not in tied}
    theirs, ours = SPELLINGS.get(config["model_type"], ("", ""))
    written = revert_weight_conversion(model, state)
    return {re.sub(theirs, ours, name): tuple(value.shape) for name, value in written.items()}


def compress(shapes: dict[str, tuple[int, ...]]) -> list[list[object]]:
    """Numbered names as ``[pattern, shape, numbers of the first place, of the second, ...]``.

    Names whose numbers do not combine freely stay as they are.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        numbers = tuple(int(number) for number in _NUMBER.findall(name))
        groups.setdefault((_NUMBER.sub("#", name), shape), []).append(numbers)
    rows: list[list[object]] = []
    for (pattern, shape), numbers in sorted(groups.items()):
        places = [sorted(set(place)) for place in zip(*numbers, strict=True)]
        if math.prod(map(len, places)) == len(numbers):
            rows.append([pattern, list(shape), *map(_ranges, places)])
        else:
            rows += [[_fill(pattern, each), list(shape)] for each in numbers]
    return rows


def _ranges(numbers: list[int]) -> str:
    """``"0-3,5"``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{low}-{high}" if low != high else str(low) for low, high in parts)


def _fill(pattern: str, numbers: tuple[int, ...]) -> str:
    pieces = pattern.split("#")
    ends = zip(numbers, pieces[1:], strict=True)
    return pieces[0] + "".join(f"{number}{piece}" for number, piece in ends)


def write(path: Path, config: dict[str, object], rows: list[list[object]]) -> None:
    """One line for each key and each tensor."""
    keys = ",\n".join(
        f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in config.items()
    )
    tensors = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    path.write_text(f'{{\n  "config": {{\n{keys}\n  }},\n  "tensors": [\n{tensors}\n  ]\n}}\n')


def main(names: list[str]) -> None:
    """Record these, or all."""
    for path in sorted(HERE.glob("*.json")):
        if not names or path.stem in names:
            config = json.loads(path.read_text())["config"]
            write(path, config, compress(header(config)))


if __name__ == "__main__":
    main(sys.argv[1:])
