"""Check an installed wheel: it has its kernels, and the built-in model writes a text.

Run it where blazr was installed from a wheel, away from the source tree:

    python packaging/check_wheel.py
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import blazr
from blazr import LLM, SamplingParams
from blazr.nn.kernels.cpu import compiled


def main() -> int:
    """Print what was found; return 1 where something is missing."""
    print("blazr", importlib.metadata.version("blazr"), "in", Path(blazr.__file__).parent)
    why = compiled.missing()
    if why:
        print(f"the CPU kernels are missing: {why}")
        return 1
    with LLM() as llm:
        text = llm.generate("Once upon a time", SamplingParams(max_tokens=16, temperature=0))[
            0
        ].text
    print(f"kernels: present; text: {text!r}")
    return 0 if text.strip() else 1


if __name__ == "__main__":
    sys.exit(main())
