"""What a step is made of: who is in it with how many tokens, and what is computed only once."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.outputs import FinishReason, TokenOutput
from blazr.engine.request import PromptEmbeddings, Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import (
    MAX_COMPARED,
    MOST_OVERTAKEN,
    SHORT_PROMPT,
    SHORT_SHARE,
    Scheduler,
    StepPlan,
    _shared_length,
)
from blazr.engine.sequence import Phase, Sequence
from tests.support.drafts import EagerSpeculator, GuessingDrafter, eager_speculator
from tests.support.fake_model import VOCAB as DRAWN
from tests.support.fake_model import FakeModel, next_token, outlook, scored
from tests.support.seeds import examples

GRID = 16
VOCAB = 1000  # of prompts; what is drawn is one of a few


class Steps:
    """An engine with memory for everybody, that looks at each step before it is computed.

    Args:
        kinds: Which memory the model has.
        max_running: Most sequences at once.
        budget: Tokens in a step.
        superpages: Of eight pages or states, beside those that all states need.
        copies: Working states of each sequence.
    """

    def __init__(
        self,
        *,
        kinds: str = "hybrid",
        max_running: int = 8,
        budget: int = 64,
        superpages: int = 200,
        copies: int = 1,
        drafts: bool = False,
        cuts_prompts: bool = True,
    ) -> None:
        shape = CacheShape(
            grid=GRID,
            num_superpages=superpages + 2 * max_running + 1,
            pages_per_superpage=0 if kinds == "recurrent" else 8,
            states_per_superpage=0 if kinds == "attention" else 8,
            max_running=max_running,
            max_blocks=512,
            working_copies=copies,
        )
        self.memory = CacheManager(shape)
        self.model = FakeModel(self.memory)
        speculator = None
        if drafts:
            drafter = GuessingDrafter(next_token, DRAWN, 0.7)
            speculator = eager_speculator(drafter, shape)
        self.scheduler = Scheduler(
            self.memory, token_budget=budget, speculator=speculator, cuts_prompts=cuts_prompts
        )
        self.engine = Engine(self.scheduler, self.execute, vocab_size=VOCAB, max_seq_len=8192)
        self.plans: list[StepPlan] = []
        self.outputs: list[TokenOutput] = []
        self.count = 0
        self.fails: set[int] = set()
        self.prefill: int | None = None
        self.broken: AssertionError | None = None

    def ask(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 1,
        replies: int = 1,
        salt: str = "",
        priority: int = 0,
        scores: int | None = None,
        **more,
    ) -> int:
        self.count += 1
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, n=replies, prompt_logprobs=scores
        )
        request = Request(
            prompt_ids=tuple(prompt), params=params, cache_salt=salt, priority=priority, **more
        )
        self.engine.add(request, request_id=self.count, now=0.0, seed=0)
        return self.count

    def execute(self, plan: StepPlan):
        self.plans.append(plan)
        try:
            self.look(plan)
        except AssertionError as error:  # of which the engine makes a failed step
            self.broken = error
        if any(row.sequence.request_id in self.fails for row in plan.rows):
            raise RuntimeError("cannot be computed")
        return self.model.execute(plan)

    def look(self, plan: StepPlan) -> None:
        """What holds of every step."""
        running = self.scheduler.running
        rows = {row.sequence: row for row in plan.rows}
        assert len(rows) == len(plan.rows)
        assert set(rows) <= set(running)
        for row in plan.rows:
            fresh = row.num_tokens - len(row.drafts)
            assert 0 < fresh <= row.sequence.remaining
            assert row.samples == (fresh == row.sequence.remaining)
            assert row.samples or not row.drafts
            assert row.decodes == (row.sequence.remaining == 1)
        alone = [row.num_tokens == 1 and row.samples for row in plan.rows]
        assert alone == sorted(alone, reverse=True), "those that decode come first"
        assert plan.num_decodes == sum(alone)
        assert plan.num_tokens == sum(row.num_tokens for row in plan.rows)
        for fork in plan.forks:
            assert fork.sequence.phase is Phase.WAITING
            assert fork.length == fork.source.computed + rows[fork.source].num_tokens
            other, own = fork.source.tokens, fork.sequence.tokens
            assert other[: fork.length] == own[: fork.length]
            assert fork.samples == (fork.length == len(own))
        places = [each.run_slot for each in running] + [fork.run_slot for fork in plan.forks]
        assert len(set(places)) == len(places) <= self.memory.shape.max_running

    def step(self) -> list[TokenOutput]:
        found = self.engine.step(0.0, self.prefill)
        if self.broken is not None:
            raise self.broken
        self.outputs += found
        return found

    def run(self, most: int = 3000) -> None:
        for _ in range(most):
            if not self.engine.has_work():
                return
            self.step()
        raise AssertionError("it never ends")

    def run_until_idle_but_for(self, count: int) -> None:
        """Go on until no more than so many run, all of which decode."""
        while len(self.scheduler.running) > count or self.scheduler.waiting:
            self.step()
        assert all(each.remaining == 1 for each in self.scheduler.running)

    @property
    def computed(self) -> int:
        return self.engine.counts.computed_tokens

    def running(self) -> list[int]:
        return [each.request_id for each in self.scheduler.running]

    def started(self) -> set[int]:
        return {each.request_id for each in self.outputs}


def prompt_of(length: int, first: int = 1) -> list[int]:
    """Begins with a token of its own, so that it shares nothing."""
    return [first, *(place % 97 for place in range(1, length))]


class FullSteps(Steps):
    """Looks at how full steps are, too; for prompts that share nothing."""

    def look(self, plan: StepPlan) -> None:
        super().look(plan)
        sizes = {row.sequence: row.num_tokens for row in plan.rows}
        running = self.scheduler.running
        decoding = [each for each in running if each.remaining == 1]
        reading = [each for each in running if each.remaining > 1]
        assert all(sizes.get(each, 0) >= 1 for each in decoding)
        room = max(self.scheduler.token_budget - len(decoding), 1)
        most = room
        if decoding and self.prefill is not None:
            most = min(room, max(self.prefill, SHORT_SHARE))
        short = [
            each
            for each in reading[1:]
            if each.remaining <= SHORT_PROMPT and each.order[0] == reading[0].order[0]
        ]
        long = [each for each in reading if each not in short]
        read = [sizes.get(each, 0) for each in long]
        unread = [each.remaining for each in long]
        half = min(max(most // 2, SHORT_SHARE), sum(unread), room)
        assert sum(read) >= half
        beside = sum(sizes.get(each, 0) for each in short)
        assert sum(read) + beside <= max(most, min(room, half + SHORT_SHARE * len(short)))
        if len(short) <= 1:
            assert sum(read) + beside >= min(most, sum(each.remaining for each in reading))
        if room - half >= SHORT_SHARE * len(short):
            assert all(sizes.get(each, 0) >= min(SHORT_SHARE, each.remaining) for each in short)
        # long prompts are read one after the other
        unfinished = [done < wanted for done, wanted in zip(read, unread, strict=True)]
        assert not any(unfinished) or not any(read[unfinished.index(True) + 1 :])
        if any(row.drafts for row in plan.rows):
            assert not reading
            assert plan.num_tokens <= max(self.scheduler.token_budget, len(decoding))


@settings(max_examples=examples(240), deadline=None)
@given(
    budget=st.sampled_from([1, 8, 16, 40, 100]),
    prefill=st.sampled_from([None, None, 0, 8, 20, 64]),
    asked=st.lists(
        st.tuples(st.integers(1, 150), st.sampled_from([1, 3, 30]), st.sampled_from([0, 0, 0, 1])),
        min_size=1,
        max_size=8,
    ),
    gap=st.integers(0, 3),
    drafts=st.booleans(),
)
def test_a_step_is_as_full_as_may_be(budget, prefill, asked, gap, drafts) -> None:
    """Who decodes is in every step; the rest of it is read, half of it of the long prompts."""
    steps = FullSteps(budget=budget, kinds="attention", drafts=drafts)
    steps.prefill = prefill
    for number, (length, max_tokens, priority) in enumerate(asked):
        steps.ask(prompt_of(length, 100 + number), max_tokens=max_tokens, priority=priority)
        for _ in range(gap):
            steps.step()
    steps.run()
    assert steps.started() == set(range(1, len(asked) + 1))
    scheduler = steps.scheduler
    assert scheduler.counts.reuse.total() == len(asked)
    assert scheduler.counts.prompt_tokens == sum(length for length, *_ in asked)
    assert not scheduler.counts.preempted
    ended = [each for each in steps.outputs if each.finish_reason is not None]
    assert scheduler.counts.drafts == sum(each.num_drafts for each in ended)
    assert scheduler.counts.kept_drafts == sum(each.num_kept_drafts for each in ended)
    drafted = sum(any(row.drafts for row in plan.rows) for plan in steps.plans)
    assert drafted <= scheduler.counts.draft_steps
    assert bool(drafted) == bool(scheduler.counts.draft_steps)
    most = sum(length + max_tokens - 1 for length, max_tokens, _ in asked)
    assert steps.computed == most + scheduler.counts.drafts - scheduler.counts.kept_drafts


@settings(max_examples=examples(160), deadline=None)
@given(
    kinds=st.sampled_from(["hybrid", "recurrent", "attention"]),
    budget=st.sampled_from([5, 16, 64, 300]),
    length=st.integers(2 * GRID, 250),
    others=st.lists(st.tuples(st.integers(GRID, 250), st.integers(0, 40)), min_size=1, max_size=3),
    replies=st.integers(1, 4),
    max_tokens=st.integers(1, 20),
    scores=st.sampled_from([None, None, 0, 2]),
)
def test_what_several_share_is_computed_once(
    kinds, budget, length, others, replies, max_tokens, scores
) -> None:
    """But for less than a block of each; and of replies to one prompt nothing at all."""
    steps = Steps(kinds=kinds, budget=budget, max_running=16)
    first = [place * place % 97 for place in range(length)]
    steps.ask(first, max_tokens=max_tokens, scores=scores)
    expected = length + max_tokens - 1
    for number, (shared, more) in enumerate(others):
        prompt = [*first[:shared], *([100 + number] * more)]
        # one token of a prompt is always computed; of one that is scored no more is reused
        at = min(shared, len(first), len(prompt) - 1)
        if at < GRID or len(prompt) < 2:
            return
        steps.ask(prompt, max_tokens=max_tokens, scores=scores)
        if scores is not None:
            at = min(at, length - 1)
        expected += len(prompt) - at + max_tokens - 1
    steps.run()
    assert expected <= steps.computed < expected + GRID * len(others)
    if len(others) == 1 and budget > length:
        assert steps.computed == expected
    counts = steps.scheduler.counts
    replied = (1 + len(others)) * (max_tokens - 1)
    assert counts.cached_tokens == counts.prompt_tokens - (steps.computed - replied)
    before = steps.computed
    own = [500, *first]
    steps.ask(own, max_tokens=max_tokens, replies=replies)
    steps.run()
    assert steps.computed - before == len(own) + replies * (max_tokens - 1)
    ended = [each for each in steps.outputs if each.finish_reason is not None]
    assert Counter(each.reuse for each in ended) == counts.reuse
    cached = {each.index: each.num_cached_tokens for each in ended[-replies:]}
    assert cached == {index: len(own) if index else 0 for index in range(replies)}
    assert len(steps.memory.free_run_slots) == 16


def test_replies_to_one_prompt_begin_as_slots_become_free() -> None:
    steps = Steps(max_running=3, budget=64)
    prompt = prompt_of(100)
    steps.ask(prompt, max_tokens=5, replies=7)
    steps.run()
    texts = {index: [] for index in range(7)}
    for each in steps.outputs:
        texts[each.index] += each.token_ids
    assert len({tuple(text) for text in texts.values()}) == 1
    assert max(len({row.sequence for row in plan.rows}) for plan in steps.plans) == 3
    # of three that begin together one computes what is behind the last whole block
    assert steps.computed == 100 + 2 * (100 - 96) + 7 * 4


def oracle_scores(prompt: list[int], num_top: int) -> list:
    return [
        None,
        *(
            scored(outlook(prompt[:place], grid=GRID), prompt[place], num_top)
            for place in range(1, len(prompt))
        ),
    ]


@settings(max_examples=examples(120), deadline=None)
@given(
    kinds=st.sampled_from(["hybrid", "recurrent", "attention"]),
    budget=st.sampled_from([5, 16, 64]),
    asked=st.lists(
        st.tuples(
            st.integers(0, 90),
            st.integers(0, 30),
            st.integers(0, 2),
            st.sampled_from([None, 0, 1, 3]),
            st.integers(0, 8),
        ),
        min_size=2,
        max_size=7,
    ),
)
def test_scores_of_prompts_are_right_however_much_is_shared(kinds, budget, asked) -> None:
    steps = Steps(kinds=kinds, budget=budget, max_running=4)
    base = [place * place % 97 for place in range(90)]
    prompts = {}
    for shared, more, tail, scores, gap in asked:
        prompt = [*base[:shared], *([100 + tail] * more)] or [0]
        request_id = steps.ask(prompt, scores=scores)
        prompts[request_id] = prompt, scores
        for _ in range(gap):
            steps.step()
    steps.run()
    for each in steps.outputs:
        prompt, scores = prompts[each.request_id]
        if scores is None:
            assert each.prompt_logprobs is None
        else:
            assert each.prompt_logprobs is not None
            assert list(each.prompt_logprobs) == oracle_scores(prompt, scores)


def test_a_scored_prompt_is_reused_if_as_much_is_known_of_it() -> None:
    """Scores of as many of the likeliest, or more; and of no prompt that nobody scored."""
    base = prompt_of(100)
    for known, wanted, is_reused in ((2, 2, True), (3, 1, True), (1, 2, False), (None, 0, False)):
        steps = Steps(kinds="attention")
        steps.ask(base, scores=known)
        steps.run()
        steps.ask(base, scores=wanted)
        steps.run()
        assert (steps.outputs[-1].num_cached_tokens > 0) == is_reused
        steps.ask(base)
        steps.run()
        assert steps.outputs[-1].num_cached_tokens == 96
        # and so it is by those who come while it is read
        steps = Steps(kinds="attention", budget=16)
        steps.ask(base, scores=known)
        steps.ask(base, scores=wanted)
        steps.run()
        assert (steps.computed < 150) == is_reused


def test_scores_are_shared_up_to_the_last_token_but_one_of_the_shorter_prompt() -> None:
    """Its last token's score is known, but not what it says of the next."""
    steps = Steps(kinds="attention", budget=8)
    base = prompt_of(40)
    steps.ask(base, scores=0)
    steps.ask([*base, 300, 301], scores=0)
    steps.run()
    assert steps.computed == 40 + 3


def test_short_contexts_are_worth_sharing_where_answers_are_scored() -> None:
    """Those come many to one; others wait for a whole block at least."""
    for scores in (None, 0):
        for shared in (3, 4, 5, 15, 16, 17):
            steps = Steps(kinds="attention", budget=8)
            base = prompt_of(40)
            steps.ask(base, scores=scores)
            steps.ask([*base[:shared], 300, 301], scores=scores)
            steps.run()
            least = GRID if scores is None else GRID // 4
            is_shared = shared >= least
            assert (steps.scheduler.counts.held > 0) == is_shared
            # behind a whole block too little is left to wait for
            alone = shared % GRID if is_shared and shared >= GRID else 0
            assert steps.computed == 40 + 2 + (alone if is_shared else shared)


@pytest.mark.parametrize(("pooling", "is_shared"), [("mean", False), ("last", True)])
def test_means_need_the_whole_prompt(pooling, is_shared) -> None:
    prompt = prompt_of(100)
    found = []
    steps = Steps(budget=30)
    steps.ask(prompt)
    for _ in range(2):
        steps.ask(prompt, pooling=pooling)
        steps.run()
        assert (steps.outputs[-1].num_cached_tokens > 0) == is_shared
        found.append(list(steps.outputs[-1].embedding))
    states = [outlook(prompt[: end + 1], grid=GRID) % 1024 for end in range(100)]
    right = sum(states) / 100 if pooling == "mean" else states[-1]
    assert found == [[pytest.approx(right)]] * 2


def test_only_so_many_that_wait_are_compared() -> None:
    """Comparing takes time, in which nobody decodes. Who is first in line waits no step for it."""
    for waiting, starts in ((MAX_COMPARED - 1, True), (MAX_COMPARED, False)):
        steps = Steps(max_running=100, budget=16, superpages=900)
        base = prompt_of(200)
        steps.ask(base)
        steps.step()
        for number in range(waiting):
            steps.ask([*base[:150], 200 + number])
        other = steps.ask(prompt_of(20, 900))
        steps.step()
        assert (other in steps.running()) == starts
        assert steps.scheduler.counts.held == min(waiting, MAX_COMPARED)


@pytest.mark.parametrize(("unread", "queues"), [(127, False), (128, True), (129, True)])
def test_long_prompts_wait_until_the_next_steps_have_room_for_them(unread, queues) -> None:
    """Two steps' tokens are to be read; short prompts and those in memory count for nothing."""
    steps = Steps(budget=64)
    for place in range(3):
        steps.ask(prompt_of(60, 200 + place), max_tokens=50)
    known = prompt_of(200, 300)
    steps.ask(known)
    steps.run_until_idle_but_for(3)
    steps.ask(prompt_of(unread, 400))
    steps.scheduler._admit()
    long = steps.ask(prompt_of(SHORT_PROMPT + 1, 500))
    short = steps.ask(prompt_of(SHORT_PROMPT, 600))
    again = steps.ask(known)
    steps.scheduler._admit()
    assert (long in steps.running()) != queues
    assert {short, again} <= set(steps.running())
    steps.run()


def test_a_prompt_of_which_little_is_new_is_short() -> None:
    for new, is_short in ((SHORT_PROMPT, True), (SHORT_PROMPT + 1, False)):
        steps = Steps(budget=64, kinds="attention")
        known = prompt_of(10 * GRID, 300)
        steps.ask([*known, 1])
        steps.run()
        steps.ask(prompt_of(1000, 400))
        steps.scheduler._admit()
        other = steps.ask([*known, *[7] * new])
        assert steps.scheduler._is_short(steps.scheduler.waiting[-1]) == is_short
        steps.scheduler._admit()
        assert (other in steps.running()) == is_short


def test_so_many_may_overtake_one_that_has_no_room() -> None:
    steps = Steps(max_running=4, budget=512, superpages=8, kinds="attention")
    first = steps.ask(prompt_of(1900, 200), max_tokens=200)
    steps.step()
    barred = steps.ask(prompt_of(1500, 201))
    overtook = 0
    while first in steps.running():
        short = steps.ask(prompt_of(10, 300 + overtook))
        steps.step()
        if short not in steps.started():
            break
        overtook += 1
    assert overtook == MOST_OVERTAKEN
    assert steps.scheduler.waiting[0].request_id == barred
    assert steps.scheduler.waiting[0].num_overtaken == MOST_OVERTAKEN


def test_who_has_no_room_is_passed_by_short_ones_of_its_priority_alone() -> None:
    steps = Steps(max_running=4, budget=512, superpages=8, kinds="attention")
    steps.ask(prompt_of(1900, 200), max_tokens=200)
    steps.step()
    steps.ask(prompt_of(1500, 201))
    later = steps.ask(prompt_of(10, 202), priority=1)
    long = steps.ask(prompt_of(SHORT_PROMPT + 1, 203))
    short = steps.ask(prompt_of(10, 204))
    steps.step()
    assert short in steps.started()
    assert not {later, long} & set(steps.running())


@pytest.mark.parametrize("waits", [False, True])
def test_after_a_failure_each_runs_alone_until_it_is_past_it(waits) -> None:
    steps = Steps(max_running=3, budget=64)
    asked = [steps.ask(prompt_of(40, 200 + place), max_tokens=9) for place in range(3)]
    for _ in range(4):
        steps.step()
    if waits:
        steps.ask(prompt_of(40, 300), max_tokens=9)
    steps.fails.add(asked[1])
    steps.step()
    failed = len(steps.plans)
    reached = {row.sequence: row.sequence.computed for row in steps.plans[-1].rows}
    assert not steps.running()
    for _ in range(3):
        steps.step()
    for plan, request_id in zip(steps.plans[failed:], asked, strict=True):
        assert [row.sequence.request_id for row in plan.rows] == [request_id]
    errors = [each.request_id for each in steps.outputs if each.finish_reason == "error"]
    assert errors == [asked[1]]
    steps.run()
    done = {each.request_id for each in steps.outputs if each.finish_reason is FinishReason.LENGTH}
    assert done == set(range(1, steps.count + 1)) - {asked[1]}
    assert len(reached) == 3
    assert not steps.scheduler._suspects
    assert len(steps.memory.free_run_slots) == 3


def test_a_failed_step_gives_back_what_was_for_others() -> None:
    """Replies that were to begin in it begin later."""
    steps = Steps(max_running=4, budget=64)
    asked = steps.ask(prompt_of(40), max_tokens=3, replies=4)
    steps.fails.add(asked)
    steps.step()
    assert len(steps.plans[-1].forks) == 3
    ended = [each for each in steps.outputs if each.finish_reason is FinishReason.ERROR]
    assert [each.index for each in ended] == [0]
    assert len(steps.memory.free_run_slots) == 4
    steps.fails.clear()
    steps.run()
    assert sorted(each.index for each in steps.outputs if each.finish_reason == "length") == [
        1,
        2,
        3,
    ]
    assert steps.memory.arena.used(ItemClass.PAGE) == steps.memory.trie.num_nodes


def test_only_replies_to_a_prompt_begin_where_it_ends() -> None:
    """None of those that wait, and none that had begun before."""
    steps = Steps(budget=64)
    first = steps.ask(prompt_of(40), max_tokens=9, replies=3)
    steps.scheduler.admit_until = first
    other = steps.ask(prompt_of(50, 7))
    for _ in range(3):
        steps.step()
    assert [len(plan.forks) for plan in steps.plans] == [2, 0, 0]
    for sequence in list(steps.scheduler.running):
        steps.scheduler.preempt(sequence)
    steps.step()
    assert not steps.plans[-1].forks
    while not steps.scheduler.is_drained:
        steps.step()
    assert other not in steps.started()
    texts = {index: [] for index in range(3)}
    for each in steps.outputs:
        texts[each.index] += each.token_ids
    assert len({tuple(text) for text in texts.values()}) == 1
    assert {len(text) for text in texts.values()} == {9}


def test_short_prompts_share_what_is_theirs_of_a_step() -> None:
    """Eight tokens for each that comes later; the first of them gets the rest."""
    steps = FullSteps(budget=100, kinds="attention")
    for place in range(4):
        steps.ask(prompt_of(60 if place else 300, 200 + place))
    steps.step()
    sizes = [row.num_tokens for row in steps.plans[0].rows]
    assert sorted(sizes) == [8, 8, 34, 50]


def test_models_that_read_a_prompt_at_once() -> None:
    steps = Steps(budget=16, cuts_prompts=False)
    steps.ask(prompt_of(100))
    steps.ask(prompt_of(50, 200))
    steps.step()
    assert sorted(row.num_tokens for row in steps.plans[0].rows) == [50, 100]
    steps.run()
    assert steps.computed == 150


def test_who_comes_during_a_pause_waits_for_its_end() -> None:
    steps = Steps(max_running=1)
    assert steps.scheduler.is_drained
    first, second = (steps.ask(prompt_of(20, 200 + place), max_tokens=3) for place in range(2))
    steps.step()
    steps.scheduler.stop_admitting()
    late = steps.ask(prompt_of(20, 300))
    steps.scheduler.stop_admitting()  # says nothing new
    assert [each.request_id for each in steps.scheduler.in_turn()] == [second]
    assert not steps.scheduler.is_drained
    while not steps.scheduler.is_drained:
        steps.step()
    assert steps.started() == {first, second}
    assert [each.request_id for each in steps.scheduler.sequences()] == [late]
    steps.scheduler.admit_until = late
    steps.run()
    assert late in steps.started()


def test_a_pause_of_nothing_lets_nobody_start() -> None:
    steps = Steps()
    steps.scheduler.stop_admitting()
    steps.ask(prompt_of(20))
    assert steps.scheduler.is_drained
    assert not list(steps.scheduler.in_turn())


def test_what_is_forgotten_is_told() -> None:
    steps = Steps(kinds="attention")
    steps.ask(prompt_of(100), max_tokens=2)
    steps.run()
    running = steps.ask(prompt_of(50, 200), max_tokens=20)
    steps.step()
    assert steps.scheduler.forget_prefixes(restarts=False) == 100 // GRID
    assert steps.memory.trie.num_nodes == 50 // GRID
    assert steps.running() == [running]
    assert steps.scheduler.forget_prefixes(restarts=True) == 50 // GRID
    assert not steps.running()
    (again,) = steps.scheduler.waiting
    assert again.num_preemptions == 1
    before = steps.computed
    steps.run()
    assert steps.computed - before == 50 + 19
    assert steps.scheduler.counts.reuse.total() == 2
    assert steps.scheduler.counts.preempted == 1
    assert steps.outputs[-1].num_cached_tokens == 0


def test_what_ends_twice_ends_once() -> None:
    steps = Steps(max_running=2)
    for place in range(3):
        steps.ask(prompt_of(20, 200 + place), max_tokens=9)
    steps.step()
    running, waiting = steps.scheduler.running[0], steps.scheduler.waiting[0]
    for sequence in (running, waiting, running, waiting):
        steps.scheduler.finish(sequence)
        assert sequence.phase is Phase.FINISHED
        assert sequence not in steps.scheduler.sequences()
    assert len(steps.memory.free_run_slots) == 1
    assert steps.scheduler._limit == 2


class Listening(EagerSpeculator):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__([GuessingDrafter(next_token, DRAWN, 0.7)], grid=GRID)
        self.times: list[tuple[int, int, float]] = []
        self.outcomes: list[tuple[int, int, int, float]] = []
        self.rooms: list[int] = []
        self.forgotten: list[int] = []

    def propose(self, sequences, room):
        self.rooms.append(room)
        return super().propose(sequences, room)

    def learn_time(self, num_sequences, num_tokens, seconds):
        self.times.append((num_sequences, num_tokens, seconds))

    def learn_outcome(self, sequence, num_drafts, num_kept, seconds=0.0):
        self.outcomes.append((sequence.request_id, num_drafts, num_kept, seconds))

    def forget(self, sequence):
        self.forgotten.append(sequence.request_id)
        super().forget(sequence)


def test_what_drafts_brought_is_told_to_who_proposes_them() -> None:
    steps = Steps(kinds="attention", budget=20)
    speculator = steps.scheduler.speculator = Listening()
    for place in range(2):
        steps.ask(prompt_of(20, 200 + place), max_tokens=30)
    steps.run()
    pure = [plan for plan in steps.plans if all(row.decodes for row in plan.rows)]
    assert [each[:2] for each in speculator.times] == [
        (len(plan.rows), plan.num_tokens) for plan in pure
    ]
    assert all(seconds > 0 for *_, seconds in speculator.times)
    drafted = [
        (row.sequence.request_id, len(row.drafts))
        for plan in steps.plans
        for row in plan.rows
        if row.drafts
    ]
    assert [each[:2] for each in speculator.outcomes] == drafted
    assert all(seconds > 0 for *_, seconds in speculator.outcomes)
    counts = steps.scheduler.counts
    assert counts.draft_steps == len(drafted)
    assert counts.drafts == sum(number for _, number in drafted)
    assert counts.kept_drafts == sum(kept for _, _, kept, _ in speculator.outcomes)
    assert sorted(set(speculator.forgotten)) == [1, 2]
    assert set(speculator.rooms) == {18, 19}  # a step's tokens beside those of one or two
    # its outcome is what the reply shows: all that was kept came out, and one token after it
    for number in (1, 2):
        kept = [kept for each, _, kept, _ in speculator.outcomes if each == number]
        rows = [1 for plan in steps.plans for row in plan.rows if row.sequence.request_id == number]
        assert sum(kept) >= 30 - len(rows)
    waiting = steps.ask(prompt_of(5))
    steps.engine.abort(waiting)
    assert speculator.forgotten[-1] == waiting


def test_drafts_that_were_wrong_cost_no_more_than_their_step() -> None:
    """With two states of each sequence it goes back to where that step began, not to a block."""
    steps = Steps(budget=20, drafts=True, copies=2)
    steps.ask(prompt_of(20), max_tokens=60)
    steps.step()
    (sequence,) = steps.scheduler.running
    gone_back = 0
    while sequence.phase is Phase.RUNNING:
        began = sequence.computed
        steps.step()
        if sequence.was_truncated and began > sequence.checkpoint_length:
            assert sequence.working_length == began
            gone_back += 1
    assert gone_back > 3


def test_who_generates_much_starts_later() -> None:
    """Of two clients the one that was given less is next; what is read counts once."""
    steps = Steps(max_running=1)
    for client, max_tokens in (("talks", 50), ("listens", 1)) * 2:
        steps.ask(prompt_of(20, 200 + steps.count), max_tokens=max_tokens, client=(client,))
    for _ in range(3):
        steps.ask(prompt_of(20, 300 + steps.count), client=("listens",))
    steps.run()
    ended = [each.request_id for each in steps.outputs if each.finish_reason is not None]
    # 69 tokens for the first one; three times 20 for the other before it is even
    assert ended == [1, 2, 4, 5, 6, 3, 7]


def test_the_log_tells_who_starts_waits_and_gives_way(caplog) -> None:
    caplog.set_level(logging.DEBUG, "blazr.engine.scheduler")
    steps = Steps(max_running=3, budget=32, kinds="attention")
    base = prompt_of(100)
    steps.ask(base)
    steps.ask([*base[:50], 300])
    steps.ask(prompt_of(10, 400), max_tokens=5)
    steps.step()
    steps.scheduler.preempt(steps.scheduler.running[1])
    assert [record.getMessage() for record in caplog.records] == [
        "start 1.0: 0 of 100 tokens are in memory (unknown); 1 running, 2 waiting",
        "hold 2.0: it shares 50 tokens with 1.0, which computes them",
        "start 3.0: 0 of 10 tokens are in memory (short); 2 running, 1 waiting",
        "preempt 3.0 after 10 tokens; 1 go on running",
    ]


def test_turns_are_taken_in_the_order_of_the_queue() -> None:
    """Who was preempted goes back to its place."""
    steps = Steps(max_running=2)
    for place in range(4):
        steps.ask(prompt_of(20, 200 + place), max_tokens=9)
    steps.step()
    steps.scheduler.preempt(steps.scheduler.running[0])
    assert [each.request_id for each in steps.scheduler.waiting] == [1, 3, 4]
    steps.step()
    assert steps.running() == [1, 2]
    steps.run()
    assert sorted(steps.started()) == [1, 2, 3, 4]
    first = next(each for each in steps.outputs if each.request_id == 1)
    assert steps.scheduler.counts.reuse.total() == 4
    assert steps.scheduler.counts.preempted == 1
    assert first.num_cached_tokens == 0


def test_who_runs_alone_gets_the_memory_of_the_others() -> None:
    """After a failed step, and where it finds neither a slot nor room."""
    steps = Steps(max_running=2, budget=64, superpages=2, kinds="attention")
    size = steps.memory.shape.max_tokens
    asked = [steps.ask(prompt_of(size // 2 - 40, 200 + place), max_tokens=30) for place in range(2)]
    while not all(each.num_output > 3 for each in steps.scheduler.running) or not steps.plans:
        steps.step()
    steps.fails.add(asked[1])
    steps.step()
    steps.fails.clear()
    assert not steps.running()
    other = steps.ask(prompt_of(40, 300), max_tokens=3)
    steps.step()
    while steps.scheduler._suspects:
        assert len(steps.plans[-1].rows) == 1
        assert steps.plans[-1].rows[0].sequence.request_id in asked
        steps.step()
    steps.run()
    reasons = {each.request_id: each.finish_reason for each in steps.outputs}
    assert set(reasons) == {*asked, other}
    assert set(reasons.values()) == {FinishReason.LENGTH}


def waiting_sequence(tokens: list[int], parts: list[tuple[int, int, str]]) -> Sequence:
    """With vectors behind so many more tokens, for so many of them, of a picture."""
    embeddings: list[PromptEmbeddings] = []
    end = 0
    for gap, length, name in parts:
        vectors: Any = range(length)  # of which nothing but the number is asked
        digest = f"{name}{length}".encode() * 16
        embeddings.append(PromptEmbeddings(start=end + gap, vectors=vectors, digest=digest))
        end = embeddings[-1].end
    return Sequence(
        request_id=1,
        request=Request(prompt_ids=tuple(tokens), embeddings=tuple(embeddings)),
        index=0,
        order=(0, 1, 0),
        tokens=array("i", tokens),
        seed=0,
        max_length=100,
        max_output=100,
    )


parts = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2), st.sampled_from("xy")), max_size=3)


@settings(max_examples=examples(400), deadline=None)
@given(
    tokens=st.tuples(*2 * [st.lists(st.integers(0, 1), min_size=1, max_size=16)]),
    drawn=st.tuples(parts, parts),
    same=st.tuples(st.integers(0, 16), st.booleans()),
)
def test_prompts_share_what_is_the_same_at_every_place(tokens, drawn, same) -> None:
    """Tokens, and what stands for them."""
    one, other = tokens
    other = [*one[: same[0]], *other]
    pictures = (drawn[0], drawn[0] if same[1] else drawn[1])
    a, b = (waiting_sequence(*each) for each in zip((one, other), pictures, strict=True))
    pairs = zip(content_of(a), content_of(b), strict=False)
    expected = 0
    for left, right in pairs:
        if left != right:
            break
        expected += 1
    assert _shared_length(a, b) == _shared_length(b, a) == expected


def content_of(sequence: Sequence) -> list[object]:
    """What is at each place of a prompt."""
    found: list[object] = list(sequence.tokens)
    for each in sequence.request.embeddings:
        for place in range(each.start, min(each.end, len(found))):
            found[place] = (found[place], each.digest, each.start)
    return found


def test_memory_that_is_handed_out_is_told_once() -> None:
    """Pages and run slots of one step, so that they can be cleared before it."""
    steps = Steps(max_running=2, budget=40)
    for place in range(3):
        steps.ask(prompt_of(30, 200 + place), max_tokens=8)
    steps.run()
    slots = [slot for plan in steps.plans for slot in plan.fresh_run_slots]
    assert sorted(slots[:2]) == [0, 1]
    assert len(slots) == 3
    assert steps.plans[0].fresh_run_slots == tuple(slots[:2])
    pages = [page for plan in steps.plans for page in plan.fresh_pages]
    assert len(pages) == 3 * 3  # 37 tokens of each
    first = steps.plans[0]
    assert len(first.fresh_pages) == sum(-(-row.num_tokens // GRID) for row in first.rows)
    assert not steps.memory.new_pages


def test_the_prefill_that_shares_most_is_waited_for() -> None:
    """Of those that run; each is cut where others part from it, and keeps a state there."""
    steps = Steps(budget=64)
    base = prompt_of(400)
    steps.ask([*base[:100], *[301] * 300])
    steps.step()
    second = steps.ask(base)
    steps.step()
    steps.step()
    assert second in steps.running()
    third = steps.ask([*base[:200], *[302] * 10])
    steps.step()
    (running,) = [each for each in steps.scheduler.running if each.request_id == second]
    assert running.wanted[192] == "parted"
    forks = []
    while third not in steps.started():
        steps.step()
        forks += steps.plans[-1].forks
    assert [(f.sequence.request_id, f.source.request_id, f.length) for f in forks][-1] == (
        third, second, 200,
    )  # fmt: skip
    steps.run()


def test_a_reply_does_not_wait_for_one_that_has_begun() -> None:
    """Of the same request: it goes on from what is known, where the other had no room for it."""
    steps = Steps(max_running=2, budget=64, kinds="attention")
    steps.ask(prompt_of(20, 500), max_tokens=3)
    steps.ask(prompt_of(40), max_tokens=60, replies=2)
    while len(steps.outputs) < 8:
        steps.step()
    assert sorted((each.request_id, each.index) for each in steps.scheduler.running) == [
        (2, 0), (2, 1),
    ]  # fmt: skip
    steps.run()


def test_one_more_may_run_for_each_that_ends() -> None:
    """After memory had run out, up to as many as there are slots."""
    steps = Steps(max_running=4)
    for place in range(4):
        steps.ask(prompt_of(20, 200 + place), max_tokens=9)
    steps.step()
    steps.scheduler._limit = 1
    limits = []
    for sequence in steps.scheduler.running.copy():
        steps.scheduler.finish(sequence)
        limits.append(steps.scheduler._limit)
    assert limits == [2, 3, 4, 4]
