"""Which prefixes are in memory: a trie of blocks, with a recurrent state at some of them.

What is evicted first is worth least: GreedyDual-Size-Frequency (Cherkasova, "Improving WWW Proxies
Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998). The worth of an item is
the number of tokens that would be computed again without it, times how likely it is to be used and
how often it was, for the memory that it takes. Added is the worth of what had been evicted when it
was last used, so that what is used no more falls behind.
"""

from __future__ import annotations

import heapq
import logging
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf

from blazr.engine.block import NO_PAGE, Node, StateKind
from blazr.engine.cache.arena import Arena, ItemClass
from blazr.engine.cache.known import KnownBlocks, Listener
from blazr.engine.request import PromptEmbeddings

_log = logging.getLogger(__name__)

# How likely it is that a prompt goes on from a state, for states that none has gone on from.
CHANCES: dict[StateKind, float] = {
    "end": 1.0, "parted": 1.0, "anchor": 0.25, "interval": 0.1, "geometric": 0.1,
}  # fmt: skip

_Entry = tuple[float, int, int, Node]  # worth, when the node or its state was used, id, node


@dataclass(frozen=True, slots=True)
class Match:
    """What the trie knows of a prompt.

    Args:
        path: Nodes whose blocks match, from the first on.
        matched: How many of them would do, if a recurrent state were kept after each.
        usable: How many of them can be resumed from: the deepest with all that is needed.
    """

    path: tuple[Node, ...]
    matched: int
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
        self.known = KnownBlocks(has_states=has_states)
        self.num_idle_pages = 0  # pages of nodes that no running sequence has locked
        self._roots: dict[bytes, Node] = {}
        self._clock = count(1)
        self._heaps: tuple[list[_Entry], list[_Entry]] = ([], [])
        self._evicted_worth = 0.0  # of the dearest item that was evicted

    def root(self, salt: str) -> Node:
        """Where the prefixes of this salt begin."""
        key = salt_key(salt)
        if key not in self._roots:
            self._roots[key] = Node(None, key, NO_PAGE, 0)
        return self._roots[key]

    def match(
        self, tokens: array[int], salt: str, embeddings: Sequence[PromptEmbeddings] = ()
    ) -> Match:
        """The longest known prefix. Never the whole prompt: one token is always computed."""
        node = self._roots.get(salt_key(salt))
        path = []
        usable = 0
        for block in range((len(tokens) - 1) // self.grid if node else 0):
            assert node is not None
            node = node.children.get(self.block_key(tokens, block, embeddings))
            if node is None:
                break
            path.append(node)
            self._touch(node)
            if not self.has_states or node.state is not None:
                usable = len(path)
        return Match(tuple(path), len(path), usable)

    def block_key(
        self, tokens: array[int], block: int, embeddings: Sequence[PromptEmbeddings] = ()
    ) -> bytes:
        """Key of one block of a prompt: its tokens, and what stands for them instead.

        Args:
            tokens: The prompt.
            block: Which of its blocks.
            embeddings: What stands for tokens of it; see `Request`.
        """
        first, last = block * self.grid, (block + 1) * self.grid
        key = tokens[first:last].tobytes()
        for each in embeddings:
            if each.start < last and first < each.end:
                key += each.digest + (each.start - first).to_bytes(8, "little", signed=True)
        return key

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
            if not self.has_states:
                self.known.add(node)
        self._touch(node)
        return node

    def put_state(self, node: Node, slot: int, kind: StateKind) -> None:
        """Keep a recurrent state at this block, unless it has one."""
        if node.state is None:
            node.state = slot
            node.state_kind = kind
            self.arena.share(ItemClass.STATE, slot)
            node.state_uses = 0
            self._touch_state(node)
            self.known.add(node)
        elif CHANCES[kind] > CHANCES[node.state_kind]:
            node.state_kind = kind

    def use_state(self, node: Node) -> None:
        """A sequence goes on from this node's state."""
        node.state_uses += 1
        self._touch_state(node)

    def drop_state(self, node: Node) -> None:
        """Keep the state of this block no longer."""
        if node.state is not None:
            self.arena.release(ItemClass.STATE, node.state)
            node.state = None
            self.known.drop(node)

    def state_worth(self, num_tokens: int, kind: StateKind) -> float:
        """What a new state would be worth that saves so many tokens."""
        per_state = self.arena.items_per_superpage[ItemClass.STATE]
        return self._evicted_worth + CHANCES[kind] * num_tokens * per_state

    def saved_tokens(self, node: Node) -> int:
        """Tokens that would be computed again without a node's state."""
        at = node.parent
        # states that are less likely to be used do not count: they go first
        while at is not None and (at.state is None or _chance(at) < _chance(node)):
            at = at.parent
        return self.grid * (node.depth - (at.depth if at is not None else 0))

    def lock(self, node: Node) -> None:
        """Protect the path to this node from eviction."""
        for at in node.to_root():
            self.lock_child(at)

    def lock_child(self, node: Node) -> None:
        """Move a lock one block deeper: the path to the parent is locked already."""
        if not node.locks and node.page != NO_PAGE:
            self.num_idle_pages -= 1
        node.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one lock of the path."""
        for at in node.to_root():
            at.locks -= 1
            if not at.locks and at.parent is not None:
                self.num_idle_pages += at.page != NO_PAGE
                self._offer(at)
            self._drop_empty_root(at)

    def evict(self, *classes: ItemClass, below: float = inf) -> bool:
        """Drop what is worth least: a state, or a leaf with its page.

        States go from any node, unless a running sequence still goes on from them; a node goes only
        when nothing follows it and no sequence runs with it.

        Args:
            classes: What may go.
            below: Only what is worth less.

        Returns:
            Whether there was something.
        """
        found = [
            (entry, item_class)
            for item_class in classes
            if (entry := self._pop_cheapest(item_class))
        ]
        found.sort()
        for entry, item_class in found[1:]:
            heapq.heappush(self._heaps[item_class], entry)
        if not found:
            return False
        entry, item_class = found[0]
        worth, _, _, node = entry
        if worth >= below:
            heapq.heappush(self._heaps[item_class], entry)
            return False
        self._evicted_worth = max(self._evicted_worth, worth)
        if item_class is ItemClass.STATE:
            self.drop_state(node)
            self._offer(node)
        else:
            self._remove(node)
        self.evictions[item_class] += 1
        _log.debug("evict the %s of a prefix of %d blocks", item_class.name.lower(), node.depth)
        return True

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

    def tell(self, listener: Listener) -> None:
        """Tell a listener which blocks a prompt could go on from, and what changes from now on."""
        self.known.join(listener, self.nodes())

    def _pop_cheapest(self, item_class: ItemClass) -> _Entry | None:
        """Take what is worth least, and may be evicted, from its heap."""
        heap = self._heaps[item_class]
        busy: list[_Entry] = []
        found: _Entry | None = None
        while heap and found is None:
            entry = heapq.heappop(heap)
            worth, used, _, node = entry
            if not self._is_candidate(node, used, item_class):
                continue
            now = self._worth(node, item_class)
            if now > worth:  # the state before it has gone since
                heapq.heappush(heap, (now, *entry[1:]))
            elif item_class is ItemClass.STATE and not self._is_idle_state(node):
                busy.append(entry)
            else:
                found = entry
        for entry in busy:
            heapq.heappush(heap, entry)
        return found

    def _is_candidate(self, node: Node, used: int, item_class: ItemClass) -> bool:
        if not node.is_alive:
            return False
        if item_class is ItemClass.STATE:
            return node.state is not None and node.state_used == used
        return node.used == used and not node.children and not node.locks

    def _is_idle_state(self, node: Node) -> bool:
        """Whether no running sequence goes on from a node's state."""
        return node.state is not None and self.arena.is_private(ItemClass.STATE, node.state)

    def _worth(self, node: Node, item_class: ItemClass) -> float:
        per_page, per_state = self.arena.items_per_superpage
        memory = 1 / per_page if item_class is ItemClass.PAGE and per_page else 0.0  # in superpages
        if node.state is not None:
            memory += 1 / per_state
            num_uses = _chance(node) * (1 + node.state_uses)
            return node.state_base + num_uses * self.saved_tokens(node) / memory
        # nothing resumes at a block without the state it needs
        return node.base + (0.0 if self.has_states or not memory else self.grid / memory)

    def _touch(self, node: Node) -> None:
        node.used = next(self._clock)
        node.base = self._evicted_worth
        self._offer(node)

    def _touch_state(self, node: Node) -> None:
        node.state_used = next(self._clock)
        node.state_base = self._evicted_worth
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """Make a node a candidate for eviction; stale entries are skipped when they surface."""
        for item_class in ItemClass:
            heap = self._heaps[item_class]
            used = node.state_used if item_class is ItemClass.STATE else node.used
            if self._is_candidate(node, used, item_class):
                heapq.heappush(heap, (self._worth(node, item_class), used, id(node), node))
            if len(heap) > 4 * self.num_nodes + 1024:
                heap[:] = {
                    entry[2]: entry
                    for entry in heap
                    if self._is_candidate(entry[3], entry[1], item_class)
                }.values()
                heapq.heapify(heap)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        node.is_alive = False
        self.num_nodes -= 1
        if node.page != NO_PAGE:
            self.num_idle_pages -= 1
            self.arena.release(ItemClass.PAGE, node.page)
        self.drop_state(node)
        self.known.drop(node)
        if parent.parent is not None and not parent.locks and not parent.children:
            self._offer(parent)
        self._drop_empty_root(parent)

    def _drop_empty_root(self, node: Node) -> None:
        # clients choose salts, so a root nobody uses must not stay
        if node.parent is None and not node.children and not node.locks:
            self._roots.pop(node.key, None)


def _chance(node: Node) -> float:
    return 1.0 if node.state_uses else CHANCES[node.state_kind]


def salt_key(salt: str) -> bytes:
    """The key of a root."""
    return salt.encode("utf-8", "surrogatepass")
