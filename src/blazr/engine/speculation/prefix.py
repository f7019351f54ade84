"""Drafts from other replies: what followed where the prefix trie knows the same text."""

from __future__ import annotations

from array import array

from typing_extensions import override

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Draft, Drafter

MOST_CHILDREN = 32  # where more texts go on from a block, finding one costs more than it brings


class PrefixDrafter(Drafter):
    """Of the texts that begin like a sequence, proposes how the latest one goes on.

    Only texts of the same salt are looked at, as for reuse.

    Args:
        grid: Tokens in a block of the trie.
    """

    def __init__(self, grid: int) -> None:
        self._grid = grid

    @override
    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        node = sequence.node
        begun = sequence.tokens[sequence.published * self._grid :]
        drafts = array("i")
        while node is not None and len(drafts) < most and len(node.children) <= MOST_CHILDREN:
            beginning = begun.tobytes()
            known = [each for each in node.children.values() if each.key.startswith(beginning)]
            node = max(known, key=lambda each: each.used, default=None)
            if node is not None:
                # behind its tokens, a key may say what stands for some of them
                tokens = array("i", node.key[: self._grid * begun.itemsize])
                drafts += tokens[len(begun) :]
            begun = array("i")
        return Draft(tuple(drafts[:most]), "prefix") if drafts else None
