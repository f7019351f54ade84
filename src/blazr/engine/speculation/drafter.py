"""What proposes drafts."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from blazr.engine.sequence import Sequence


class Draft(NamedTuple):
    """Tokens that may follow a sequence.

    Args:
        token_ids: At least one.
        kind: Drafts of one kind are expected to be kept equally often.
    """

    token_ids: tuple[int, ...]
    kind: str


class Drafter(Protocol):
    """Guesses what follows a sequence; only the engine's thread uses it."""

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        """A guess, or None.

        Args:
            sequence: A running one that decodes.
            most: Tokens at most, at least 1.
        """

    def forget(self, sequence: Sequence) -> None:
        """A sequence has finished."""
