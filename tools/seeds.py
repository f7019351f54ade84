"""Run the tests that depend on numbers under each instruction set and with several seeds.

Run: python tools/seeds.py [--seeds 0-9] [--kernels avx2,portable] [TESTS...]

Prints a table: a row for each instruction set, a column for each seed, in it the number of tests
that failed; below it their names. Seed 0 is that of a usual run. A cell takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from blazr.nn.kernels.cpu.compiled import isas

ROOT = Path(__file__).resolve().parent.parent
NUMERIC = (
    "tests/conformance",
    "tests/unit/engine",
    "tests/unit/models",
    "tests/unit/nn",
    *(
        f"tests/integration/test_{name}.py"
        for name in (
            *("engine_laws", "exactness", "fallback", "fast_forward", "gguf", "golden"),
            *("prefix_reuse", "scoring_and_pooling", "structured_output"),
        )
    ),
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
_COUNTED = re.compile(r"(\d+) passed")


def run(kernels: str, seed: int, tests: list[str]) -> tuple[str, list[str]]:
    """One run: what its cell says, and the names of the tests that failed."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--seed", str(seed), "--timeout", "900", *tests],
        cwd=ROOT,
        env=os.environ | {"BLAZR_KERNELS": kernels},  # noqa: TID251  (for another process)
        capture_output=True,
        text=True,
        check=False,
    )
    failed = _FAILED.findall(done.stdout)
    passed = _COUNTED.search(done.stdout)
    took = f"{(time.monotonic() - started) / 60:.0f} min"
    if passed is None or (done.returncode and not failed):
        print(done.stdout[-3000:], done.stderr[-2000:], file=sys.stderr)
        return "broken", [f"(no result: exit {done.returncode})"]
    if failed:
        print(done.stdout[-20_000:], file=sys.stderr)
    print(f"{kernels}, seed {seed}: {len(failed)} of {passed[1]} failed, {took}", file=sys.stderr)
    return str(len(failed)), failed


def main() -> int:
    """Print the table; 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0-9", help="the first and the last: 0-9, or one")
    parser.add_argument("--kernels", default=",".join(isas()), help="instruction sets")
    parser.add_argument("tests", nargs="*", default=list(NUMERIC))
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    failures: Counter[str] = Counter()
    rows = []
    for kernels in chosen.kernels.split(","):
        cells = []
        for seed in seeds:
            cell, failed = run(kernels, seed, chosen.tests)
            cells.append(cell)
            failures.update(f"{name} [{kernels}]" for name in failed)
        rows.append((kernels, cells))
    print("failed    " + "".join(f"{f'seed {seed}':>9}" for seed in seeds))
    for kernels, cells in rows:
        print(f"{kernels:<10}" + "".join(f"{cell:>9}" for cell in cells))
    for name, count in failures.most_common():
        print(f"{count:>3} x {name}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
