"""Some seeds of the simulation, that a seed says everything, and that mistakes would be seen."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from itertools import count

import pytest

from blazr.engine import async_engine
from blazr.engine.cache.arena import ItemClass
from tests.simulation.faults import Fault, parse
from tests.simulation.run import Result, simulate

NUM_SEEDS = 20
MOST_SEEDS = 60  # in which a planted bug must show


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1)


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, 5))
def test_every_request_ends_once_and_everything_comes_back(first):
    for seed in range(first, first + 5):
        simulate(seed)


def test_the_interesting_happens():
    results = [simulate(seed) for seed in range(100, 124)]
    ends = set().union(*(each.outcomes for each in results))
    assert {"completion: ok", "completion: left", "completion: error 429"} <= ends
    assert sum(each.steps for each in results) > 2000
    assert sum(each.preempted for each in results)
    assert len({each.split(":")[0] for result in results for each in result.hit}) >= 5


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "fault",
    [
        "forward:step=7",
        "alloc:n=3",
        "publish:n=5",
        "nan:n=4",
        "text:n=9",
        "encode:n=2",
        "stall:step=3",
        "clock:jump=-3600",
        "drain:s=2",
        "publish:n=3,build:n=2",
    ],
)
def test_each_fault_happens_and_is_survived(fault):
    results = [simulate(seed, parse(fault)) for seed in range(200, 204)]
    hit = {each for result in results for each in result.hit}
    assert hit == set(fault.split(","))


def num_failed(result: Result) -> int:
    errors = ("error 500", "error in stream")
    return sum(number for how, number in result.outcomes.items() if how.endswith(errors))


@pytest.mark.sample(1)
@pytest.mark.parametrize("point", ["text", "encode", "nan"])
def test_a_failure_in_one_reply_is_no_failure_of_others(point):
    assert not num_failed(simulate(8, ()))
    for n in count(1, 101):
        result = simulate(8, (Fault(point, n),))
        assert num_failed(result) <= 1
        if not result.hit:
            break
    assert n > 101


def test_a_seed_decides_everything():
    assert simulate(3).trace == simulate(3).trace
    assert simulate(3).trace != simulate(4).trace


def test_threads_of_others_do_not_move_the_simulated_clock():
    trace = simulate(3).trace
    is_over = threading.Event()

    def look_at_the_clock() -> None:
        while not is_over.wait(0.0001):
            async_engine.time.monotonic()  # as an idle engine does, in the modules that are shared

    thread = threading.Thread(target=look_at_the_clock)
    thread.start()
    try:
        assert simulate(3).trace == trace
    finally:
        is_over.set()
        thread.join()


def test_a_seed_decides_everything_in_another_process_too():
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3"]
    env = {"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert f"trace {simulate(3).trace}" in run.stdout


def test_a_fault_that_is_none_is_refused():
    with pytest.raises(ValueError, match="there is no fault"):
        parse("forward:n=7")


def lose_a_token(simulation) -> None:
    deliver = simulation.engine._deliver
    seen = [0]

    def deliver_less(outputs):
        kept = []
        for output in outputs:
            seen[0] += output.finish_reason is None
            if output.finish_reason is not None or seen[0] % 50:
                kept.append(output)
        deliver(kept)

    simulation.engine._deliver = deliver_less


def lose_an_end(simulation) -> None:
    deliver = simulation.engine._deliver

    def deliver_less(outputs):
        deliver([each for each in outputs if each.request_id != 5])

    simulation.engine._deliver = deliver_less


def answer_twice(simulation) -> None:
    deliver = simulation.engine._deliver

    def deliver_again(outputs):
        deliver(outputs)
        deliver([each for each in outputs if each.request_id == 4])

    simulation.engine._deliver = deliver_again


def swap_answers(simulation) -> None:
    sinks = simulation.engine._sinks

    class Swapped(dict):
        def get(self, request_id, default=None):
            other = request_id + 1 if request_id % 2 else request_id - 1
            return super().get(other, super().get(request_id, default))

    simulation.engine._sinks = Swapped(sinks)


def keep_a_page_of_the_preempted(simulation) -> None:
    memory = simulation.engines[0].scheduler.memory
    release = memory.release

    def release_less(sequence, *, publish=True):
        if len(sequence.pages) > 3:
            memory.arena.share(ItemClass.PAGE, sequence.pages[0])
        release(sequence, publish=publish)

    memory.release = release_less


def stay_held(simulation) -> None:
    model = simulation.models.slots[0].model
    release = model.release
    calls = [0]

    def release_less():
        calls[0] += 1
        if calls[0] != 3:
            release()

    model.release = release_less


PLANTED = {
    "a token is lost": lose_a_token,
    "an end is lost": lose_an_end,
    "a token is said twice": answer_twice,
    "two readers are swapped": swap_answers,
    "a page is kept": keep_a_page_of_the_preempted,
    "a user is never released": stay_held,
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug):
    def run() -> None:
        for seed in range(MOST_SEEDS):
            simulate(seed, (), PLANTED[bug])

    with pytest.raises((AssertionError, RuntimeError)) as caught:
        run()
    assert "run it again: python -m tests.simulation --seed" in "".join(caught.value.__notes__)
