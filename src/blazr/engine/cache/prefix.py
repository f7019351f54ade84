"""Which prefixes are in memory: a trie of blocks, with a recurrent state at some of them."""

from __future__ import annotations

import heapq
import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from blazr.engine.block import NO_PAGE, Node
from blazr.engine.cache.arena import Arena, ItemClass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Match:
    """What the trie knows of a prompt.

    Args:
        path: Nodes whose blocks match, from the first on.
        usable: How many of them can be resumed from: the deepest with all that is needed.
    """

    path: tuple[Node, ...]
    usable: int


class PrefixTrie:
    """Prefixes by blocks of ``grid`` tokens, one root per salt.

    Args:
        arena: Owner of pages and states.
        grid: Tokens in a block.
        has_states: Whether resuming needs a recurrent state.
        max_nodes: Bound for models whose nodes hold no page.
    """

    def __init__(
        self, arena: Arena, *, grid: int, has_states: bool, max_nodes: int = 65_536
    ) -> None:
        self.arena = arena
        self.grid = grid
        self.has_states = has_states
        self.max_nodes = max_nodes
        self.num_nodes = 0
        self.evictions = [0, 0]
        self.num_idle_pages = 0  # pages of nodes that no running sequence has locked
        self._roots: dict[bytes, Node] = {}
        self._clock = count(1)
        self._heaps: tuple[list[tuple[int, int, Node]], ...] = ([], [])

    def root(self, salt: str) -> Node:
        """Where the prefixes of this salt begin."""
        key = _salt_key(salt)
        if key not in self._roots:
            self._roots[key] = Node(None, key, NO_PAGE, 0)
        return self._roots[key]

    def match(self, tokens: array[int], salt: str) -> Match:
        """The longest known prefix. Never the whole prompt: one token is always computed."""
        node = self._roots.get(_salt_key(salt))
        path = []
        usable = 0
        for block in range((len(tokens) - 1) // self.grid if node else 0):
            assert node is not None
            node = node.children.get(self.block_key(tokens, block))
            if node is None:
                break
            path.append(node)
            self._touch(node)
            if not self.has_states or node.state is not None:
                usable = len(path)
        return Match(tuple(path), usable)

    def block_key(self, tokens: array[int], block: int) -> bytes:
        """Key of one block of a prompt."""
        return tokens[block * self.grid : (block + 1) * self.grid].tobytes()

    def insert(self, parent: Node, key: bytes, page: int) -> Node:
        """Publish a block. Its page is never written again; if it is known, the known one stays."""
        node = parent.children.get(key)
        if node is None:
            node = Node(parent, key, page, parent.depth + 1)
            parent.children[key] = node
            self.num_nodes += 1
            if page != NO_PAGE:
                self.arena.share(ItemClass.PAGE, page)
                self.num_idle_pages += 1
        self._touch(node)
        return node

    def put_state(self, node: Node, slot: int) -> None:
        """Keep a recurrent state at this block, unless it has one."""
        if node.state is None:
            node.state = slot
            self.arena.share(ItemClass.STATE, slot)
            self._touch(node)

    def lock(self, node: Node) -> None:
        """Protect the path to this node from eviction."""
        at: Node | None = node
        while at is not None:
            self._lock_one(at)
            at = at.parent

    def lock_child(self, node: Node) -> None:
        """Move a lock one block deeper: the path to the parent is locked already."""
        self._lock_one(node)

    def unlock(self, node: Node) -> None:
        """Undo one lock of the path."""
        at: Node | None = node
        while at is not None:
            at.locks -= 1
            if not at.locks and at.parent is not None:
                self.num_idle_pages += at.page != NO_PAGE
                self._offer(at)
            self._drop_empty_root(at)
            at = at.parent

    def evict(self, cls: ItemClass) -> bool:
        """Drop the least recently used state, or leaf with its page. False if there is none.

        States go from any unlocked node; a node goes only when nothing follows it.
        """
        heap = self._heaps[cls]
        while heap:
            used, _, node = heapq.heappop(heap)
            if not node.is_alive or node.used != used or node.locks:
                continue
            if cls is ItemClass.STATE and node.state is not None:
                self._drop_state(node)
            elif cls is ItemClass.PAGE and not node.children:
                self._remove(node)
            else:
                continue
            self.evictions[cls] += 1
            logger.debug("evict the %s of a prefix of %d blocks", cls.name.lower(), node.depth)
            return True
        return False

    def forget(self, node: Node | None) -> None:
        """Take a node, or all, and everything after it out, where no other sequence uses it."""
        if node is None:
            for root in list(self._roots.values()):
                self.forget(root)
            return
        for child in list(node.children.values()):
            self.forget(child)
        if node.parent is not None and node.is_alive and not node.children and not node.locks:
            self._remove(node)

    def trim(self) -> None:
        """Keep the number of nodes in bounds, for models whose nodes hold no page."""
        while self.num_nodes > self.max_nodes and self.evict(ItemClass.PAGE):
            pass

    def nodes(self) -> Iterator[Node]:
        """Every block, parents before children."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _lock_one(self, node: Node) -> None:
        if not node.locks and node.page != NO_PAGE:
            self.num_idle_pages -= 1
        node.locks += 1

    def _touch(self, node: Node) -> None:
        node.used = next(self._clock)
        if not node.locks:
            self._offer(node)

    def _offer(self, node: Node) -> None:
        """Make a node a candidate for eviction; stale entries are skipped when they surface."""
        entry = (node.used, id(node), node)
        if not node.children:
            heapq.heappush(self._heaps[ItemClass.PAGE], entry)
        if node.state is not None:
            heapq.heappush(self._heaps[ItemClass.STATE], entry)
        for heap in self._heaps:
            if len(heap) > 4 * self.num_nodes + 1024:
                heap[:] = {
                    e[1]: e for e in heap if e[2].is_alive and e[0] == e[2].used and not e[2].locks
                }.values()
                heapq.heapify(heap)

    def _drop_state(self, node: Node) -> None:
        assert node.state is not None
        self.arena.release(ItemClass.STATE, node.state)
        node.state = None

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        node.is_alive = False
        self.num_nodes -= 1
        if node.page != NO_PAGE:
            self.num_idle_pages -= 1
            self.arena.release(ItemClass.PAGE, node.page)
        if node.state is not None:
            self._drop_state(node)
        if parent.parent is not None and not parent.locks and not parent.children:
            self._offer(parent)
        self._drop_empty_root(parent)

    def _drop_empty_root(self, node: Node) -> None:
        # clients choose salts, so a root nobody uses must not stay
        if node.parent is None and not node.children and not node.locks:
            self._roots.pop(node.key, None)


def _salt_key(salt: str) -> bytes:
    return salt.encode("utf-8", "surrogatepass")
