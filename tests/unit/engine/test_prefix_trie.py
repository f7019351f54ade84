"""The trie against a list of what it was told: what it finds, what goes first, what it counts.

The oracle keeps texts in a dictionary, and computes the worth of each by the definition whenever it
is asked; it has no links between blocks, no heaps and nothing that could be out of date.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from math import inf

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blazr.engine.block import NO_PAGE, Node, StateKind
from blazr.engine.cache.arena import Arena, ItemClass
from blazr.engine.cache.prefix import CHANCES, PrefixTrie
from blazr.engine.request import PromptEmbeddings
from tests.support.seeds import examples

PAGE, STATE = ItemClass.PAGE, ItemClass.STATE
GRID = 2
Path = tuple[str, ...]  # a salt, and letters: a block each

paths = st.tuples(
    st.sampled_from(["", "salt"]), st.text("ab", min_size=1, max_size=4)
).map(lambda drawn: (drawn[0], *drawn[1]))  # fmt: skip


@dataclass
class Known:
    """A block that was published; times are those of the oracle's clock."""

    used: int
    base: float
    locks: int = 0
    state_kind: StateKind | None = None
    state_used: int = 0
    state_base: float = 0.0
    state_uses: int = 0
    is_busy: bool = False  # a sequence holds its state

    @property
    def chance(self) -> float:
        return 1.0 if self.state_uses or self.state_kind is None else CHANCES[self.state_kind]


class Both:
    """The trie and the oracle, told the same.

    Args:
        per: Pages and states in a superpage; without states, none is needed to resume.
    """

    def __init__(self, per: tuple[int, int] = (4, 2)) -> None:
        self.per = per
        self.arena = Arena(60, items_per_superpage=per, floor=(int(per[0] > 0), int(per[1] > 0)))
        self.trie = PrefixTrie(self.arena, grid=GRID, has_states=per[1] > 0)
        self.known: dict[Path, Known] = {}
        self.clock = 0
        self.dearest = 0.0  # of what was evicted
        self.evicted = [0, 0]
        self.held: list[int] = []

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def touch(self, path: Path) -> None:
        self.known[path].used = self.tick()
        self.known[path].base = self.dearest

    def touch_state(self, path: Path) -> None:
        self.known[path].state_used = self.tick()
        self.known[path].state_base = self.dearest

    def node(self, path: Path) -> Node:
        """Where the trie has a block, found without being noticed."""
        node = self.trie.root(path[0])
        for letter in path[1:]:
            node = node.children[tokens_of(letter).tobytes()]
        return node

    def children(self, path: Path) -> list[Path]:
        return [each for each in self.known if each[:-1] == path]

    def publish(self, path: Path) -> None:
        for end in range(2, len(path) + 1):
            part = path[:end]
            page = self.arena.allocate(PAGE) if self.per[0] else NO_PAGE
            parent = self.node(part[:-1])
            node = self.trie.insert(parent, tokens_of(part[-1]).tobytes(), page)
            assert node.depth == end - 1
            if page != NO_PAGE:
                assert (node.page == page) == (part not in self.known), "the known page stays"
                self.arena.release(PAGE, page)
            self.known.setdefault(part, Known(0, 0.0))
            self.touch(part)

    def match(self, path: Path, more: int) -> None:
        """Ask for a text of these blocks and some tokens of one more."""
        tokens = tokens_of("".join(path[1:])) + tokens_of("a")[:more]
        found = self.trie.match(tokens, path[0])
        length = 0
        most = (len(tokens) - 1) // GRID  # one token is always computed
        while length < most and path[: length + 2] in self.known:
            length += 1
        ways = [path[: end + 1] for end in range(1, length + 1)]
        assert [tokens_of(way[-1]).tobytes() for way in ways] == [n.key for n in found.path]
        usable = [
            end
            for end, way in enumerate(ways, 1)
            if not self.per[1] or self.known[way].state_kind is not None
        ]
        assert found.usable == max(usable, default=0)
        for way in ways:
            self.touch(way)

    def keep_state(self, path: Path, kind: StateKind) -> None:
        known = self.known[path]
        slot = self.arena.allocate(STATE)
        self.trie.put_state(self.node(path), slot, kind)
        self.arena.release(STATE, slot)
        if known.state_kind is None:
            known.state_kind = kind
            known.state_uses = 0
            self.touch_state(path)
        elif CHANCES[kind] > CHANCES[known.state_kind]:
            known.state_kind = kind

    def use_state(self, path: Path) -> None:
        self.trie.use_state(self.node(path))
        self.known[path].state_uses += 1
        self.touch_state(path)

    def hold_state(self, path: Path) -> None:
        """A running sequence goes on from it, or does no more."""
        known, slot = self.known[path], self.node(path).state
        assert slot is not None
        if known.is_busy:
            self.arena.release(STATE, slot)
            self.unlock(path)
        else:
            self.arena.share(STATE, slot)
            self.lock(path)
        known.is_busy = not known.is_busy

    def lock(self, path: Path) -> None:
        self.trie.lock(self.node(path))
        for end in range(2, len(path) + 1):
            self.known[path[:end]].locks += 1

    def unlock(self, path: Path) -> None:
        self.trie.unlock(self.node(path))
        for end in range(2, len(path) + 1):
            self.known[path[:end]].locks -= 1

    def forget(self, path: Path) -> None:
        self.trie.forget(self.node(path))
        for each in sorted(self.known, key=len, reverse=True):
            is_later = each[: len(path)] == path
            if is_later and not self.known[each].locks and not self.children(each):
                del self.known[each]

    def saved(self, path: Path) -> int:
        """Tokens computed again without a block's state, by those that are as likely to be used."""
        known = self.known[path]
        for end in range(len(path) - 1, 1, -1):
            other = self.known[path[:end]]
            if other.state_kind is not None and other.chance >= known.chance:
                return GRID * (len(path) - end)
        return GRID * (len(path) - 1)

    def worth(self, path: Path, cls: ItemClass) -> float:
        known = self.known[path]
        memory = 1 / self.per[PAGE] if cls is PAGE and self.per[PAGE] else 0.0
        if known.state_kind is not None:
            memory += 1 / self.per[STATE]
            saved = known.chance * (1 + known.state_uses) * self.saved(path)
            return known.state_base + saved / memory
        if self.per[STATE] or not memory:
            return known.base
        return known.base + GRID / memory

    def candidates(self, cls: ItemClass) -> list[Path]:
        if cls is STATE:
            return [p for p, k in self.known.items() if k.state_kind is not None and not k.is_busy]
        return [p for p, k in self.known.items() if not k.locks and not self.children(p)]

    def cheapest(self, *classes: ItemClass) -> tuple[float, Path, ItemClass] | None:
        found = [
            (
                self.worth(path, cls),
                self.known[path].state_used if cls is STATE else self.known[path].used,
                path,
                cls,
            )
            for cls in classes
            for path in self.candidates(cls)
        ]
        if not found:
            return None
        worth, _, path, cls = min(found)
        return worth, path, cls

    def evict(self, *classes: ItemClass, below: float = inf) -> bool:
        """Whether something went; the trie has to drop what the oracle says, and nothing else."""
        first = self.cheapest(*classes)
        has_evicted = self.trie.evict(*classes, below=below)
        assert has_evicted == (first is not None and first[0] < below)
        if first is not None and has_evicted:
            worth, path, cls = first
            self.dearest = max(self.dearest, worth)
            self.evicted[cls] += 1
            if cls is STATE:
                self.known[path].state_kind = None
            else:
                del self.known[path]
        self.check()
        return has_evicted

    def check(self) -> None:
        """Both know the same."""
        trie = self.trie
        states = {p: k.state_kind for p, k in self.known.items()}
        assert self.paths() == states
        assert trie.num_nodes == len(self.known)
        assert trie.evictions == self.evicted
        idle = sum(not each.locks for each in self.known.values())
        assert trie.num_idle_pages == (idle if self.per[PAGE] else 0)
        assert self.arena.used(PAGE) == (len(self.known) if self.per[PAGE] else 0)
        assert self.arena.used(STATE) == sum(kind is not None for kind in states.values())
        assert trie.state_worth(3, "anchor") == (
            self.dearest + 3 * CHANCES["anchor"] * self.per[STATE]
        )
        for node in trie.nodes():
            assert node.depth == (node.parent.depth if node.parent else 0) + 1
            assert node.is_alive

    def paths(self) -> dict[Path, StateKind | None]:
        """What the trie knows, by text."""
        found: dict[Path, StateKind | None] = {}
        by_node: dict[Node, Path] = {}
        for node in self.trie.nodes():  # parents come first
            assert node.parent is not None
            letter = chr(array("i", node.key)[0])
            before = by_node.get(node.parent) or (node.parent.key.decode(),)
            by_node[node] = (*before, letter)
            found[by_node[node]] = None if node.state is None else node.state_kind
        return found


def tokens_of(letters: str) -> array[int]:
    """GRID tokens for each."""
    return array("i", [ord(letter) for letter in letters for _ in range(GRID)])


class Game:
    """Moves that keep to what the cache manager does; those that are not possible change nothing.

    Each takes a text and a number.
    """

    def __init__(self, per: tuple[int, int]) -> None:
        self.both = Both(per)
        self.locked: list[Path] = []

    def find(self, number: int, *, with_state: bool = False) -> Path | None:
        """One of the known texts, if there is any."""
        known = self.both.known.items()
        found = sorted(p for p, each in known if not with_state or each.state_kind is not None)
        return found[number % len(found)] if found else None

    def has_later_states(self, path: Path) -> bool:
        """A new state before others makes them worth less, which they are not told."""
        return any(
            each != path and each[: len(path)] == path and known.state_kind is not None
            for each, known in self.both.known.items()
        )

    def publish(self, path: Path, number: int) -> None:
        self.both.publish(path)

    def match(self, path: Path, number: int) -> None:
        self.both.match(path, number % (GRID + 1))

    def keep_state(self, path: Path, number: int) -> None:
        known = self.find(number)
        if known is not None and self.both.per[STATE] and not self.has_later_states(known):
            self.both.keep_state(known, list(CHANCES)[(number + len(path)) % len(CHANCES)])

    def use_state(self, path: Path, number: int) -> None:
        known = self.find(number, with_state=True)
        if known is not None and not self.has_later_states(known):
            self.both.use_state(known)

    def hold_state(self, path: Path, number: int) -> None:
        known = self.find(number, with_state=True)
        if known is not None:
            self.both.hold_state(known)

    def drop_state(self, path: Path, number: int) -> None:
        known = self.find(number, with_state=True)
        if known is None or not self.both.known[known].locks or self.both.known[known].is_busy:
            return
        self.both.trie.drop_state(self.both.node(known))
        self.both.known[known].state_kind = None

    def lock(self, path: Path, number: int) -> None:
        known = self.find(number)
        if known is not None:
            self.both.lock(known)
            self.locked.append(known)

    def unlock(self, path: Path, number: int) -> None:
        if self.locked:
            self.both.unlock(self.locked.pop(number % len(self.locked)))

    def forget(self, path: Path, number: int) -> None:
        known = self.find(number)
        if known is not None:
            self.both.forget(known)

    def evict(self, path: Path, number: int) -> None:
        classes = ((PAGE,), (STATE,), (PAGE, STATE))[number % 3]
        self.both.evict(*classes, below=(inf, inf, 0.0, 1.0, 4.0, 16.0)[number % 6])

    def end(self) -> None:
        """Nobody runs any more; everything can go."""
        while self.locked:
            self.both.unlock(self.locked.pop())
        for path, known in list(self.both.known.items()):
            if known.is_busy:
                self.both.hold_state(path)
        while self.both.evict(PAGE, STATE):
            pass
        assert not self.both.known
        assert not self.both.trie._roots


names = st.sampled_from(
    [
        *("publish", "match", "keep_state", "use_state", "hold_state", "drop_state", "lock"),
        *("publish", "publish", "match", "keep_state", "keep_state", "use_state", "hold_state"),
        *("unlock", "unlock", "forget", "evict", "evict"),
    ]
)


@settings(max_examples=examples(600), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    per=st.sampled_from([(4, 2), (4, 2), (3, 5), (4, 0), (0, 2)]),
    moves=st.lists(st.tuples(names, paths, st.integers(0, 29)), min_size=30, max_size=60),
)
def test_the_least_worth_goes_and_nothing_else(per: tuple[int, int], moves: list[tuple]) -> None:
    game = Game(per)
    for name, *more in moves:
        getattr(game, name)(*more)
        game.both.check()
    game.end()


def test_what_goes_first_does_not_depend_on_how_often_it_was_asked_for() -> None:
    """Entries that are out of date are left out when there are many, and no other."""
    both = Both((4, 0))
    for path in (("", "a", "a"), ("", "a", "b"), ("", "b")):
        both.publish(path)
    most = 0
    for _ in range(1500):
        both.match(("", "a", "b"), 1)
        both.match(("", "b"), 1)
        most = max(most, *map(len, both.trie._heaps))
    assert most == 4 * both.trie.num_nodes + 1024  # no sooner and no later
    while both.evict(PAGE):
        pass
    assert not both.known


def test_what_goes_first_does_not_depend_on_how_often_states_were_used() -> None:
    both = Both((4, 8))
    for path in (("", "a", "a"), ("", "b"), ("salt", "a")):
        both.publish(path)
        both.keep_state(path, "end")
    most = 0
    for _ in range(1500):
        both.use_state(("", "b"))
        most = max(most, len(both.trie._heaps[STATE]))
    assert most == 4 * both.trie.num_nodes + 1024
    while both.evict(STATE):
        pass
    assert both.evicted[STATE] == 3


def test_a_root_stays_as_long_as_somebody_is_there() -> None:
    both = Both()
    root = both.trie.root("salt")
    both.trie.lock(root)
    assert both.trie.root("salt") is root
    assert both.trie.root("other") is not root
    both.trie.unlock(root)
    assert both.trie.root("salt") is not root
    assert not both.trie.match(tokens_of("ab"), "nobody's").path


def test_salts_are_any_text() -> None:
    both = Both()
    assert both.trie.root("\ud800") is not both.trie.root("\ud801")


def test_nodes_without_pages_are_bounded() -> None:
    arena = Arena(4, items_per_superpage=(0, 2), floor=(0, 1))
    trie = PrefixTrie(arena, grid=GRID, has_states=True, max_nodes=5)
    node = trie.root("")
    for letter in "abcdefgh":
        node = trie.insert(node, letter.encode(), NO_PAGE)
    trie.lock(node)
    trie.trim()
    assert trie.num_nodes == 8, "a sequence runs with all of them"
    trie.unlock(node)
    trie.trim()
    assert trie.num_nodes == 5
    assert sorted(each.key for each in trie.nodes()) == [b"a", b"b", b"c", b"d", b"e"]
    trie.trim()
    assert trie.num_nodes == 5


spans = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 6), st.sampled_from([b"x" * 32, b"y" * 32])),
    max_size=3,
)


def embeddings_of(drawn: list[tuple[int, int, bytes]]) -> tuple[PromptEmbeddings, ...]:
    found: list[PromptEmbeddings] = []
    at = 0
    for gap, length, digest in drawn:
        vectors = torch.zeros(length, 1)
        found.append(PromptEmbeddings(start=at + gap, vectors=vectors, digest=digest))
        at = found[-1].end
    return tuple(found)


@settings(max_examples=examples(400), deadline=None)
@given(
    block=st.integers(0, 4),
    letters=st.tuples(st.text("ab", min_size=5, max_size=5), st.text("ab", min_size=5, max_size=5)),
    drawn=st.tuples(spans, spans),
    is_same=st.booleans(),
)
def test_a_key_tells_what_stands_in_a_block(block, letters, drawn, is_same) -> None:
    """The same for the same tokens and the same parts of the same pictures, and for no others."""
    trie = Both().trie
    if is_same:
        letters = (letters[0], letters[0])
    first, last = block * GRID, (block + 1) * GRID
    found = []
    for text, parts in zip(letters, drawn, strict=True):
        embeddings = embeddings_of(parts)
        key = trie.block_key(tokens_of(text), block, embeddings)
        inside = [
            (each.digest, each.start - first)
            for each in embeddings
            if set(range(each.start, each.end)) & set(range(first, last))
        ]
        found.append((key, (text[block], inside)))
    (one, content), (other, other_content) = found
    assert (one == other) == (content == other_content)


@pytest.mark.parametrize("has_states", [False, True])
def test_the_first_blocks_of_a_text_are_found_with_its_pictures_alone(has_states: bool) -> None:
    both = Both((4, 2) if has_states else (4, 0))
    (picture,) = embeddings_of([(1, 2, b"z" * 32)])
    tokens = tokens_of("abc")
    node = both.trie.root("")
    for block in range(2):
        page = both.arena.allocate(PAGE)
        node = both.trie.insert(node, both.trie.block_key(tokens, block, [picture]), page)
    found = both.trie.match(tokens, "", [picture])
    assert len(found.path) == 2
    assert found.usable == (0 if has_states else 2)
    assert not both.trie.match(tokens, "").path
