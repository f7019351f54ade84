"""An engine that stands still for a while: what runs, what waits, what fails meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from blazr.core.errors import CapacityError, EngineError
from blazr.engine.outputs import FinishReason
from blazr.engine.request import Request
from tests.support.scripted import wait_until
from tests.unit.engine.test_async_engine import Bench, bench, collect, right_answer

__all__ = ["bench"]

LONG = {"max_tokens": 60}
PROMPT = (1, 2, 3)


def begun(bench: Bench):
    """A long reply that has begun and cannot go on before the returned event is set."""
    at_work = threading.Event()
    go = threading.Event()

    def fault(plan) -> None:
        at_work.set()
        assert go.wait(10)

    bench.fault = fault
    _, outputs = bench.ask(PROMPT, **LONG)
    assert at_work.wait(10)
    return outputs, go


def test_what_is_kept_goes_on_where_it_stood(bench: Bench) -> None:
    outputs, go = begun(bench)
    stopped = bench.engine.pause(finishes=False)
    go.set()
    stopped.result(10)
    assert bench.engine.is_paused
    steps = bench.engine.stats()["steps"]
    _, late = bench.ask()
    assert bench.engine.call(lambda: "still there") == "still there"
    assert bench.engine.health().ok
    assert bench.engine.stats()["steps"] == steps
    bench.engine.resume()
    assert collect(outputs)[0] == right_answer(PROMPT, 60)
    assert collect(late)[0] == right_answer(PROMPT)


def test_what_runs_is_finished_and_what_comes_waits(bench: Bench) -> None:
    outputs, go = begun(bench)
    stopped = bench.engine.pause(finishes=True)
    late = [bench.ask((n, 1))[1] for n in range(4)]
    again = bench.engine.pause(finishes=True)
    wait_until(lambda: bench.engine.stats()["num_waiting"] == 0 and not stopped.done())
    go.set()
    stopped.result(10)
    again.result(10)
    assert bench.engine.stats()["num_running"] == 0
    assert collect(outputs)[0] == right_answer(PROMPT, 60)
    assert all(each.empty() for each in late)
    bench.engine.resume()
    assert [collect(each)[0] for each in late] == [right_answer((n, 1)) for n in range(4)]


def test_a_pause_begins_as_well_where_what_runs_is_aborted(bench: Bench) -> None:
    outputs, go = begun(bench)
    stopped = bench.engine.pause(finishes=True)
    (running,) = bench.engine.running()
    bench.engine.abort(running.request_id)
    go.set()
    stopped.result(10)
    assert bench.engine.is_paused
    assert collect(outputs)[1].finish_reason is FinishReason.ABORT
    bench.engine.resume()
    assert collect(bench.ask()[1])[0] == right_answer(PROMPT)


def test_a_pause_of_nothing_is_at_once_and_whoever_waits_cannot_take_it_back(bench: Bench) -> None:
    stopped = bench.engine.pause(finishes=True)
    assert not stopped.cancel()
    stopped.result(10)
    bench.engine.resume()
    assert not bench.engine.is_paused
    bench.engine.resume()
    assert collect(bench.ask()[1])[0] == right_answer(PROMPT)


def test_a_pause_that_is_called_off(bench: Bench) -> None:
    outputs, go = begun(bench)
    stopped = bench.engine.pause(finishes=True)
    _, late = bench.ask()
    resuming = threading.Thread(target=bench.engine.resume)
    resuming.start()
    go.set()
    resuming.join(10)
    stopped.result(10)
    assert collect(outputs)[1].finish_reason is FinishReason.LENGTH
    assert collect(late)[0] == right_answer(PROMPT)
    assert not bench.engine.is_paused


def test_waiting_requests_end_and_run_out_of_time_and_the_queue_has_an_end(bench: Bench) -> None:
    bench.engine.pause(finishes=False).result(10)
    outputs = []
    impatient = Request(prompt_ids=PROMPT, timeout_s=0.01)
    bench.engine.submit(impatient, outputs.append)
    asked = [bench.ask() for _ in range(7)]
    with pytest.raises(CapacityError):
        bench.ask()
    wait_until(lambda: bool(outputs))
    assert outputs[0].finish_reason is FinishReason.TIMEOUT
    bench.engine.abort(asked[0][0])
    assert collect(asked[0][1])[1].finish_reason is FinishReason.ABORT
    bench.engine.resume()
    for _, each in asked[1:]:
        assert collect(each)[0] == right_answer(PROMPT)


def test_other_weights_undo_what_the_old_ones_computed(bench: Bench) -> None:
    outputs, go = begun(bench)
    stopped = bench.engine.pause(finishes=False)
    go.set()
    stopped.result(10)
    network = object()
    bench.engine.replace_model(network)
    assert bench.networks == [network]
    stats = bench.engine.stats()
    assert (stats["preemptions"], stats["prefix_blocks"], stats["pages_used"]) == (1, 0, 0)
    bench.engine.resume()
    assert collect(outputs)[0] == right_answer(PROMPT, 60)


def test_prefixes_are_forgotten_but_for_those_in_use(bench: Bench) -> None:
    collect(bench.ask(tuple([1, 2] * 8))[1])
    outputs, go = begun(bench)
    forgetting = threading.Thread(target=lambda: found.append(bench.engine.forget_prefixes()))
    found: list[int] = []
    forgetting.start()
    go.set()
    forgetting.join(10)
    assert found[0] >= 4
    assert collect(outputs)[0] == right_answer(PROMPT, 60)
    assert bench.engine.forget_prefixes() > 0
    assert bench.engine.forget_prefixes() == 0


def test_a_failure_on_the_way_to_a_pause_is_a_pause(bench: Bench) -> None:
    outputs, go = begun(bench)
    stopped = bench.engine.pause(finishes=True)
    bench.engine._engine.step = lambda *_: 1 / 0  # the thread itself fails
    go.set()
    stopped.result(10)
    assert collect(outputs)[1].finish_reason is FinishReason.ERROR
    assert bench.engine.is_paused
    bench.engine.resume()
    assert collect(bench.ask()[1])[0] == right_answer(PROMPT)


def test_an_engine_that_is_closed_keeps_nobody_waiting() -> None:
    bench = Bench()
    outputs, go = begun(bench)
    stopped = bench.engine.pause(finishes=True)
    go.set()
    bench.engine.close()
    stopped.result(10)
    assert collect(outputs)[1].finish_reason is not None
    for work in (bench.engine.resume, bench.engine.forget_prefixes):
        with pytest.raises((EngineError, CancelledError)):
            work()
    with pytest.raises(EngineError):
        bench.engine.pause(finishes=False)
