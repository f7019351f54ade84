"""``python -m blazr.nn.kernels.build``: compile the CPU kernels in place."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from blazr.nn.kernels.compile import LIBRARY, compile_library


def main() -> int:
    """Build in place, say what came of it."""
    parser = argparse.ArgumentParser(description="Compile blazr's CPU kernels in place.")
    parser.add_argument("--compiler", default="", help="g++, clang++ or a path")
    parser.add_argument("--out", type=Path, default=LIBRARY, help="the library to write")
    parser.add_argument("flags", nargs="*", default=["-O3"], help="after --; for example -O0")
    arguments = parser.parse_args()
    why = compile_library(arguments.out, compiler=arguments.compiler, flags=arguments.flags)
    print(why or f"built {arguments.out}", file=sys.stderr if why else sys.stdout)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
