"""Compare the replies of a network under many circumstances with those it gives alone.

Run: python tools/invariance.py [--comparisons 10000] [--seed 0] [--kernels avx2] [--kind TEXT]

A comparison is one greedy reply: its tokens, and every bit of the logits that they were chosen
from. The table has a row for each circumstance, and a column for each instruction set and dtype:
how many replies were compared, and how many of them differed. Every kind of layer and of packed
weight is tried in turn, with other prompts in each round, until there are as many comparisons
for each column as were asked for. The exit status is 1 if any reply differed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path

import torch

from blazr.nn.kernels.cpu import compiled

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.invariance import CIRCUMSTANCES, Trial, differences
from tests.support.kinds import KINDS, STORED

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Column:
    """What was compared with one instruction set and dtype.

    Attributes:
        compared: Replies compared, by circumstance.
        differed: Replies that differed, by circumstance.
        places: Where replies differed.
    """

    compared: Counter[str] = field(default_factory=Counter)
    differed: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)


def trials(kinds: list[str], dtype: torch.dtype, seed: int) -> Iterator[tuple[str, Trial]]:
    """Trials of each kind in turn, without an end."""
    for number in count(seed):
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                model = KINDS[kind](dtype)
                where = f"{kind}, seed {number}"
                yield where, Trial(model, number, Path(folder), STORED.get(kind, {}))


def compare(kinds: list[str], dtype: torch.dtype, wanted: int, seed: int) -> Column:
    """Compare at least so many replies."""
    column = Column()
    for where, trial in trials(kinds, dtype, seed):
        for name in CIRCUMSTANCES:
            num_differing, number = differences(trial, name)
            column.compared[name] += number
            if num_differing:
                column.differed[name] += num_differing
                column.places.append(f"{where}, {name}: {num_differing} of {number} differed")
        if column.compared.total() >= wanted:
            break
    return column


def print_table(columns: dict[str, Column]) -> None:
    """As Markdown; below it, what to run again to see a difference."""
    print(f"| | {' | '.join(columns)} |\n|---{'|---:' * len(columns)}|")
    for name in CIRCUMSTANCES:
        cells = (f"{each.differed[name]} of {each.compared[name]:,}" for each in columns.values())
        print(f"| {name} | {' | '.join(cells)} |")
    totals = [f"{each.differed.total()} of {each.compared.total():,}" for each in columns.values()]
    print(f"| **all** | {' | '.join(totals)} |")
    for title, column in columns.items():
        for place in column.places:
            print(f"{title}, {place}")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=10_000, help="for each column")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--kernels", default=",".join(compiled.isas()), help="instruction sets")
    parser.add_argument("--kind", default="", help="only kinds of networks with this in their name")
    chosen = parser.parse_args()
    kinds = [kind for kind in KINDS if chosen.kind in kind]
    if not kinds:
        parser.error(f"no kind has {chosen.kind!r} in its name; there are {', '.join(KINDS)}")
    columns: dict[str, Column] = {}
    for isa, (name, dtype) in product(chosen.kernels.split(","), _DTYPES.items()):
        if not compiled.use(isa):
            parser.error(f"there is no instruction set {isa!r} here; there are {compiled.isas()}")
        columns[f"{isa}, {name}"] = compare(kinds, dtype, chosen.comparisons, chosen.seed)
    print_table(columns)
    return any(column.places for column in columns.values())


if __name__ == "__main__":
    sys.exit(main())
