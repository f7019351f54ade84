"""How much fits, where states are kept and why, and what a reply that forks has of its own."""

from __future__ import annotations

from array import array
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.engine.block import NO_PAGE
from blazr.engine.cache.arena import ItemClass, OutOfMemoryError
from blazr.engine.cache.disk import DiskCache
from blazr.engine.cache.manager import (
    LONG_PROMPT_INTERVAL,
    CacheManager,
    CacheShape,
    geometric_blocks,
)
from blazr.engine.request import PromptEmbeddings, Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.sequence import Fork, Sequence
from tests.support.seeds import examples

PAGE, STATE = ItemClass.PAGE, ItemClass.STATE
GRID = 4


def shape_of(
    *, superpages: int = 40, pages: int = 4, states: int = 2, running: int = 3, copies: int = 1
) -> CacheShape:
    return CacheShape(
        grid=GRID,
        num_superpages=superpages,
        pages_per_superpage=pages,
        states_per_superpage=states,
        max_running=running,
        max_blocks=superpages * max(pages, 1) + 1,
        working_copies=copies if states else 0,
    )


KINDS = {
    "hybrid": shape_of(),
    "attention": shape_of(states=0),
    "recurrent": shape_of(pages=0),
}
kinds = pytest.mark.parametrize("shape", KINDS.values(), ids=KINDS)


def sequence_of(tokens, *, num_prompt: int | None = None, **asked) -> Sequence:
    prompt = tuple(tokens[:num_prompt])
    params = SamplingParams(prompt_logprobs=asked.pop("scores", None))
    return Sequence(
        request_id=1,
        request=Request(prompt_ids=prompt, params=params, **asked),
        index=0,
        order=(0, 1, 0),
        tokens=array("i", tokens),
        seed=0,
        max_length=10**6,
        max_output=10**6,
    )


def numbers(count: int, first: int = 0) -> list[int]:
    return [first, *range(1, count)][:count]


def compute(memory: CacheManager, sequence: Sequence, upto: int, *, chunk: int = 10**9) -> None:
    """Compute its tokens up to there."""
    while sequence.computed < upto:
        count = min(chunk, upto - sequence.computed)
        memory.reserve(sequence, count)
        memory.commit(sequence, count)


def answer(memory: CacheManager, tokens, *, chunk: int = 10**9, **asked) -> Sequence:
    """Compute a text from its beginning to its end, and let go of it; what it was."""
    sequence = sequence_of(tokens, **asked)
    memory.start(sequence)
    sequence.num_cached = sequence.computed
    compute(memory, sequence, len(tokens), chunk=chunk)
    memory.release(sequence)
    return sequence


def states_of(memory: CacheManager) -> dict[int, str]:
    """Kept states, by how many tokens are before them."""
    nodes = memory.trie.nodes()
    return {node.depth * GRID: node.state_kind for node in nodes if node.state is not None}


@settings(max_examples=examples(120), deadline=None)
@given(
    superpages=st.integers(1, 9), pages=st.integers(1, 4), states=st.integers(0, 3),
    running=st.integers(1, 3),
)  # fmt: skip
def test_the_longest_text_fits_whatever_else_is_held(superpages, pages, states, running) -> None:
    """Beside the states that others may hold; and where each state is a superpage, no page more."""
    floor = -(-(2 * running + 1) // states) if states else 0
    superpages += floor + 3
    shape = shape_of(superpages=superpages, pages=pages, states=states, running=running)
    assert shape.floor == (1, floor)
    assert shape.max_tokens % GRID == 0
    memory = CacheManager(shape)
    held = 2 * running if states else 0  # and the zero state: all that others may have
    for _ in range(held):
        memory.arena.allocate(STATE)
    sequence = sequence_of([1] * (shape.max_tokens + GRID), num_prompt=1)
    memory.start(sequence)
    compute(memory, sequence, shape.max_tokens - GRID, chunk=GRID)
    memory.reserve(sequence, GRID)  # beside the state that it goes on from, the next one
    if states <= 1:
        with pytest.raises(OutOfMemoryError):
            memory.reserve(sequence, GRID + 1)


def test_without_pages_texts_have_no_bound() -> None:
    shape = KINDS["recurrent"]
    assert shape.max_tokens == 2**31
    assert shape.floor == (0, 4)
    memory = CacheManager(shape)
    sequence = sequence_of(numbers(4000))
    memory.start(sequence)
    compute(memory, sequence, 4000, chunk=100)
    assert memory.has_room_for(sequence_of([1] * 100_000))


@pytest.mark.parametrize("length", [1, GRID - 1, GRID, 5 * GRID - 1, 5 * GRID])
def test_there_is_room_for_what_fits_beside_those_that_run(length) -> None:
    """With a token more; pages that only the trie has can be taken."""
    memory = CacheManager(shape_of(superpages=8, states=0))
    total = memory.shape.max_tokens // GRID
    assert total == 32
    answer(memory, numbers(20 * GRID, 7))
    running = sequence_of(numbers(10**3, 8))
    memory.start(running)
    needed = length // GRID + 1
    compute(memory, running, (total - needed) * GRID)
    assert memory.has_room_for(sequence_of([1] * length))
    compute(memory, running, (total - needed) * GRID + 1)
    assert not memory.has_room_for(sequence_of([1] * length))


@kinds
def test_there_is_no_room_without_a_slot(shape) -> None:
    memory = CacheManager(shape)
    others = [sequence_of([place, 1]) for place in range(3)]
    for each in others:
        assert memory.has_room_for(sequence_of([1]))
        memory.start(each)
    assert sorted(each.run_slot for each in others) == [0, 1, 2]
    assert not memory.has_room_for(sequence_of([1]))
    memory.release(others[1])
    assert memory.has_room_for(sequence_of([1]))
    memory.release(others[1])  # it has nothing
    assert memory.free_run_slots == [others[1].run_slot or 1]


def test_why_no_more_was_reused() -> None:
    text = numbers(6 * GRID + 2)
    for name, shape in KINDS.items():
        memory = CacheManager(shape)
        short = numbers(GRID, 9)
        assert [answer(memory, short[:n]).reuse for n in (GRID - 1, GRID)] == ["short"] * 2
        assert answer(memory, text).reuse == "unknown"
        again = answer(memory, text)
        assert (again.reuse, again.num_cached) == ("whole", 6 * GRID)
        assert answer(memory, [*text[: 4 * GRID], *[99] * 9]).reuse == {
            "hybrid": "no-state", "recurrent": "no-state", "attention": "partial",
        }[name]  # fmt: skip
        third = answer(memory, [*text[: 4 * GRID], *[98] * 9])
        assert (third.reuse, third.num_cached) == ("partial", 4 * GRID)
        assert answer(memory, text, cache_salt="other").reuse == "unknown"
        off = CacheManager(shape, prefix_cache=False)
        assert [answer(off, text).reuse for _ in range(2)] == ["off"] * 2
        assert not off.trie.num_nodes


def test_states_are_kept_where_others_may_part() -> None:
    """At the end, before each anchor, every so many tokens of a long prompt, and between."""
    memory = CacheManager(shape_of(superpages=9000, states=1))
    end = 2 * LONG_PROMPT_INTERVAL + 5
    answer(memory, numbers(end), anchors=(30, 5000, 10**6), chunk=3000)
    kept = states_of(memory)
    last = 2 * LONG_PROMPT_INTERVAL + 4
    named = {place: kind for place, kind in kept.items() if kind != "geometric"}
    assert named == {
        28: "anchor", 5000: "anchor", last: "end",
        LONG_PROMPT_INTERVAL: "interval", 2 * LONG_PROMPT_INTERVAL: "interval",
    }  # fmt: skip
    between = sorted((last - place) // GRID for place, kind in kept.items() if kind == "geometric")
    assert between[:3] == [3, 7, 15]  # one block before the end is that of the interval


@pytest.mark.parametrize("chunk", [1, GRID, 3 * GRID + 1, 100])
@pytest.mark.parametrize("name", ["hybrid", "recurrent"])
def test_however_a_prompt_is_cut_the_same_states_are_kept(name, chunk) -> None:
    kept = []
    for size in (10**9, chunk):
        memory = CacheManager(KINDS[name])
        answer(memory, numbers(60), anchors=(17, 40), chunk=size)
        kept.append(states_of(memory))
        assert memory.arena.used(STATE) == 1 + len(kept[-1])
    whole, in_pieces = kept
    assert whole == in_pieces
    assert {16: "anchor", 40: "anchor", 56: "end"}.items() <= whole.items()


@pytest.mark.parametrize("name", ["hybrid", "recurrent"])
def test_a_reply_drops_states_that_its_end_leaves_too_close_together(name) -> None:
    memory = CacheManager(KINDS[name])
    sequence = sequence_of(numbers(GRID + 1))
    memory.start(sequence)
    for blocks in range(1, 42):
        sequence.tokens.extend([7] * GRID)
        compute(memory, sequence, blocks * GRID, chunk=1)
        kept = {place // GRID for place in states_of(memory)}
        assert kept == {1} | geometric_blocks(blocks)  # beside the prompt's end


@kinds
@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("length", [9 * GRID, 9 * GRID + 2])
def test_a_fork_stands_where_the_other_does(shape, samples, length) -> None:
    memory = CacheManager(shape)
    tokens = numbers(length)
    source = sequence_of(tokens)
    memory.start(source)
    fork_tokens = tokens if samples else [*tokens, 500, *range(GRID)]
    sequence = sequence_of(fork_tokens)
    fork = memory.reserve_fork(sequence, source, length, samples=samples)
    assert fork == Fork(sequence, source, fork.run_slot, fork.page, length, samples)
    assert (fork.page != NO_PAGE) == (shape.has_pages and length % GRID > 0)
    assert fork.run_slot not in {source.run_slot, *memory.free_run_slots}
    compute(memory, source, length)
    memory.adopt(fork)
    same = ("computed", "published", "node", "checkpoint", "checkpoint_length")
    for name in same:
        assert getattr(sequence, name) == getattr(source, name), name
    assert sequence.run_slot == fork.run_slot
    assert sequence.num_cached == length
    assert sequence.reuse == ("whole" if len(fork_tokens) - length <= GRID else "partial")
    assert bool(sequence.wanted) == (not samples)
    assert not sequence.created
    whole = length // GRID
    if shape.has_pages:
        assert sequence.pages[:whole] == source.pages[:whole]
        assert sequence.pages[whole:] == ([fork.page] if length % GRID else [])
        rows = memory.block_tables.rows[fork.run_slot]
        assert rows[: len(sequence.pages)].tolist() == sequence.pages
    # each goes on, and whichever ends first takes nothing from the other
    used = memory.arena.used(PAGE), memory.arena.used(STATE)
    source.tokens.extend([1] * 2 * GRID)
    sequence.tokens.extend([2] * 2 * GRID)
    compute(memory, sequence, len(sequence.tokens), chunk=3)
    compute(memory, source, len(source.tokens), chunk=3)
    assert used <= (memory.arena.used(PAGE), memory.arena.used(STATE))
    for each in (source, sequence):
        memory.release(each)
    assert sorted(memory.free_run_slots) == [0, 1, 2]
    memory.forget()
    assert memory.arena.used(PAGE) == 0
    assert memory.arena.used(STATE) == int(shape.has_states)


@pytest.mark.parametrize(("more", "reuse"), [(1, "whole"), (GRID, "whole"), (GRID + 1, "partial")])
def test_a_fork_reuses_the_whole_if_a_block_at_most_is_left(more, reuse) -> None:
    memory = CacheManager(KINDS["hybrid"])
    source = sequence_of(numbers(9 * GRID))
    memory.start(source)
    sequence = sequence_of([*source.tokens, *[500] * more])
    fork = memory.reserve_fork(sequence, source, 9 * GRID, samples=False)
    assert fork is not None
    compute(memory, source, 9 * GRID)
    memory.adopt(fork)
    assert sequence.reuse == reuse


@kinds
def test_a_fork_needs_a_slot_and_a_page_of_its_own(shape) -> None:
    memory = CacheManager(shape)
    source = sequence_of(numbers(30))
    memory.start(source)
    found = [memory.reserve_fork(sequence_of([1]), source, 30, samples=True) for _ in range(3)]
    assert [each is None for each in found] == [False, False, True]
    assert memory.arena.used(PAGE) == (2 if shape.has_pages else 0)
    for each in found[:2]:
        memory.cancel_fork(each)
    assert sorted([source.run_slot, *memory.free_run_slots]) == [0, 1, 2]
    assert memory.arena.used(PAGE) == 0
    if shape.has_pages:
        while memory.arena.room(PAGE):
            memory.arena.allocate(PAGE)
        assert memory.reserve_fork(sequence_of([1]), source, 30, samples=True) is None
        whole = memory.reserve_fork(sequence_of([1]), source, 28, samples=True)
        assert whole is not None
        assert whole.page == NO_PAGE
        memory.cancel_fork(whole)
    assert len(memory.free_run_slots) == 2


@kinds
def test_what_ends_has_nothing_left(shape) -> None:
    memory = CacheManager(shape)
    sequence = sequence_of(numbers(22), num_prompt=20)
    fresh = sequence_of(numbers(22), num_prompt=20)
    memory.start(sequence)
    compute(memory, sequence, 22)
    memory.commit(sequence, 0, num_drafts=1)
    memory.release(sequence)
    for name in (
        "computed", "pages", "checkpoint", "checkpoint_length", "was_truncated", "working_copy",
        "working_length", "pending", "wanted", "run_slot", "node", "published", "created",
    ):  # fmt: skip
        assert getattr(sequence, name) == getattr(fresh, name), name
    assert not any(node.locks for node in memory.trie.nodes())
    assert memory.trie.num_nodes == 22 // GRID
    states = {20: "end"} if shape.has_states else {}
    assert states.items() <= states_of(memory).items()


@kinds
def test_what_failed_leaves_only_what_others_had_published(shape) -> None:
    memory = CacheManager(shape)
    answer(memory, numbers(12))
    sequence = sequence_of(numbers(30))
    memory.start(sequence)
    compute(memory, sequence, 28)
    memory.reserve(sequence, 2)
    memory.release(sequence, publish=False)
    assert memory.trie.num_nodes == 3
    assert memory.arena.used(STATE) == shape.has_states + len(states_of(memory))
    assert memory.arena.used(PAGE) == (3 if shape.has_pages else 0)


@pytest.mark.parametrize(("states", "copies"), [(0, 0), (2, 0), (2, 1), (2, 2)])
@pytest.mark.parametrize(("drafts", "kept"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
def test_drafts_count_when_they_are_accepted(copies, states, drafts, kept) -> None:
    """If all stay, a model goes on behind them; if not, it makes again what it carries along.

    One that reads its states from the log carries nothing.
    """
    memory = CacheManager(shape_of(states=states, copies=copies))
    sequence = sequence_of(numbers(5), num_prompt=2)
    memory.start(sequence)
    compute(memory, sequence, 4)
    before = sequence.working_copy
    memory.reserve(sequence, 1)
    memory.commit(sequence, 1, num_drafts=drafts)
    assert sequence.computed == 5
    assert sequence.was_truncated == (copies > 0)
    assert sequence.working_length == 4 or not states
    memory.accept(sequence, kept, num_drafts=drafts)
    assert sequence.computed == 5 + kept
    is_whole = kept == drafts or not copies
    assert sequence.was_truncated == (not is_whole)
    assert (sequence.working_copy != before) == (is_whole and copies > 1)
    sequence.tokens.extend([1] * 3)
    memory.commit(sequence, 0)
    assert not sequence.was_truncated


def test_drafts_have_room_on_the_next_page_if_there_is_one() -> None:
    memory = CacheManager(shape_of(states=0, superpages=1, pages=2))
    sequence = sequence_of(numbers(4))
    memory.start(sequence)
    compute(memory, sequence, 3)
    memory.reserve(sequence, 1)
    assert len(sequence.pages) == 1
    assert [memory.reserve_drafts(sequence, count) for count in (0, 1, 4, 5, 9)] == [0, 1, 4, 4, 4]
    assert len(sequence.pages) == 2


@pytest.mark.parametrize(("kept", "published"), [(-1, 0), (0, 1), (3, 1), (4, 2)])
def test_a_block_is_published_when_it_is_known_what_stays(kept, published) -> None:
    memory = CacheManager(shape_of(states=0))
    sequence = sequence_of(numbers(4))
    memory.start(sequence)
    compute(memory, sequence, 3)
    memory.reserve(sequence, 1)
    assert memory.reserve_drafts(sequence, 4) == 4
    memory.commit(sequence, 1, num_drafts=4)
    assert memory.trie.num_nodes == 0
    sequence.tokens.extend([1] * (kept + 1))
    memory.accept(sequence, kept, num_drafts=4)
    assert memory.trie.num_nodes == published


@kinds
def test_without_a_cache_nothing_is_kept(shape) -> None:
    memory = CacheManager(shape, prefix_cache=False)
    for _ in range(2):
        sequence = answer(memory, numbers(50), num_prompt=9, anchors=(4,), chunk=7)
        assert not sequence.wanted
        assert not memory.trie.num_nodes
        assert memory.arena.used(PAGE) == 0
        assert memory.arena.used(STATE) == int(shape.has_states)


@pytest.mark.parametrize(("copies", "length"), [(1, 4), (2, 6)])
def test_where_a_model_can_go_back_to(copies, length) -> None:
    """With two states of each sequence to where a step began, otherwise to the last block's end."""
    memory = CacheManager(shape_of(copies=copies))
    sequence = sequence_of(numbers(9))
    memory.start(sequence)
    compute(memory, sequence, 6, chunk=5)
    assert sequence.working_length == 4
    memory.commit(sequence, 1, num_drafts=1)
    assert sequence.working_length == length


@pytest.mark.parametrize("states", [0, 2])
def test_tokens_back_to_the_last_block_may_be_dropped(states) -> None:
    for left in range(8, 12):
        memory = CacheManager(shape_of(states=states))
        sequence = sequence_of(numbers(12), num_prompt=2)
        memory.start(sequence)
        compute(memory, sequence, 11)
        memory.truncate(sequence, left)
        assert sequence.computed == len(sequence.tokens) == left
        assert len(sequence.pages) == -(-left // GRID)
        assert memory.arena.used(PAGE) == len(sequence.pages)
        assert sequence.was_truncated == (states > 0 and left > 8)
        assert sequence.working_length == 8
        for other in (7, left + 1):
            with pytest.raises(AssertionError, match="cannot truncate"):
                memory.truncate(sequence, other)


def test_a_failed_step_leaves_no_states_behind() -> None:
    memory = CacheManager(shape_of())
    sequence = sequence_of(numbers(41))
    memory.start(sequence)
    for _ in range(5):
        memory.reserve(sequence, 41)
    used = memory.arena.used(STATE)
    assert used == 1 + len(sequence.pending)
    memory.commit(sequence, 41)
    assert not sequence.pending
    memory.release(sequence)
    assert memory.arena.used(STATE) == 1 + len(states_of(memory))


def test_pages_are_told_as_they_are_handed_out() -> None:
    memory = CacheManager(shape_of())
    sequence = sequence_of(numbers(41))
    memory.start(sequence)
    for count, pages in ((1, 1), (4, 1), (5, 2), (41, 11)):
        memory.reserve(sequence, count)
        assert memory.new_pages == sequence.pages
        assert len(sequence.pages) == pages
        rows = memory.block_tables.rows[sequence.run_slot]
        assert rows[:pages].tolist() == sequence.pages


class Files:
    """A disk, and the memory that it is read into, item by item."""

    def __init__(self, directory: Path, shape: CacheShape, *, prefix_cache: bool = True) -> None:
        self.items: dict[tuple[ItemClass, int], bytes] = {}
        self.disk = DiskCache(
            directory,
            limit=2**30,
            fingerprint=b"model",
            sizes={PAGE: 8, STATE: 8},
            read=lambda cls, item: self.items.get((cls, item), b"12345678"),
            write=lambda cls, item, content: self.items.__setitem__((cls, item), bytes(content)),
        )
        self.memory = CacheManager(shape, prefix_cache=prefix_cache, disk=self.disk)

    def close(self) -> None:
        self.memory.close()
        self.disk.close()


def reply(memory: CacheManager, tokens, **asked) -> Sequence:
    return answer(memory, tokens, num_prompt=len(tokens) - 1, **asked)


@kinds
def test_what_was_answered_is_on_disk(shape, tmp_path: Path) -> None:
    text = numbers(41)
    with closing(Files(tmp_path, shape)) as files:
        reply(files.memory, text)
        files.disk.flush()
    with closing(Files(tmp_path, shape)) as files:
        assert reply(files.memory, text, cache_salt="other").num_cached == 0
        assert reply(files.memory, text, scores=0).num_cached == 0  # there are no scores on disk
    with closing(Files(tmp_path, shape)) as files:
        assert reply(files.memory, text).num_cached == 40
        files.memory.forget()
        assert reply(files.memory, text).num_cached == 0
    with closing(Files(tmp_path, shape, prefix_cache=False)) as files:
        assert files.memory.disk is None
        assert reply(files.memory, text).num_cached == 0


@pytest.mark.parametrize(
    ("num_prompt", "publish", "is_kept"), [(41, True, False), (40, False, False), (40, True, True)]
)
def test_only_what_gave_a_token_is_written(tmp_path: Path, num_prompt, publish, is_kept) -> None:
    """Until then nobody knows that its numbers are finite."""
    with closing(Files(tmp_path, KINDS["attention"])) as files:
        sequence = sequence_of(numbers(41), num_prompt=num_prompt)
        files.memory.start(sequence)
        compute(files.memory, sequence, 41)
        files.memory.release(sequence, publish=publish)
        files.disk.flush()
        assert (files.disk.counts.written > 0) == is_kept


def test_closing_writes_the_rest(tmp_path: Path) -> None:
    """Also of states of which only a few will ever be needed."""
    shape = shape_of(superpages=100)
    text = numbers(161)
    with closing(Files(tmp_path, shape)) as files:
        reply(files.memory, text)
        kept = states_of(files.memory)
        assert "geometric" in kept.values()
    with closing(Files(tmp_path, shape)) as files:
        place = next(place for place, kind in kept.items() if kind == "geometric")
        assert reply(files.memory, [*text[:place], *[7] * 9]).num_cached == place


@pytest.mark.parametrize(
    ("anchors", "kept"),
    [((16,), ()), ((17,), (17,)), ((17, 27), (17,)), ((17, 33), (17,)), ((17, 34), (17, 34))],
)
def test_a_state_for_others_is_kept_if_nothing_dearer_has_to_go(anchors, kept) -> None:
    """Of two that are there one saves 4 blocks and the other 8; an anchor counts for a quarter.

    With the first goes its worth, 16 tokens, which is added to that of the next.
    """
    memory = CacheManager(shape_of(superpages=9, pages=64, states=1, running=1))
    for depth in (4, 8):
        answer(memory, numbers(depth * GRID + 1, 100 + depth))
    for node in list(memory.trie.nodes()):
        if node.state_kind == "geometric":
            memory.trie.drop_state(node)
    assert states_of(memory) == {16: "end", 32: "end"}
    while memory.arena.room(STATE):
        memory.arena.allocate(STATE)
    sequence = sequence_of(
        numbers(36 * GRID + 1, 200), anchors=tuple(block * GRID for block in anchors)
    )
    memory.start(sequence)
    try:
        memory.reserve(sequence, 36 * GRID + 1)
    except OutOfMemoryError:
        assert len(kept) == 2, "both have gone for others' sake"
    offsets = [offset // GRID for offset, _ in sequence.pending]
    assert offsets[: len(kept)] == list(kept)
    assert offsets[len(kept) :] == ([36] if len(kept) < 2 else [])


def picture(start: int, length: int, name: str) -> PromptEmbeddings:
    vectors: Any = range(length)  # of which nothing but the number is asked
    return PromptEmbeddings(start=start, vectors=vectors, digest=name.encode() * 32)


@kinds
def test_what_stands_for_tokens_is_a_part_of_the_text(shape, tmp_path: Path) -> None:
    """In memory and on disk, from the block on that the first of it is in."""
    text = numbers(41)
    one, other = ((picture(9, 6, name),) for name in "ab")
    with closing(Files(tmp_path, shape)) as files:
        memory = files.memory
        reply(memory, text, embeddings=one, anchors=(8,))
        assert reply(memory, text, embeddings=one).num_cached == 40
        assert reply(memory, text, embeddings=other).num_cached == 8
        assert reply(memory, text).num_cached == 8
        files.disk.flush()
    for embeddings, found in ((one, 40), (other, 40), ((picture(9, 6, "c"),), 8)):
        with closing(Files(tmp_path, shape)) as files:
            assert reply(files.memory, text, embeddings=embeddings).num_cached == found


def test_nodes_of_models_without_pages_are_bounded() -> None:
    memory = CacheManager(KINDS["recurrent"])
    memory.trie.max_nodes = 7
    answer(memory, numbers(41))
    assert memory.trie.num_nodes == 7
    memory = CacheManager(KINDS["attention"])
    memory.trie.max_nodes = 7
    answer(memory, numbers(41))
    assert memory.trie.num_nodes == 10


def test_a_text_tells_from_which_state_it_went_on_at_first() -> None:
    memory = CacheManager(KINDS["hybrid"])
    text = numbers(41)
    answer(memory, text, anchors=(20,))
    sequence = sequence_of([*text[:20], *[9] * 9])
    memory.start(sequence)
    assert (sequence.resumed_at, sequence.checkpoint_length) == ("anchor", 20)
    compute(memory, sequence, 29)
    memory.release(sequence)
    sequence.num_preemptions = 1
    memory.start(sequence)
    assert (sequence.resumed_at, sequence.checkpoint_length) == ("anchor", 28)


def test_only_uses_make_a_state_worth_more() -> None:
    memory = CacheManager(KINDS["hybrid"])
    text = numbers(41)
    for times in range(4):
        answer(memory, text)
        (end,) = [node for node in memory.trie.nodes() if node.depth == 10]
        assert end.state_uses == times


def test_the_pages_of_what_is_reused_are_where_kernels_look() -> None:
    memory = CacheManager(KINDS["hybrid"])
    answer(memory, numbers(41))
    sequence = sequence_of(numbers(41))
    memory.start(sequence)
    assert len(sequence.pages) == 10
    assert memory.block_tables.rows[sequence.run_slot][:10].tolist() == sequence.pages
