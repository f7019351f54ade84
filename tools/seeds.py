"""Run the tests under each instruction set and with several seeds; go on where a run was ended.

Run: python tools/seeds.py [--seeds 0-9] [--kernels avx2,portable] [--out FILE] [TESTS...]

A cell is one run of pytest, with one instruction set and one seed; the file gets a line of JSON for
each that was finished, and none is run twice for the same code and tests. The table has a row for
each instruction set and a column for each seed: how many tests failed, of how many, in how many
minutes.
Below it stand their names. Seed 0 is that of a usual run.

With the first seed all tests run, and it is seen which files draw random numbers; with the others
those files alone, unless ``--all`` is given. That leaves out no test whose numbers the seed decides
(`tests/support/drawing.py` says how they are found), but those fail with the first seed alone that
fail by the order of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path

from blazr.nn.kernels.cpu.compiled import isas

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.drawing import draws_by_text  # noqa: E402

# What depends on numbers, for a look at each instruction set.
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
_PASSED = re.compile(r"(\d+) passed")
_COUNTED = re.compile(r"(\d+) (?:passed|failed|error)")
Cell = dict[str, object]


def code() -> str:
    """Which code is tested, and by which tests; documents may change."""
    names = [_git("rev-parse", f"HEAD:{folder}")[:12] for folder in ("src", "tests")]
    is_dirty = _git("status", "--porcelain", "--untracked-files=no", "src", "tests")
    return "-".join([*names, *(["dirty"] if is_dirty else [])])


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def files_of(tests: list[str]) -> list[Path]:
    """The test files that are named, or lie where it is said."""
    paths = [ROOT / test.partition("::")[0] for test in tests]
    found = (path.rglob("test_*.py") if path.is_dir() else [path] for path in paths)
    return sorted({file for files in found for file in files})


def run(kernels: str, seed: int, tests: list[str], options: list[str]) -> Cell:
    """One cell; without a count where there is no result."""
    if not tests:  # pytest without a path would run all there are
        return {"failed": [], "count": 0, "seconds": 0, "drawing": []}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        draws = Path(folder, "draws")
        draws.touch()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.support.drawing", "--all-cases"),
                *("--draws", str(draws), "--seed", str(seed), "--timeout", "900"),
                *(*options, *tests),
            ],
            cwd=ROOT,
            env=os.environ | {"BLAZR_KERNELS": kernels, "PYTHONPATH": _python_path()},  # noqa: TID251
            capture_output=True,
            text=True,
            check=False,
        )
        drawing = sorted(set(draws.read_text().split()))
    failed = sorted(set(_FAILED.findall(done.stdout)))
    if _PASSED.search(done.stdout) is None or (done.returncode and not failed):
        print(done.stdout[-3000:], done.stderr[-2000:], file=sys.stderr)
        return {"failed": [f"(no result: exit {done.returncode})"]}
    if failed:
        print(done.stdout[-20_000:], file=sys.stderr)
    count = sum(int(each) for each in _COUNTED.findall(done.stdout.splitlines()[-1]))
    seconds = round(time.monotonic() - started)
    return {"failed": failed, "count": count, "seconds": seconds, "drawing": drawing}


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # noqa: TID251


def known_cells(out: Path, of: Cell) -> dict[tuple[str, int], Cell]:
    """What a file knows of these tests of this code, by instruction set and seed."""
    is_settled = out.exists() and not str(of["code"]).endswith("-dirty")
    lines = out.read_text("utf-8").splitlines() if is_settled else []
    cells = [json.loads(line) for line in lines]
    return {(each["kernels"], each["seed"]): each for each in cells if of.items() <= each.items()}


def _append(out: Path, cell: Cell) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(cell) + "\n")


def drawing_files(first: Cell, tests: list[str]) -> list[str]:
    """The files whose tests may have another outcome with another seed."""
    seen = first["drawing"]
    assert isinstance(seen, list)
    return [
        name
        for file in files_of(tests)
        if (name := str(file.relative_to(ROOT))) in seen or draws_by_text(file)
    ]


def print_table(cells: dict[tuple[str, int], Cell], seeds: range) -> None:
    """A row for each instruction set; the names of what failed, the most often first."""
    print("failed    " + "".join(f"{f'seed {seed}':>18}" for seed in seeds))
    for kernels in dict.fromkeys(kernels for kernels, _ in cells):
        row = (_cell_text(cells.get((kernels, seed))) for seed in seeds)
        print(f"{kernels:<10}" + "".join(f"{text:>18}" for text in row))
    failures: Counter[str] = Counter()
    for (kernels, _), cell in cells.items():
        failed = cell["failed"]
        assert isinstance(failed, list)
        failures.update(f"{name} [{kernels}]" for name in failed)
    for name, count in failures.most_common():
        print(f"{count:>3} x {name}")


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "not run"
    failed, seconds = cell["failed"], cell.get("seconds")
    if not isinstance(failed, list) or not isinstance(seconds, int):
        return "broken"
    return f"{len(failed)}/{cell['count']} {seconds / 60:.0f} min"


def main() -> int:
    """Print the table; 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0-9", help="the first and the last: 0-9, or one")
    parser.add_argument("--kernels", default=",".join(isas()), help="instruction sets")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "seeds.jsonl")
    parser.add_argument("--all", action="store_true", help="all tests with every seed")
    parser.add_argument("--numeric", action="store_true", help="what depends on numbers")
    parser.add_argument("--pytest", default="", help="options for pytest, such as '-n 4'")
    parser.add_argument("tests", nargs="*", help="files or directories; all of them by default")
    chosen = parser.parse_args()
    tests = chosen.tests or (list(NUMERIC) if chosen.numeric else ["tests"])
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    of: Cell = {"code": code(), "tests": tests}
    cells = known_cells(chosen.out, of)
    for kernels, seed in product(chosen.kernels.split(","), seeds):
        if (kernels, seed) in cells:
            continue
        whole = cells.get((kernels, seeds.start), {})
        selects = not chosen.all and "drawing" in whole
        selected = drawing_files(whole, tests) if selects else tests
        cell = run(kernels, seed, selected, chosen.pytest.split())
        cells[kernels, seed] = cell
        text = _cell_text(cell)
        print(f"{kernels}, seed {seed}: {text}, {len(selected)} paths", file=sys.stderr)
        if "count" in cell:  # else there is no result
            _append(chosen.out, {**of, "kernels": kernels, "seed": seed, **cell})
    wanted = {key: cell for key, cell in cells.items() if key[1] in seeds}
    print_table(wanted, seeds)
    return int(any(cell["failed"] for cell in wanted.values()))


if __name__ == "__main__":
    sys.exit(main())
