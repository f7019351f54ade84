"""Change one operator, number or word of the code at a time, and count which changes tests notice.

Run: python tools/mutation.py [--sample 80] [--seed 0] [--seconds N] [--again]

mutmut makes the changed functions ("mutants") and runs for each the tests that call it;
`[tool.mutmut]` in pyproject.toml says of which files, with which tests. All of them would take
many hours: of each module a random sample is tried, which a larger `--sample` of the same seed
contains. Results are kept in `mutants`, and a run that was ended goes on. The table tells how many
of the sample were noticed, by a test or because it took too long, with Wilson's interval of 95 %;
below it are the mutants that no test noticed, each to be shown by `mutmut show NAME`. The exit
status is 1 if fewer than 85 % of all were noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES: Mapping[str, tuple[str, ...]] = {
    "scheduler": ("engine/scheduler",),
    "cache manager": ("engine/cache/manager",),
    "prefix trie": ("engine/cache/prefix",),
    "sampler": ("engine/sampling/sampler", "engine/sampling/steps"),
    "stream splitter": ("text/splitter", "text/stop"),
    "GGUF reader": ("core/gguf_header", "models/checkpoint/gguf"),
    "safetensors reader": ("models/checkpoint/safetensors",),
    "plan": ("models/loading/plan", "models/loading/storage"),
    "rules": ("models/families/rules",),
}
LEAST = 0.85  # of all that was tried, or the exit status is 1
UNNOTICED = {0: "survived", 33: "no test calls it"}  # by mutmut's exit codes


def results(files: Iterable[str]) -> dict[str, int | None]:
    """The exit code of each mutant of some files, None where it was not tried."""
    found: dict[str, int | None] = {}
    for file in files:
        meta = ROOT / "mutants" / "src" / "blazr" / f"{file}.py.meta"
        found |= json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
    return found


def _mutmut(*words: str, seconds: float | None = None) -> str:
    """Run mutmut; what it printed. When the time is over it is interrupted, and saves."""
    command = [str(Path(sys.executable).with_name("mutmut")), *words]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=20)[0]
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def sample(module: str, size: int, seed: int) -> dict[str, int | None]:
    """So many of a module's mutants, as drawn, with their exit codes."""
    found = results(MODULES[module])
    names = sorted(found)
    random.Random(f"{seed} {module}").shuffle(names)
    return {name: found[name] for name in names[:size]}


def wilson(hits: int, number: int) -> tuple[float, float]:
    """The interval of 95 % of a share, in percent."""
    z, share = 1.96, hits / number
    middle = share + z * z / (2 * number)
    width = z * (share * (1 - share) / number + z * z / (4 * number * number)) ** 0.5
    scale = 100 / (1 + z * z / number)
    return (middle - width) * scale, (middle + width) * scale


def report(size: int, seed: int) -> float:
    """Print the table, and what no test noticed; the share that was."""
    print("| | mutants | tried | noticed | | 95 % |\n|---|---:|---:|---:|---:|---:|")
    unnoticed: list[str] = []
    num_tried = 0
    for module, files in MODULES.items():
        tried = {k: code for k, code in sample(module, size, seed).items() if code is not None}
        left = [f"{UNNOTICED[code]}: {k}" for k, code in tried.items() if code in UNNOTICED]
        hits = len(tried) - len(left)
        cells = f"{len(results(files))} | {len(tried)} | {hits}"
        if tried:
            low, high = wilson(hits, len(tried))
            cells += f" | {hits / len(tried):.0%} | {low:.0f} to {high:.0f} %"
        print(f"| {module} | {cells} |")
        unnoticed += left
        num_tried += len(tried)
    print(*sorted(unnoticed), sep="\n")
    return 1 - len(unnoticed) / max(num_tried, 1)


def main() -> int:
    """Try what is left of the sample, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=80, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--seconds", type=float, help="end after so long; run again to go on")
    parser.add_argument("--module", choices=MODULES, action="append", help="try these only")
    parser.add_argument("--again", action="store_true", help="try again what survived")
    options = parser.parse_args()
    if not (ROOT / "mutants" / "mutmut-stats.json").exists():
        _mutmut("run", "nothing")  # makes the mutants, and finds out which tests call what
    end = time.monotonic() + (options.seconds or float("inf"))
    for module in options.module or MODULES:
        wanted = [
            name
            for name, code in sample(module, options.sample, options.seed).items()
            if code is None or (options.again and code in UNNOTICED)
        ]
        left_s = end - time.monotonic()
        if wanted and left_s > 0:
            print(f"{module}: {len(wanted)} mutants", flush=True)
            limit_s = left_s if options.seconds else None
            _mutmut("run", "--max-children", "1", *wanted, seconds=limit_s)
    return 0 if report(options.sample, options.seed) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
