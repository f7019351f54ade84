"""A short prompt starts within ten steps, whatever else is queued; a long one still advances."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import MOST_OVERTAKEN, SHORT_PROMPT, SHORT_SHARE, Scheduler
from tests.support.fake_model import VOCAB, FakeModel

MOST_STEPS = 10
MAX_RUNNING = 16


class Harness:
    """An engine on exact memory, and who has got a first token."""

    def __init__(
        self, *, budget: int, superpages: int = 40, max_running: int = MAX_RUNNING
    ) -> None:
        shape = CacheShape(
            grid=16,
            num_superpages=superpages + 2 * max_running + 1,
            pages_per_superpage=8,
            states_per_superpage=8,
            max_running=max_running,
            max_blocks=512,
        )
        self.memory = CacheManager(shape)
        self.scheduler = Scheduler(self.memory, token_budget=budget)
        execute = FakeModel(self.memory).execute
        self.engine = Engine(self.scheduler, execute, vocab_size=VOCAB, max_seq_len=8192)
        self.count = 0
        self.started: set[int] = set()
        self.ended: set[int] = set()

    def add(self, length: int, *, max_tokens: int = 4, priority: int = 0) -> int:
        self.count += 1
        prompt = tuple((self.count + place) % VOCAB for place in range(length))
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        request = Request(
            prompt_ids=prompt, params=params, cache_salt=str(self.count), priority=priority
        )
        self.engine.add(request, request_id=self.count, now=0.0, seed=0)
        return self.count

    def step(self, prefill_budget: int | None = None) -> None:
        for output in self.engine.step(0.0, prefill_budget):
            self.started.add(output.request_id)
            if output.finish_reason is not None:
                self.ended.add(output.request_id)

    def steps_until_started(self, request_id: int, prefill_budget: int | None = None) -> int:
        for step in range(1, 2000):
            self.step(prefill_budget)
            if request_id in self.started:
                return step
        raise AssertionError("it never starts")


@settings(max_examples=30, deadline=None)
@given(
    budget=st.sampled_from([MAX_RUNNING * SHORT_SHARE, 512]),
    prefill=st.sampled_from([None, 1, 8, 100]),
    decoding=st.integers(0, 3),
    long=st.lists(st.integers(SHORT_PROMPT + 1, 700), max_size=20),
    warm=st.integers(0, 4),
    lengths=st.lists(st.integers(1, SHORT_PROMPT), min_size=1, max_size=6),
)
def test_a_short_prompt_starts_within_ten_steps(budget, prefill, decoding, long, warm, lengths):
    harness = Harness(budget=budget, superpages=200)
    for _ in range(decoding):
        harness.add(3, max_tokens=500)
    for length in long:
        harness.add(length)
    for _ in range(warm):
        harness.step(prefill)
    short = [harness.add(length) for length in lengths]
    for _ in range(MOST_STEPS):
        harness.step(prefill)
    assert harness.started >= set(short)


def test_a_stream_of_short_prompts_leaves_half_of_every_step_to_the_long_one():
    harness = Harness(budget=128)
    harness.add(100)
    long = harness.add(3200)
    steps = 0
    while long not in harness.started:
        for _ in range(4):
            harness.add(60, max_tokens=1)
        harness.step()
        steps += 1
    assert steps <= 3200 / 64 + 5


def test_who_has_no_room_is_overtaken_so_often_and_no_more():
    harness = Harness(budget=512, superpages=20, max_running=4)
    first = harness.add(1500, max_tokens=600)
    harness.step()
    second = harness.add(1500)
    while second not in harness.started:
        if first not in harness.ended:
            harness.add(30, max_tokens=1)
        harness.step()
    others = harness.started - {first, second}
    assert len(others) <= MOST_OVERTAKEN + harness.memory.shape.max_running


def test_a_short_prompt_passes_none_of_higher_priority():
    harness = Harness(budget=128)
    harness.add(1200)
    background = harness.add(20, priority=1)
    assert harness.steps_until_started(background) >= 1200 // 128


def test_no_more_prompts_run_than_the_next_steps_read():
    harness = Harness(budget=128)
    for _ in range(12):
        harness.add(1000)
    harness.step()
    assert len(harness.scheduler.running) == 1
