"""The real scheduler, caches and engine under random use, checked after every move.

The invariants: every reference is accounted for; a checkpoint lies on the grid at or before what
is computed; no item is both free and used, no superpage serves two classes; what is published is a
pure function of its tokens; locks are closed towards the root; everything comes back; every
request finishes; one token is always computed. Then the machine must catch mistakes planted in it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.disk import DiskCache, next_name
from blazr.engine.cache.known import (
    BlockEvent,
    BlocksRemoved,
    BlocksStored,
    block_name,
    root_name,
)
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.outputs import FinishReason, TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler
from tests.support.drafts import (
    EagerSpeculator,
    GuessingDrafter,
    compute_drafts,
    most_drafts,
)
from tests.support.fake_model import GRID, ITEM_BYTES, VOCAB, FakeModel, chain, next_token

tokens = st.integers(0, VOCAB - 1)


class PromptDisk(DiskCache):
    """Writes at once, so that the same moves come to the same end."""

    def save(self, what, item, *, waits=False):
        super().save(what, item, waits=waits)
        self.flush()


class EngineMachine(RuleBasedStateMachine):
    bugs: frozenset[str] = frozenset()

    @initialize(
        kinds=st.sampled_from(["hybrid", "hybrid", "attention", "recurrent"]),
        spare=st.integers(0, 4),
        running=st.integers(1, 4),
        budget=st.sampled_from([1, 4, 7, 16]),
        prefix_cache=st.sampled_from([True, True, True, False]),
        has_disk=st.sampled_from([False, False, True]),
        right=st.sampled_from([None, None, 0.0, 0.5, 0.9]),
        working_copies=st.sampled_from([1, 2, 2]),
    )
    def build(self, kinds, spare, running, budget, prefix_cache, has_disk, right, working_copies):
        pages = 0 if kinds == "recurrent" else 8
        states = 0 if kinds == "attention" else 2
        shape = CacheShape(
            grid=GRID,
            num_superpages=3 + spare + (running + 1 if states else 0),
            pages_per_superpage=pages,
            states_per_superpage=states,
            max_running=running,
            max_blocks=64,
            working_copies=working_copies,
        )
        self.parts = shape, budget, prefix_cache
        self.right = 0.7 if right is None and self.bugs & DRAFT_BUGS else right
        self.directory = Path(mkdtemp()) if has_disk or self.bugs & DISK_BUGS else None
        self.cursed = frozenset[int]()
        self.start()
        self.prompts: list[tuple[int, ...]] = [(0,) * 9]
        self.asked: dict[int, Request] = {}
        self.got: dict[tuple[int, int], list[int]] = {}
        self.ended: dict[tuple[int, int], FinishReason] = {}
        self.next_id = 1

    def start(self) -> None:
        """Begin with empty memory, beside what is on disk."""
        shape, budget, prefix_cache = self.parts
        self.disk = None
        if self.directory is not None and prefix_cache:
            self.disk = PromptDisk(
                self.directory,
                limit=2**30,
                fingerprint=b"model",
                sizes=dict.fromkeys(ItemClass, ITEM_BYTES),
                read=self.read_item,
                write=self.write_item,
            )
        self.memory = CacheManager(shape, prefix_cache=prefix_cache, disk=self.disk)
        self.known: set[bytes] = set()  # as who listens to the cache is told
        self.memory.trie.tell(self.hear)
        self.model = FakeModel(self.memory, self.bugs)
        self.model.cursed = self.cursed
        plant(self.memory, self.bugs)
        speculator = None
        if self.right is not None:
            drafter = GuessingDrafter(next_token, VOCAB, self.right)
            crosses = not shape.has_states or "drafts computed beyond the block" in self.bugs
            speculator = EagerSpeculator([drafter], grid=GRID, crosses_blocks=crosses)
        self.scheduler = Scheduler(self.memory, token_budget=budget, speculator=speculator)
        self.engine = Engine(self.scheduler, self.model.execute, vocab_size=VOCAB, max_seq_len=64)

    def hear(self, event: BlockEvent) -> None:
        if isinstance(event, BlocksStored):
            assert event.parent is None or event.parent in self.known
            assert not self.known.intersection(event.names)
            self.known.update(event.names)
        else:
            assert isinstance(event, BlocksRemoved)
            assert self.known.issuperset(event.names)
            self.known.difference_update(event.names)

    def read_item(self, cls: ItemClass, item: int) -> bytes:
        return self.model.read(cls, item)

    def write_item(self, cls: ItemClass, item: int, content: bytearray) -> None:
        self.model.write(cls, item, content)

    @rule(which=st.integers(0, 9), place=st.integers(0, 400))
    def restart(self, which, place):
        if self.directory is None:
            return
        for request_id in self.asked:
            self.take(self.engine.abort(request_id))
        self.engine.close()
        files = sorted(path for path in self.directory.rglob("*") if path.is_file())
        if files and which:  # now and then a disk loses a bit
            spoiled = files[which * len(files) // 10]
            content = bytearray(spoiled.read_bytes())
            content[place % len(content)] ^= 1
            spoiled.write_bytes(content)
        self.start()

    @rule(
        base=st.integers(0, 30),
        cut=st.integers(0, 24),
        tail=st.lists(tokens, max_size=7),
        max_tokens=st.integers(1, 12),
        choices=st.sampled_from([1, 1, 1, 2, 3]),
        salt=st.sampled_from(["", "", "", "other"]),
        priority=st.sampled_from([0, 0, 0, 1]),
        client=st.sampled_from([(), ("a",), ("b",), ("c", "d"), ("c", "e")]),
        is_cursed=st.sampled_from([False] * 7 + [True]),
        anchors=st.lists(st.integers(0, 28), max_size=2).map(tuple),
    )
    def add(self, base, cut, tail, max_tokens, choices, salt, priority, client, is_cursed, anchors):
        prompt = (*self.prompts[base % len(self.prompts)][:cut], *tail)[:28] or (0,)
        request = Request(
            prompt_ids=prompt,
            params=SamplingParams(temperature=0, max_tokens=max_tokens, n=choices),
            cache_salt=salt,
            priority=priority,
            client=client,
            anchors=anchors,
        )
        self.prompts.append(prompt)
        if is_cursed:
            self.cursed |= {self.next_id}
            self.model.cursed = self.cursed
        self.asked[self.next_id] = request
        self.engine.add(request, request_id=self.next_id, now=0.0, seed=0)
        self.next_id += 1

    @rule(steps=st.integers(1, 6), prefill=st.sampled_from([None, 1, 4]))
    def step(self, steps, prefill):
        for _ in range(steps):
            self.take(self.engine.step(0.0, prefill))

    @rule(which=st.integers(0, 30))
    def abort(self, which):
        self.take(self.engine.abort(1 + which % self.next_id))

    @rule(which=st.integers(0, 9))
    def preempt(self, which):
        running = self.scheduler.running
        if running:
            self.scheduler.preempt(running[which % len(running)])

    @rule(cls=st.sampled_from(list(ItemClass)), times=st.integers(1, 5))
    def evict(self, cls, times):
        for _ in range(times):
            self.memory.trie.evict(cls)

    @rule(
        turns=st.lists(
            st.tuples(
                st.integers(0, 3),  # which sequence
                st.lists(tokens, max_size=GRID),  # its drafts,
                st.integers(0, GRID),  # of which so many are right;
                st.integers(0, GRID),  # it goes on so many tokens before the first that is wrong
            ),
            min_size=1,
            max_size=6,
        )
    )
    def speculate(self, turns):
        for which, *turn in turns:
            self.take(self.engine.step(0.0))
            decoding = [
                each
                for each in self.scheduler.running
                if each.num_output and most_drafts(self.memory, each) >= 0
            ]
            if decoding:
                self.reject_drafts(decoding[which % len(decoding)], *turn)

    def reject_drafts(self, sequence, drafts, right, back):
        room = most_drafts(self.memory, sequence)
        history, known = list(sequence.tokens), len(sequence.tokens)
        # a step puts out the right drafts and one token more, and here never the last
        room_for_output = sequence.max_length - 1 - known
        for _ in range(min(right, min(room, len(drafts)) + 1, room_for_output)):
            history.append(next_token(history))
        drafts = [*history[known:], *drafts[len(history) - known :]][: min(room, len(drafts))]
        try:
            if not compute_drafts(self.scheduler, self.model.execute, sequence, drafts):
                return
        except RuntimeError as error:
            self.take([self.engine._fail(sequence, str(error))])
            return
        # at least one token is still to be computed
        last = min(sequence.computed, len(history) - 1)
        length = max(last - back, sequence.computed // GRID * GRID)
        self.memory.truncate(sequence, length)
        sequence.tokens.extend(history[length:])
        self.got[sequence.request_id, sequence.index] += history[known:]

    def take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            key = (output.request_id, output.index)
            assert key not in self.ended, "a reply ended twice"
            self.got.setdefault(key, []).extend(output.token_ids)
            # a reply that begins where another's prompt ends computes nothing of it
            assert output.num_cached_tokens < output.num_prompt_tokens + bool(output.index)
            if output.finish_reason is not None:
                self.ended[key] = output.finish_reason

    @invariant()
    def answers_are_right(self):
        if not hasattr(self, "engine"):
            return
        for (request_id, _), reply in self.got.items():
            history = list(self.asked[request_id].prompt_ids)
            for token in reply:
                assert token == next_token(history), "a reply differs from the oracle"
                history.append(token)

    @invariant()
    def memory_is_sound(self):
        if not hasattr(self, "engine"):
            return
        self.check_references()
        self.check_sequences()
        self.check_trie()

    def check_references(self) -> None:
        arena = self.memory.arena
        wanted: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
        if self.memory.shape.has_states:
            wanted[ItemClass.STATE][0] += 1
        for node in self.memory.trie.nodes():
            if self.memory.shape.has_pages:
                wanted[ItemClass.PAGE][node.page] += 1
            if node.state is not None:
                wanted[ItemClass.STATE][node.state] += 1
        for sequence in self.scheduler.running:
            wanted[ItemClass.PAGE].update(sequence.pages)
            if sequence.checkpoint is not None:
                wanted[ItemClass.STATE][sequence.checkpoint] += 1
            assert not sequence.pending
        for cls in ItemClass:
            assert arena.references[cls] == dict(wanted[cls]), f"references of {cls.name}"
            free = set(arena.free[cls])
            assert len(free) == len(arena.free[cls])
            assert not free & set(wanted[cls]), "free and used at once"
            for item in (*free, *wanted[cls]):
                assert arena.owner[item // arena.items_per_superpage[cls]] is cls, (
                    "a superpage of two classes"
                )

    def check_sequences(self) -> None:
        shape = self.memory.shape
        used = [sequence.run_slot for sequence in self.scheduler.running]
        assert sorted([*used, *self.memory.free_run_slots]) == list(range(shape.max_running))
        for sequence in self.scheduler.running:
            assert sequence.computed < len(sequence.tokens), "one token is always to be computed"
            assert sequence.checkpoint_length % GRID == 0
            if shape.has_states:
                assert sequence.checkpoint_length == sequence.computed // GRID * GRID
                assert (sequence.checkpoint is None) == (sequence.checkpoint_length == 0)
            if shape.has_pages:
                assert len(sequence.pages) * GRID >= sequence.computed
        for sequence in self.scheduler.waiting:
            assert not sequence.pages
            assert sequence.checkpoint is None
            assert sequence.run_slot is None

    def check_trie(self) -> None:
        idle = 0
        self.check_known()
        for node in self.memory.trie.nodes():
            path = []
            at = node
            while at.parent is not None:
                path.append(at.key)
                assert at.parent.children[at.key] is at
                assert at.parent.locks >= at.locks, "locks must be closed towards the root"
                at = at.parent
            history = memoryview(b"".join(reversed(path))).cast("i").tolist()
            if self.memory.shape.has_pages:
                idle += not node.locks
                cells = self.model.cells[node.page]
                low = len(history) - GRID
                right = [chain(history[: low + i + 1]) for i in range(GRID)]
                assert cells == right, "a published page is wrong"
            if node.state is not None:
                assert self.model.states[node.state] == chain(history), "a kept state is wrong"
        assert idle == self.memory.trie.num_idle_pages

    def check_known(self) -> None:
        """What others are told is what a prompt could go on from."""
        expected = set()
        for node in self.memory.trie.nodes():
            if self.memory.shape.has_states and node.state is None:
                continue
            path = [node.ancestor(depth) for depth in range(node.depth + 1)]
            name = root_name(path[0].key)
            for each in path[1:]:
                name = block_name(name, each.key)
                expected.add(name)
        assert self.known == expected
        late: set[bytes] = set()

        def listen(event: BlockEvent) -> None:
            assert isinstance(event, BlocksStored)
            late.update(event.names)

        self.memory.trie.tell(listen)
        self.memory.trie.known.leave(listen)
        assert late == expected

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        try:
            self.check_end()
        finally:
            if self.disk is not None:
                self.disk.close()
            if self.directory is not None:
                rmtree(self.directory)

    def check_end(self) -> None:
        if self.directory is not None:  # what memory had is asked for again
            self.restart(5, 150)
            for prompt in self.prompts[-6:]:
                self.add(0, 0, [*prompt[:24], 1], 2, 1, "", 0, (), False, ())
        for _ in range(3000):
            if not self.engine.has_work():
                break
            self.take(self.engine.step(0.0))
        assert not self.engine.has_work(), "a request starves"
        self.answers_are_right()
        self.memory_is_sound()
        for key, reason in self.ended.items():
            request = self.asked[key[0]]
            if reason is FinishReason.LENGTH:
                wanted = request.params.max_tokens
                room = self.engine.max_seq_len - len(request.prompt_ids)
                limit = self.memory.shape.max_tokens - len(request.prompt_ids)
                assert len(self.got[key]) == min(wanted, room, limit)
            elif reason is FinishReason.ERROR:
                assert key[0] in self.model.cursed, "one request's failure ended another"
            else:
                assert reason is FinishReason.ABORT
        expected = sum(r.params.n for r in self.asked.values())
        assert len(self.ended) == expected, "every reply ends exactly once"
        for cls in (ItemClass.STATE, ItemClass.PAGE):
            while self.memory.trie.evict(cls):
                pass
        assert self.memory.trie.num_nodes == 0
        assert self.memory.arena.used(ItemClass.PAGE) == 0
        assert self.memory.arena.used(ItemClass.STATE) == int(self.memory.shape.has_states)


def fold_in_place(memory: CacheManager) -> None:
    honest = memory._next_checkpoint
    memory._next_checkpoint = lambda s: s.checkpoint or honest(s)


def use_without_state(memory: CacheManager) -> None:
    memory.trie.has_states = False
    resume = memory._resume

    def resume_anyway(sequence, path):
        if memory.shape.has_states and path[-1].state is None:
            path[-1].state = memory._allocate(ItemClass.STATE)
        resume(sequence, path)

    memory._resume = resume_anyway


def publish_unfinished(memory: CacheManager) -> None:
    commit = memory.commit

    def commit_early(sequence, count, **more):
        commit(sequence, count, **more)
        if sequence.computed % GRID == GRID - 1 and len(sequence.tokens) > sequence.computed:
            sequence.computed += 1
            memory._publish(sequence)
            sequence.computed -= 1

    memory.commit = commit_early


def keep_at_wrong_edge(memory: CacheManager) -> None:
    keep = memory._keep_state
    memory._keep_state = lambda s, edge, *more: keep(s, max(GRID, edge - GRID), *more)


def free_shared_page(memory: CacheManager) -> None:
    release = memory.release

    def release_twice(sequence, *, publish=True):
        first = sequence.pages[:1]
        release(sequence, publish=publish)
        for page in first:
            if page in memory.arena.references[ItemClass.PAGE]:
                memory.arena.release(ItemClass.PAGE, page)

    memory.release = release_twice


def keep_dropped_state(memory: CacheManager) -> None:
    drop = memory.trie.drop_state

    def drop_and_hold(node):
        if node.state is not None:
            memory.arena.share(ItemClass.STATE, node.state)
        drop(node)

    memory.trie.drop_state = drop_and_hold


def free_thinned_checkpoint(memory: CacheManager) -> None:
    thin = memory._thin_states

    def thin_and_free(sequence):
        thin(sequence)
        memory.arena.release(ItemClass.STATE, sequence.checkpoint)

    memory._thin_states = thin_and_free


def write_another_item(memory: CacheManager) -> None:
    if memory.disk is not None:
        save = memory.disk.files.save
        memory.disk.files.save = lambda what, item, **more: save(what, max(item - 1, 0), **more)


def name_blocks_by_their_own_tokens(memory: CacheManager) -> None:
    if memory.disk is not None:
        memory.disk.files.name = lambda node: (
            b"model" if node.parent is None else next_name(b"model", node.key)
        )


def trust_files(memory: CacheManager) -> None:
    if memory.disk is None:
        return
    write = memory.disk.files._write

    def load_unchecked(cls, name, item):
        path = memory.disk.files._path(cls, name)
        if path.exists():
            write(cls, item, path.read_bytes()[-ITEM_BYTES:])
            return "end"
        return None

    memory.disk.files.load = load_unchecked


def leak_truncated_pages(memory: CacheManager) -> None:
    truncate = memory.truncate

    def truncate_and_hold(sequence, length):
        held = sequence.pages[-1:]
        truncate(sequence, length)
        if held and held != sequence.pages[-1:]:
            memory.arena.references[ItemClass.PAGE][held[0]] = 1
            memory.arena.free[ItemClass.PAGE].remove(held[0])

    memory.truncate = truncate_and_hold


def free_truncated_page_in_use(memory: CacheManager) -> None:
    truncate = memory.truncate

    def truncate_too_far(sequence, length):
        truncate(sequence, length)
        if sequence.pages and length % GRID:
            memory.arena.release(ItemClass.PAGE, sequence.pages.pop())

    memory.truncate = truncate_too_far


def keep_rejected_tokens(memory: CacheManager) -> None:
    truncate = memory.truncate

    def truncate_tokens_alone(sequence, length):
        computed = sequence.computed
        truncate(sequence, length)
        if length < computed and length % GRID:
            sequence.computed = length + 1

    memory.truncate = truncate_tokens_alone


def count_every_draft(memory: CacheManager) -> None:
    accept = memory.accept

    def accept_all(sequence, num_tokens, *, num_drafts):
        accept(sequence, min(num_drafts, num_tokens + 1), num_drafts=num_drafts)

    memory.accept = accept_all


def trust_state_after_drafts(memory: CacheManager) -> None:
    accept = memory.accept

    def accept_without_rewinding(sequence, num_tokens, *, num_drafts):
        accept(sequence, num_tokens, num_drafts=num_drafts)
        sequence.was_truncated = False

    memory.accept = accept_without_rewinding


def go_on_behind_wrong_drafts(memory: CacheManager) -> None:
    accept = memory.accept

    def take_what_was_written(sequence, num_tokens, *, num_drafts):
        before = sequence.working_copy
        accept(sequence, num_tokens, num_drafts=num_drafts)
        sequence.working_copy = 1 - before

    if memory.shape.working_copies > 1:
        memory.accept = take_what_was_written


def go_on_before_right_drafts(memory: CacheManager) -> None:
    accept = memory.accept

    def keep_what_was_read(sequence, num_tokens, *, num_drafts):
        before = sequence.working_copy
        accept(sequence, num_tokens, num_drafts=num_drafts)
        sequence.working_copy = before

    memory.accept = keep_what_was_read


def go_back_one_row_late(memory: CacheManager) -> None:
    commit = memory.commit

    def commit_a_row_late(sequence, num_tokens, *, num_drafts=0):
        commit(sequence, num_tokens, num_drafts=num_drafts)
        if sequence.working_length > sequence.checkpoint_length:
            sequence.working_length += 1

    memory.commit = commit_a_row_late


def tell_of_all(memory: CacheManager) -> None:
    insert = memory.trie.insert

    def insert_and_tell(parent, key, page):
        node = insert(parent, key, page)
        memory.trie.known.add(node)
        return node

    memory.trie.insert = insert_and_tell


def tell_of_nothing_lost(memory: CacheManager) -> None:
    memory.trie.known.drop = lambda node: None


# ways in which real engines were broken; those without a function are planted in the fake model
PLANTED = {
    "fold in place on a shared state": fold_in_place,
    "results permuted between rows": None,
    "a prefix used without its state": use_without_state,
    "grid by packed offset": None,
    "an unfinished block published": publish_unfinished,
    "log not reset at a checkpoint": None,
    "a state kept at the wrong edge": keep_at_wrong_edge,
    "a state rounded only where it is kept": None,
    "a shared page freed": free_shared_page,
    "a dropped state never freed": keep_dropped_state,
    "the state that a reply goes on from freed": free_thinned_checkpoint,
    "another item written to disk": write_another_item,
    "files named by a block alone": name_blocks_by_their_own_tokens,
    "files not checked": trust_files,
    "a truncated sequence not rewound": None,
    "rewound with a rejected row": None,
    "a fork without its working state": None,
    "a truncated page never freed": leak_truncated_pages,
    "a page freed that is not truncated": free_truncated_page_in_use,
    "a rejected token taken for computed": keep_rejected_tokens,
    "what follows a draft drawn a token late": None,
    "a wrong draft taken for computed": count_every_draft,
    "a working state kept after a wrong draft": trust_state_after_drafts,
    "drafts computed beyond the block": None,
    "the states behind wrong drafts gone on from": go_on_behind_wrong_drafts,
    "the states before right drafts gone on from": go_on_before_right_drafts,
    "a row that was kept not computed again": go_back_one_row_late,
    "told of blocks behind the deepest state": tell_of_all,
    "not told of what was evicted": tell_of_nothing_lost,
}


# caught after hundreds of examples, which take seconds
RARE = {
    "a row that was kept not computed again",
    "files named by a block alone",
    "the states behind wrong drafts gone on from",
    "told of blocks behind the deepest state",
    "a working state kept after a wrong draft",
    "a rejected token taken for computed",
    "a truncated sequence not rewound",
    "a wrong draft taken for computed",
}
DRAFT_BUGS = {
    "what follows a draft drawn a token late",
    "a wrong draft taken for computed",
    "a working state kept after a wrong draft",
    "drafts computed beyond the block",
    "the states behind wrong drafts gone on from",
    "the states before right drafts gone on from",
    "a row that was kept not computed again",
}
DISK_BUGS = {"another item written to disk", "files named by a block alone", "files not checked"}


def plant(memory: CacheManager, bugs: frozenset[str]) -> None:
    for bug in bugs:
        breaks = PLANTED[bug]
        if breaks is not None:
            breaks(memory)


def profile(examples: int, *, steps: int = 30) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


def test_random_use_keeps_every_invariant():
    run_state_machine_as_test(EngineMachine, settings=profile(150))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_use_keeps_every_invariant_at_length():
    run_state_machine_as_test(EngineMachine, settings=profile(5000, steps=50))


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=pytest.mark.slow if bug in RARE else []) for bug in PLANTED]
)
def test_a_planted_bug_is_caught(bug):
    broken = type("Broken", (EngineMachine,), {"bugs": frozenset({bug})})
    # most are caught within a few; objects in sets have other orders in each process
    plan = settings(profile(3000), phases=[Phase.generate])
    with pytest.raises((AssertionError, KeyError, IndexError, TypeError, ValueError)):
        run_state_machine_as_test(broken, settings=plan)
