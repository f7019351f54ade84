"""Who runs, who waits, who gives way, and who may see whose memory."""

from __future__ import annotations

import pytest

from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.outputs import FinishReason
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler, StepPlan
from tests.support.fake_model import VOCAB, FakeModel

GRID = 16


class House:
    """An engine on exact memory, every step of which can be looked at.

    Args:
        pages: Room for about so many pages, beside the states that sequences must have.
        max_running: Most sequences at once.
        budget: Tokens in a step.
    """

    def __init__(self, *, pages: int = 800, max_running: int = 8, budget: int = 64) -> None:
        shape = CacheShape(
            grid=GRID,
            num_superpages=-(-pages // 8) + 2 + -(-(2 * max_running + 1) // 8),
            pages_per_superpage=8,
            states_per_superpage=8,
            max_running=max_running,
            max_blocks=512,
        )
        self.memory = CacheManager(shape)
        self.model = FakeModel(self.memory)
        self.scheduler = Scheduler(self.memory, token_budget=budget)
        self.engine = Engine(self.scheduler, self.execute, vocab_size=VOCAB, max_seq_len=8192)
        self.plans: list[StepPlan] = []
        self.ended: list[int] = []
        self.cached: dict[int, int] = {}
        self.fails: set[int] = set()
        self._count = 0

    def execute(self, plan: StepPlan):
        self.plans.append(plan)
        if any(row.sequence.request_id in self.fails for row in plan.rows):
            raise RuntimeError("cannot be computed")
        return self.model.execute(plan)

    def ask(self, length: int, *, max_tokens: int = 4, salt: str = "", priority: int = 0) -> int:
        """Queue a prompt that begins like all others of the same length."""
        self._count += 1
        request = Request(
            prompt_ids=tuple(place % VOCAB for place in range(length)),
            params=SamplingParams(temperature=0, max_tokens=max_tokens),
            cache_salt=salt,
            priority=priority,
        )
        self.engine.add(request, request_id=self._count, now=0.0, seed=0)
        return self._count

    def step(self, prefill_budget: int | None = None) -> None:
        for output in self.engine.step(0.0, prefill_budget):
            self.cached[output.request_id] = output.num_cached_tokens
            if output.finish_reason is not None:
                self.ended.append(output.request_id)

    def run(self, most: int = 2000) -> None:
        for _ in range(most):
            if not self.engine.has_work():
                return
            self.step()
        raise AssertionError("it never ends")

    def running(self) -> list[int]:
        return [each.request_id for each in self.scheduler.running]


@pytest.mark.parametrize(("other", "is_shared"), [("a", True), ("b", False)])
def test_a_running_prefill_is_shared_within_a_salt_alone(other, is_shared):
    house = House()
    first = house.ask(40 * GRID, salt="a")
    house.step()
    second = house.ask(40 * GRID, salt=other)
    house.run()
    computed = house.engine.stats()["computed_tokens"]
    assert (computed < 60 * GRID) == is_shared
    assert (house.cached[second] > 0) == is_shared
    assert sorted(house.ended) == [first, second]


def test_requests_of_a_higher_priority_start_first():
    house = House(max_running=1)
    running = house.ask(3 * GRID)
    house.step()
    late = house.ask(3 * GRID, salt="x", priority=5)
    usual = house.ask(3 * GRID, salt="y")
    urgent = house.ask(3 * GRID, salt="z", priority=-1)
    house.run()
    assert house.ended == [running, urgent, usual, late]


def test_the_youngest_gives_way():
    """And the oldest, which would have most to compute again, never does."""
    house = House(pages=16, max_running=6)
    asked = [house.ask(2 * GRID, max_tokens=8 * GRID, salt=str(place)) for place in range(6)]
    given_way = set()
    for _ in range(2000):
        before = set(house.running())
        house.step()
        given_way |= before - set(house.running()) - set(house.ended)
        if not house.engine.has_work():
            break
    assert given_way
    assert asked[0] not in given_way
    assert house.ended[0] == asked[0]
    assert sorted(house.ended) == asked


def test_as_many_run_again_once_memory_is_there():
    house = House(pages=16, max_running=6)
    for place in range(6):
        house.ask(2 * GRID, max_tokens=8 * GRID, salt=str(place))
    house.run()
    assert house.scheduler.counts.preempted > 0
    for place in range(6):
        house.ask(4, max_tokens=3, salt=f"again {place}")
    house.step()
    assert len(house.running()) == 6


@pytest.mark.parametrize("beside", [False, True])
def test_what_a_failed_request_computed_is_reused_by_nobody(beside):
    house = House()
    failing = house.ask(10 * GRID, salt="a")
    if beside:
        house.ask(10 * GRID, salt="b")
    house.step()
    house.step()
    house.fails.add(failing)
    house.run()
    house.fails.clear()
    again = house.ask(10 * GRID, salt="a")
    house.run()
    assert house.cached[again] == 0
    assert house.engine.stats()[f"finished_{FinishReason.ERROR}"] == 1


def test_salts_that_nobody_uses_leave_nothing():
    """Clients choose them."""
    house = House(pages=32)
    for number in range(300):
        house.ask(3 * GRID, max_tokens=2, salt=f"salt {number}")
        house.run()
    assert len(house.memory.trie._roots) < 100  # as many as there is memory for
    house.ask(4, max_tokens=2, salt="too short for a block")
    house.run()
    house.engine.scheduler.forget_prefixes(restarts=False)
    assert not house.memory.trie._roots


@pytest.mark.parametrize("budget", [0, 1, None])
def test_prompts_advance_however_little_is_left_for_them(budget):
    house = House(budget=7)  # as many tokens as decode
    for place in range(7):
        house.ask(1, max_tokens=10_000, salt=f"decodes {place}")
    house.step()
    reading = house.ask(5 * GRID, salt="reads")
    for _ in range(5 * GRID + 2):
        house.step(prefill_budget=budget)
    assert reading in house.ended or any(
        each.num_output for each in house.scheduler.running if each.request_id == reading
    )
