"""A block of tokens whose entries are in memory: a node of the prefix trie."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NO_PAGE = -1


@dataclass(eq=False, slots=True)
class Node:
    """One block of tokens, after its parent's.

    Args:
        parent: The block before; None for a root.
        key: The block's token ids as bytes.
        page: Its page, or NO_PAGE for models without pages.
        depth: Blocks from the root to here, this one included.
        state: Slot of the recurrent state after this block, if one is kept.
        children: Next blocks by key.
        locks: Running sequences whose prefix this is; an ancestor has at least as many.
        used: When it was last matched or written; higher is later.
        is_alive: Whether it is still in the trie.
        scores: Log-probabilities of the block's tokens, as `blazr.engine.scores` packs them, and of
            ``next_id`` in one more row.
        next_id: A token that followed the block in a scored prompt, or -1.
    """

    parent: Node | None
    key: bytes
    page: int
    depth: int
    state: int | None = None
    children: dict[bytes, Node] = field(default_factory=dict)
    locks: int = 0
    used: int = 0
    is_alive: bool = True
    scores: NDArray[np.float32] | None = None
    next_id: int = -1
