"""Which pages each running sequence has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

import numpy as np

_STAMPS = count()


class BlockTables:
    """A row of page ids for each run slot, and when it last changed.

    What is behind a sequence's last page is left over from others.

    Attributes:
        rows: (run slots, blocks), int64.
        stamps: By run slot, a number that no other content of a row has had in this process.

    Args:
        num_slots: Run slots.
        num_blocks: Most pages a sequence may have.
    """

    def __init__(self, num_slots: int, num_blocks: int) -> None:
        self.rows = np.zeros((num_slots, num_blocks), np.int64)
        self.stamps = list(islice(_STAMPS, num_slots))

    def write(self, slot: int, first: int, pages: Sequence[int]) -> None:
        """Hold these pages from the ``first``-th on."""
        self.rows[slot, first : first + len(pages)] = pages
        self.stamps[slot] = next(_STAMPS)
