"""Drafts from the model itself: its module for multi-token prediction guesses, again and again.

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Compute, ComputingDrafter, Draft

MOST_GUESSES = 8  # the module was trained to be right once


class MtpDrafter(ComputingDrafter):
    """Lets the module guess the next token from the last, and from its own guess the one after.

    Args:
        compute: Runs it.
        grid: Tokens of a page.
        kind: What its drafts are called.
    """

    def __init__(self, compute: Compute, grid: int, *, kind: str = "mtp") -> None:
        self._compute = compute
        self._grid = grid
        self._kind = kind

    @override
    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        # what the module remembers of the last token lies on that token's page, which a step takes
        has_page = len(sequence.pages) * self._grid >= len(sequence.tokens)
        return Draft((), self._kind, min(most, MOST_GUESSES)) if has_page else None

    @override
    def compute(self, counts: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        return self._compute(counts)
