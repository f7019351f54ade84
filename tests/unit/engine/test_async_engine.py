"""The thread around the engine: failures are confined, health is truthful, nothing stays behind."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue

import pytest
import torch

from blazr.core.errors import CapacityError, ContextLengthError, EngineError, RequestError
from blazr.core.log import TRACE
from blazr.engine.async_engine import LOST_S, AsyncEngine
from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.outputs import FinishReason
from blazr.engine.pacing import Pacing
from blazr.engine.pulse import FAILURES
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler
from tests.support.fake_model import VOCAB, FakeModel, next_token
from tests.support.scripted import wait_until


class PanicError(BaseException):
    """Like a panic in an extension module: not an Exception."""


class Bench:
    """An engine thread over exact arithmetic, with a place to put faults."""

    def __init__(self, max_unfinished: int = 8, *, record=None, fault=lambda plan: None) -> None:
        self.fault = fault
        self.build_fault = lambda: None
        self.memories: list[CacheManager] = []
        self.networks: list[object] = []
        self.engine = AsyncEngine(
            self.build,
            logits=self.compute_logits,
            replace=self.networks.append,
            pacing=Pacing(share=2.0, token_budget=64),
            max_unfinished=max_unfinished,
        )
        if record is not None:
            self.engine.warm_up(record)

    def build(self) -> Engine:
        self.build_fault()
        shape = CacheShape(
            grid=4, num_superpages=20, pages_per_superpage=4, states_per_superpage=2,
            max_running=4, max_blocks=32,
        )  # fmt: skip
        memory = CacheManager(shape)
        self.memories.append(memory)
        model = FakeModel(memory)

        def execute(plan):
            self.fault(plan)
            return model.execute(plan)

        scheduler = Scheduler(memory, token_budget=16)
        return Engine(scheduler, execute, vocab_size=VOCAB, max_seq_len=100)

    def compute_logits(self, ids, cuts, model):
        self.fault(None)
        return torch.zeros(len(ids), VOCAB)

    def ask(self, prompt=(1, 2, 3), **params):
        outputs: SimpleQueue = SimpleQueue()
        sampling = SamplingParams(**{"temperature": 0, "max_tokens": 6, **params})
        request = Request(prompt_ids=tuple(prompt), params=sampling)
        return self.engine.submit(request, outputs.put), outputs


@pytest.fixture
def bench():
    before = set(threading.enumerate())
    bench = Bench()
    yield bench
    bench.engine.close()
    left = set(threading.enumerate()) - before
    assert not any(thread.name == "blazr-engine" for thread in left)


def collect(outputs, timeout: float = 20.0):
    tokens = []
    while True:
        output = outputs.get(timeout=timeout)
        tokens.extend(output.token_ids)
        if output.finish_reason is not None:
            return tokens, output


def right_answer(prompt, count: int = 6) -> list[int]:
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


def test_a_warm_up_computes_then_records_and_leaves_no_trace():
    seen = []
    bench = Bench(
        record=lambda sizes: seen.append(("record", sizes)),
        fault=lambda plan: seen.append(("step", plan.num_tokens)),
    )
    assert seen == [("step", 16), ("step", 1), ("record", 8)]
    stats = bench.engine.stats()
    assert not any(stats[name] for name in ("steps", "computed_tokens", "prefix_blocks"))
    tokens, end = collect(bench.ask((0,) * 16)[1])
    assert tokens == right_answer((0,) * 16)
    assert end.num_cached_tokens == 0
    bench.engine.close()


@pytest.mark.parametrize(("level", "steps"), [(logging.INFO, 0), (logging.DEBUG, 0), (TRACE, 6)])
def test_levels_tell_of_requests_and_of_steps(bench, caplog, level, steps):
    with caplog.at_level(level, "blazr"):
        collect(bench.ask((1, 2, 3))[1])
        bench.engine.close()
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("step ") for line in lines) == steps
    told = [line for line in lines if not line.startswith("step ")]
    if level == logging.INFO:
        assert not told
        return
    assert told == [
        "request 1: 3 prompt tokens, at most 6 new, 1 replies, priority 0",
        "start 1.0: 0 of 3 tokens are in memory (short); 1 running, 0 waiting",
        "request 1.0 ended: length; 3 prompt tokens, 0 of them reused (short)",
    ]


def test_a_failing_warm_up_is_logged_and_records_nothing(caplog):
    recorded = []

    def fault(plan):
        raise ValueError("broken")

    bench = Bench(record=recorded.append, fault=fault)
    assert "the warm-up failed: ValueError: broken" in caplog.text
    assert not recorded
    bench.fault = lambda plan: None
    assert collect(bench.ask((1, 2, 3))[1])[0] == right_answer((1, 2, 3))
    bench.engine.close()


def test_requests_from_many_threads_are_all_answered():
    bench = Bench(max_unfinished=64)
    results = {}

    def client(number: int) -> None:
        prompt = (number % VOCAB, 1, 2, number // VOCAB % VOCAB, 3)
        results[number] = (prompt, collect(bench.ask(prompt)[1])[0])

    threads = [threading.Thread(target=client, args=(n,)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.engine.close()
    assert len(results) == 40
    for prompt, tokens in results.values():
        assert tokens == right_answer(prompt)


@pytest.mark.parametrize("error", [ValueError("broken"), PanicError("panic")])
def test_a_failing_step_ends_its_requests_and_nothing_else(bench, error):
    def fault(plan):
        if any(2 in row.sequence.request.prompt_ids[:1] for row in plan.rows):
            raise error

    bench.fault = fault
    _, bad = bench.ask((2, 2, 2))
    _, end = collect(bad)
    assert end.finish_reason is FinishReason.ERROR
    assert str(error) in end.error
    assert bench.engine.health().ok
    assert collect(bench.ask((1, 2, 3))[1])[0] == right_answer((1, 2, 3))


def test_of_a_batch_that_fails_only_the_guilty_request_ends(bench):
    batched = []

    def fault(plan):
        batched.append(len(plan.rows))
        if any(2 in row.sequence.request.prompt_ids[:1] for row in plan.rows):
            raise PanicError("broken")

    prompts = [(1, 2, 3), (2, 2, 2), (3, 4), (1, 4, 4, 1, 0, 2)]
    all_asked = threading.Event()
    bench.fault = lambda plan: all_asked.wait()  # so that all are there before the next step
    asked = [bench.ask(prompt, n=2)[1] for prompt in prompts]
    bench.fault = fault
    all_asked.set()
    for prompt, outputs in zip(prompts, asked, strict=True):
        for _ in range(2):
            _, end = collect(outputs)
            if prompt[0] == 2:
                assert end.finish_reason is FinishReason.ERROR
        if prompt[0] != 2:
            assert end.finish_reason is FinishReason.LENGTH
    assert max(batched) > 1
    for prompt in prompts[2:]:
        assert collect(bench.ask(prompt)[1])[0] == right_answer(prompt)


def test_when_the_thread_dies_health_says_so_and_a_new_engine_takes_over(bench):
    may_restart = threading.Event()

    def fault(plan):
        raise SystemExit("dead")

    def build_fault():
        bench.fault = lambda plan: None
        may_restart.wait(10)

    bench.fault = fault
    bench.build_fault = build_fault
    _, outputs = bench.ask()
    assert collect(outputs)[1].finish_reason is FinishReason.ERROR
    wait_until(lambda: not bench.engine.health().ok)
    assert "dead" in bench.engine.health().reason
    may_restart.set()
    wait_until(lambda: bench.engine.health().ok)
    assert collect(bench.ask()[1])[0] == right_answer((1, 2, 3))
    assert bench.engine.stats()["restarts"] == 1


def test_of_a_failed_request_each_reply_ends_once_whichever_had_ended_before(bench):
    ended = []
    is_asked = threading.Event()

    def take(output):
        if output.finish_reason is not None:
            ended.append((output.index, output.finish_reason))

    def fault(plan):
        is_asked.wait()
        if ended:
            raise SystemExit("dead")
        bench.engine.abort(request_id, 0)

    bench.fault = fault
    params = SamplingParams(temperature=0, max_tokens=6, n=3)
    request_id = bench.engine.submit(Request(prompt_ids=(1, 2, 3), params=params), take)
    is_asked.set()
    wait_until(lambda: len(ended) == 3)
    error = FinishReason.ERROR
    assert ended == [(0, FinishReason.ABORT), (1, error), (2, error)]


def test_an_engine_that_cannot_be_made_again_at_once_is_tried_again(bench):
    failures = iter([SystemExit("dead")])
    refusals = iter([MemoryError("no room yet")])

    def fault(plan):
        for error in failures:
            raise error

    def build_fault():
        for error in refusals:
            raise error

    bench.fault = fault
    bench.build_fault = build_fault
    _, outputs = bench.ask()
    assert collect(outputs)[1].finish_reason is FinishReason.ERROR
    wait_until(lambda: bench.engine.stats()["restarts"] == 2)
    wait_until(lambda: bench.engine.health().ok)
    assert collect(bench.ask()[1])[0] == right_answer((1, 2, 3))


def test_nobody_waits_for_an_engine_that_cannot_be_made_again(bench):
    def fault(plan):
        raise SystemExit("dead")

    def build_fault():
        raise MemoryError("no room")

    bench.fault = fault
    bench.build_fault = build_fault
    bench.ask()
    wait_until(lambda: not bench.engine._thread.is_alive())
    assert "no room" in bench.engine.health().reason
    with pytest.raises(EngineError):
        bench.engine.resume()
    bench.engine.close()


def test_what_a_dead_engine_was_asked_gets_an_answer_whatever_it_does(bench):
    is_computing, all_asked = threading.Event(), threading.Event()

    def fault(plan):
        is_computing.set()
        all_asked.wait()
        raise SystemExit("dead")

    def fail(*_):
        raise RuntimeError("the wreck")

    bench.fault = fault
    request_id, outputs = bench.ask()
    assert is_computing.wait(10)
    bench.build_fault = fail
    wreck = bench.engine._engine
    wreck.abort = wreck.close = wreck.release = fail
    engine, results = bench.engine, SimpleQueue()

    def call():
        try:
            results.put(engine.call(lambda: "done"))
        except EngineError as error:
            results.put(error)

    engine.abort(request_id)
    threading.Thread(target=call, daemon=True).start()
    wait_until(lambda: engine._inbox.qsize() == 2)
    paused = engine.pause(finishes=False)
    all_asked.set()
    assert collect(outputs)[1].finish_reason is FinishReason.ERROR
    assert results.get(timeout=10) == "done"
    assert paused.result(timeout=10) is None
    wait_until(lambda: not engine._thread.is_alive())
    assert "wreck" in engine.health().reason


def test_an_engine_that_keeps_dying_stays_down(bench):
    def fault(plan):
        raise SystemExit("dead again")

    bench.fault = fault
    for _ in range(4):
        try:
            collect(bench.ask()[1])
        except EngineError:
            break
    wait_until(lambda: "dead again" in bench.engine.health().reason)
    with pytest.raises(EngineError):
        wait_until(lambda: bench.ask() is None)


def test_abort_frees_the_memory(bench):
    block = threading.Event()
    bench.fault = lambda plan: block.wait(10)
    request, outputs = bench.ask((1,) * 9, max_tokens=80)
    bench.engine.abort(request)
    bench.engine.abort(request)
    bench.engine.abort(12345)
    block.set()
    assert collect(outputs)[1].finish_reason is FinishReason.ABORT
    memory = bench.memories[0]
    assert memory.arena.used(ItemClass.PAGE) == memory.trie.num_idle_pages
    assert len(memory.free_run_slots) == 4


def test_the_queue_is_bounded(bench):
    block = threading.Event()
    bench.fault = lambda plan: block.wait(10)
    asked = [bench.ask() for _ in range(8)]
    with pytest.raises(CapacityError):
        bench.ask()
    block.set()
    for _, outputs in asked:
        assert collect(outputs)[0] == right_answer((1, 2, 3))
    assert collect(bench.ask(n=8)[1])[1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ((), RequestError),
        ((VOCAB,), RequestError),
        ((-1,), RequestError),
        ((0,) * 100, ContextLengthError),
    ],
)
def test_what_can_never_run_is_refused_at_once(bench, prompt, error):
    with pytest.raises(error):
        bench.ask(prompt)
    assert bench.engine.stats()["num_waiting"] == 0


def test_a_prompt_that_is_only_read_may_fill_the_context(bench):
    tokens, end = collect(bench.ask((1,) * 100, max_tokens=0)[1])
    assert (tokens, end.finish_reason) == ([], FinishReason.LENGTH)
    assert len(bench.engine.logits((1,) * 100)) == 100
    with pytest.raises(ContextLengthError, match=r"at most 100\n"):
        bench.ask((1,) * 101, max_tokens=0)


def test_a_prompt_too_long_names_both_numbers(bench):
    with pytest.raises(ContextLengthError, match=r"150 tokens.*100"):
        bench.ask((0,) * 150)


def test_a_broken_reader_ends_its_own_request(bench):
    def sink(output):
        raise RuntimeError("the reader broke")

    bench.engine.submit(Request(prompt_ids=(1, 2), params=SamplingParams(max_tokens=50)), sink)
    assert collect(bench.ask()[1])[0] == right_answer((1, 2, 3))
    wait_until(lambda: bench.engine.stats()["num_running"] == 0)


def test_generation_ends_at_the_context(bench):
    tokens, end = collect(bench.ask((1,) * 90, max_tokens=500)[1])
    assert end.finish_reason is FinishReason.LENGTH
    assert len(tokens) == 10


def test_after_close_nothing_is_accepted(bench):
    block = threading.Event()
    bench.fault = lambda plan: block.wait(10)
    _, outputs = bench.ask()
    threading.Timer(0.05, block.set).start()
    bench.engine.close()
    assert collect(outputs)[1].finish_reason in {FinishReason.ERROR, FinishReason.LENGTH}
    with pytest.raises(EngineError):
        bench.ask()
    assert not bench.engine.health().ok


@pytest.mark.parametrize("ask", [lambda each: each.engine.logits((1, 2)), lambda each: each.ask()])
def test_a_step_that_asks_the_engine_is_told_so_and_waits_for_nothing(bench, ask):
    def fault(plan):
        if plan is not None and plan.rows[0].sequence.request.prompt_ids[0] == 2:
            ask(bench)

    bench.fault = fault
    _, end = collect(bench.ask((2, 2, 2))[1])
    assert end.finish_reason is FinishReason.ERROR
    assert "within one of its own steps" in end.error
    assert collect(bench.ask((1, 2, 3))[1])[0] == right_answer((1, 2, 3))


@pytest.fixture
def _closed_once_checked(bench, monkeypatch):
    """The engine is closed behind each check that it runs, and ends unless it has to wait."""
    engine = bench.engine
    check = engine._check_running

    def check_then_close():
        check()
        threading.Thread(target=engine.close).start()
        engine._thread.join(0.1)

    monkeypatch.setattr(engine, "_check_running", check_then_close)


@pytest.mark.usefixtures("_closed_once_checked")
def test_a_request_in_the_moment_of_closing_is_refused(bench):
    request = Request(prompt_ids=(1, 2), params=SamplingParams())
    with pytest.raises(EngineError, match="closed"):
        bench.engine.submit(request, SimpleQueue().put)


@pytest.mark.usefixtures("_closed_once_checked")
def test_what_is_asked_in_the_moment_of_closing_gets_an_answer(bench):
    engine = bench.engine
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.call, lambda: "an answer")
        is_answered = bool(wait({asked}, timeout=5).done)
        while not engine._inbox.empty():  # else nobody could end the pool
            engine._inbox.get()()
    assert is_answered
    assert asked.exception() is None or "closed" in str(asked.exception())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_was_forked_is_told_so(bench):
    child = os.fork()
    if not child:
        try:
            bench.ask()
        except EngineError as error:
            os._exit("forked" not in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_deadlines(bench):
    block = threading.Event()
    bench.fault = lambda plan: block.wait(0.02)
    outputs: SimpleQueue = SimpleQueue()
    params = SamplingParams(max_tokens=90, temperature=0)
    bench.engine.submit(Request(prompt_ids=(1,), params=params, timeout_s=0.1), outputs.put)
    tokens, end = collect(outputs)
    assert end.finish_reason is FinishReason.TIMEOUT
    assert "time" in end.error
    assert tokens == right_answer((1,), len(tokens))


def test_a_stalled_step_shows_long_before_its_requests_are_given_up(bench):
    may_go_on = threading.Event()
    collect(bench.ask()[1])  # so that it is known how long a step takes
    bench.fault = lambda plan: may_go_on.wait(LOST_S)
    _, outputs = bench.ask()
    wait_until(lambda: not bench.engine.health().ok, timeout_s=LOST_S / 2)
    health = bench.engine.health()
    assert "no step has ended" in health.reason
    assert not health.is_lost
    may_go_on.set()
    wait_until(lambda: bench.engine.health().ok)
    assert collect(outputs)[0] == right_answer((1, 2, 3))


def test_an_engine_of_which_every_step_fails_is_not_healthy_until_one_succeeds(bench):
    broken = RuntimeError("every step")

    def fault(plan):
        raise broken

    bench.fault = fault
    for _ in range(FAILURES):
        assert bench.engine.health().ok
        assert collect(bench.ask()[1])[1].finish_reason is FinishReason.ERROR
    wait_until(lambda: not bench.engine.health().ok)
    health = bench.engine.health()
    assert "failed" in health.reason
    assert not health.is_lost
    # nobody asks one that is not healthy, so it tries itself
    bench.fault = lambda plan: None
    wait_until(lambda: bench.engine.health().ok)


def test_failures_between_successes_are_those_of_the_requests(bench):
    def fault(plan):
        if any(2 in row.sequence.request.prompt_ids[:1] for row in plan.rows):
            raise RuntimeError("this one")

    bench.fault = fault
    for _ in range(2 * FAILURES):
        assert collect(bench.ask((2, 2, 2))[1])[1].finish_reason is FinishReason.ERROR
        assert collect(bench.ask((1, 2, 3))[1])[0] == right_answer((1, 2, 3))
        assert bench.engine.health().ok
