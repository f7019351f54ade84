"""Run many seeds: ``python -m tests.simulation --seeds 5000``, or one again: ``--seed 7``."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from tests.simulation.faults import parse
from tests.simulation.run import run_seed


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the seeds asked for, and say what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone, with its trace")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument(
        "--fault",
        default=os.environ.get("BLAZR_FAULT"),  # noqa: TID251  (of the tests, not of blazr)
        help="faults instead of drawn ones, as in forward:step=7,alloc:n=3",
    )
    given = parser.parse_args()
    faults = None if given.fault is None else parse(given.fault)
    if given.seed is not None:
        seeds = range(given.seed, given.seed + 1)
    else:
        seeds = range(given.first, given.first + given.seeds)
    total: Counter[str] = Counter()
    failed = []
    with ProcessPoolExecutor(given.workers) as pool:
        for each in as_completed(pool.submit(partial(run_seed, faults), seed) for seed in seeds):
            seed, trace, ends, failure = each.result()
            total += ends
            if failure:
                failed.append(seed)
                _say(f"seed {seed}: {failure}")
            elif given.seed is not None:
                _say(f"seed {seed}: trace {trace}")
    counts = ", ".join(f"{name} {count}" for name, count in sorted(total.items()))
    _say(f"{len(seeds)} seeds, {len(failed)} failed; {counts}")
    if failed:
        _say(f"failed: {' '.join(map(str, sorted(failed)))}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
