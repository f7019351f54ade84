"""What proposes drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from blazr.engine.sequence import Sequence

MANY = 1 << 30  # more than there are drafts of one sequence

Compute = Callable[[Mapping[Sequence, int]], dict[Sequence, tuple[int, ...]]]


class Draft(NamedTuple):
    """Tokens that may follow a sequence.

    Args:
        token_ids: At least one; none where they are computed once it is known how many are wanted.
        kind: Drafts of one kind are expected to be kept equally often.
        later: How many can be computed.
        num_first: So many of the first are of that kind, the others of `kind_behind`.
        kind_behind: The others' kind.
    """

    token_ids: tuple[int, ...]
    kind: str
    later: int = 0
    num_first: int = MANY
    kind_behind: str = ""

    @property
    def most(self) -> int:
        """How many tokens there are or can be."""
        return len(self.token_ids) or self.later


class Drafter(ABC):
    """Guesses what follows a sequence; only the engine's thread uses it."""

    @abstractmethod
    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        """A guess, or None.

        Args:
            sequence: A running one that decodes.
            most: Tokens at most, at least 1.
        """

    def forget(self, sequence: Sequence) -> None:  # noqa: B027  (most keep nothing)
        """A sequence has finished."""


class ComputingDrafter(Drafter):
    """Guesses that take time; only as many are computed as are wanted."""

    def prepare(self, sequences: Collection[Sequence]) -> Collection[Sequence]:
        """Get ready for `compute`, in about the time of a step.

        Args:
            sequences: Of which drafts are wanted.

        Returns:
            Those of which they can be computed now.
        """
        return sequences

    @abstractmethod
    def compute(self, counts: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        """Tokens that may follow each of the sequences, as many of each as it says."""


def count_equal(these: Iterable[int], those: Iterable[int]) -> int:
    """How many of the first are equal, one by one."""
    count = 0
    for one, other in zip(these, those, strict=False):
        if one != other:
            break
        count += 1
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What drafters are made of.

    Args:
        grid: Tokens of a page, and of a block of a prefix.
        compute: Runs the model's own module for multi-token prediction.
        draft_model: Lets a small model guess, where one is loaded.
    """

    grid: int
    compute: Compute
    draft_model: ComputingDrafter | None = None
