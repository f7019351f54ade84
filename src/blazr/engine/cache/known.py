"""Tells others which prefixes are in memory: those that a prompt could go on from.

Of a model with recurrent layers that is no more than what lies before a kept state: keys and values
behind the deepest one save nothing, because the state would have to be computed again in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import takewhile
from typing import NamedTuple

from blazr.engine.block import Node

NAME_BYTES = 16


class BlocksStored(NamedTuple):
    """Blocks that can be gone on from now.

    Args:
        names: One behind the other.
        parent: The name of the block before the first; None where a prompt begins with that.
    """

    names: tuple[bytes, ...]
    parent: bytes | None


class BlocksRemoved(NamedTuple):
    """Blocks that cannot be gone on from any more."""

    names: tuple[bytes, ...]


class AllRemoved(NamedTuple):
    """Nothing is known any more: the engine begins afresh."""


BlockEvent = BlocksStored | BlocksRemoved | AllRemoved
Listener = Callable[[BlockEvent], None]


def block_name(before: bytes, key: bytes) -> bytes:
    """The name of a block, which all that is before it decides, too: keyed BLAKE2b of 16 bytes.

    Args:
        before: The name of the block before it; of a prompt's first one `root_name`.
        key: Its token ids, four bytes each, the lowest first.
    """
    return blake2b(key, key=before, digest_size=NAME_BYTES).digest()


def root_name(salt: bytes) -> bytes:
    """What is before the first block of a prompt with a salt."""
    return blake2b(salt, digest_size=NAME_BYTES).digest()


class KnownBlocks:
    """Watches a trie for those who listen.

    Args:
        has_states: Whether going on needs a recurrent state.
    """

    def __init__(self, *, has_states: bool) -> None:
        self._has_states = has_states
        self._listeners: list[Listener] = []

    def join(self, listener: Listener, nodes: Iterator[Node]) -> None:
        """Tell a listener all that is known, and what changes from now on.

        Args:
            listener: Must not block.
            nodes: Every node of the trie, parents before children.
        """
        if self._listeners:
            for node in nodes:
                if node.known_name:
                    listener(BlocksStored((node.known_name,), _name_before(node)))
            self._listeners.append(listener)
            return
        self._listeners = [listener]
        found = list(nodes)
        for node in found:
            node.known_name = b""  # from when somebody listened last
        for node in found:
            if self._is_known(node):
                self.add(node)

    def leave(self, listener: Listener) -> None:
        """Tell a listener nothing any more."""
        self._listeners = [each for each in self._listeners if each is not listener]

    def add(self, node: Node) -> None:
        """A node can be gone on from now, and with it what is before it."""
        if not self._listeners:
            return
        unknown = takewhile(lambda each: not each.known_name, node.to_root())
        found = [each for each in unknown if each.parent is not None]
        if not found:
            return
        found.reverse()
        for each in found:
            assert each.parent is not None
            before = each.parent.known_name or root_name(each.parent.key)
            each.known_name = block_name(before, each.key)
        names = tuple(each.known_name for each in found)
        self._tell(BlocksStored(names, _name_before(found[0])))

    def drop(self, node: Node) -> None:
        """A node has lost its state, or is gone, and with it what only led there."""
        if not self._listeners:
            return
        names = []
        for at in node.to_root():
            if not at.known_name or self._is_known(at):
                break
            names.append(at.known_name)
            at.known_name = b""
        if names:
            self._tell(BlocksRemoved(tuple(names)))

    def _is_known(self, node: Node) -> bool:
        if not self._has_states or not node.is_alive:
            return node.is_alive
        return node.state is not None or any(x.known_name for x in node.children.values())

    def _tell(self, event: BlockEvent) -> None:
        for listener in self._listeners:
            listener(event)


def _name_before(node: Node) -> bytes | None:
    assert node.parent is not None
    return node.parent.known_name or None
