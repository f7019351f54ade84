"""A block of tokens whose entries are in memory: a node of the prefix trie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

NO_PAGE = -1

StateKind = Literal["anchor", "parted", "end", "interval", "geometric"]
"""Why a recurrent state is kept: a place that the request named; where two prompts parted; the end
of what was computed; a step of a long prompt; a distance from the end that is a power of two."""


@dataclass(eq=False, slots=True)
class Node:
    """One block of tokens, after its parent's.

    Args:
        parent: The block before; None for a root.
        key: The block's token ids as bytes.
        page: Its page, or NO_PAGE for models without pages.
        depth: Blocks from the root to here, this one included.
        state: Slot of the recurrent state after this block, if one is kept.
        state_kind: Why it is kept.
        children: Next blocks by key.
        locks: Running sequences whose prefix this is; an ancestor has at least as many.
        used: When it was last matched or written; higher is later.
        state_used: When its state was last kept or resumed from.
        state_uses: How many sequences have gone on from its state.
        base: What evicted items were worth when it was last matched or written.
        state_base: The same for its state.
        is_alive: Whether it is still in the trie.
        scores: Log-probabilities of the block's tokens, as `blazr.engine.scores` packs them, and of
            ``next_id`` in one more row.
        next_id: A token that followed the block in a scored prompt, or -1.
        name: Hash of all that decides its content, or empty: see `blazr.engine.cache.disk`.
        known_name: Under which others were told of it, or empty: see `blazr.engine.cache.known`.
    """

    parent: Node | None
    key: bytes
    page: int
    depth: int
    state: int | None = None
    state_kind: StateKind = "end"
    children: dict[bytes, Node] = field(default_factory=dict)
    locks: int = 0
    used: int = 0
    state_used: int = 0
    state_uses: int = 0
    base: float = 0.0
    state_base: float = 0.0
    is_alive: bool = True
    scores: NDArray[np.float32] | None = None
    next_id: int = -1
    name: bytes = b""
    known_name: bytes = b""

    def to_root(self) -> Iterator[Node]:
        """Yield this block, the one before it, and so on; the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def ancestor(self, depth: int) -> Node:
        """The block on the way to this one that is so many blocks from the root."""
        return next(node for node in self.to_root() if node.depth <= depth)
