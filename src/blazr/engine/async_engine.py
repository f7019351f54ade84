"""The engine on a thread of its own. Requests go in through an inbox, outputs out through sinks."""

from __future__ import annotations

import atexit
import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

from blazr.core.errors import EngineError, RequestError
from blazr.core.log import TRACE
from blazr.engine.adapters import Adapter
from blazr.engine.admission import Admission
from blazr.engine.cache.disk import DiskCache
from blazr.engine.cache.known import AllRemoved, Listener
from blazr.engine.engine import Engine, refuse_closed
from blazr.engine.outputs import FinishReason, RunningReply, SlotAction, TokenOutput, describe_error
from blazr.engine.pacing import Pacing
from blazr.engine.pulse import Pulse
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler
from blazr.nn.operands.lora import LoraFactors

Sink = Callable[[TokenOutput], None]
R = TypeVar("R")
# An engine that has not come round for so long is given up: nobody waits for it any longer.
LOST_S = 30.0
# How often an engine at rest whose last requests failed is tried.
TRIAL_S = 1.0
# A process that ends waits so long for the step of an engine that nobody has closed.
EXIT_S = 10.0
MAX_RESTARTS = 3
RESTART_WINDOW_S = 60.0
# Of a warm-up: steps of up to so many sequences are recorded, and so long a prompt is read.
RECORDED_SIZES = 8
WARM_UP_TOKENS = 16

_log = logging.getLogger(__name__)
_RUNNING: WeakSet[AsyncEngine] = WeakSet()


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the engine works.

    Args:
        ok: It does.
        reason: If not, why.
        heartbeat_age_s: Seconds since the thread last came round.
        is_lost: Whether it is in vain to wait for what runs: the engine has stopped, or stalled for
            long. One that has only just stalled may go on.
    """

    ok: bool
    reason: str
    heartbeat_age_s: float
    is_lost: bool = False


@dataclass(slots=True)
class _Unfinished:
    """What is left of a request.

    Args:
        client: Whose places in the queue it takes.
        replies: Indices of the replies that have not ended.
    """

    client: tuple[str, ...]
    replies: set[int]


class AsyncEngine:
    """Runs an engine on its own thread; every method may be called from any other.

    A failure inside a step ends the requests it concerns. If the thread itself fails, what runs
    ends with an error, :meth:`health` says why, and a fresh engine takes over.

    Args:
        build: Makes the engine; called again after a failure of the thread.
        logits: Computes the scores of one sequence. Like the next three, it is called on the
            engine's thread.
        replace: Puts a network of the same config in the present one's place.
        put_adapter: Holds an adapter beside the network and returns its slot; None where the
            network takes none.
        drop_adapter: Removes the adapter of a slot.
        pacing: Balances prefill against decode.
        max_unfinished: Replies that may run or queue at once.

    Attributes:
        is_paused: Whether no step is computed until `resume`.
        lasting_failure: Says why nothing can be computed any more, whatever is tried; empty while
            it can.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        *,
        logits: Callable[[Sequence[int], Sequence[int], nn.Module | None], Tensor],
        replace: Callable[[nn.Module], None],
        pacing: Pacing,
        max_unfinished: int,
        put_adapter: Callable[[Mapping[str, LoraFactors]], int] | None = None,
        drop_adapter: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.is_paused = False
        self._build = build
        self._engine = build()
        self._logits = logits
        self._replace = replace
        self._put_adapter = put_adapter
        self._drop_adapter = drop_adapter
        self.lasting_failure: Callable[[], str] = str
        self._leaving: list[Adapter] = []  # unloaded, but still used
        self._pauses: list[Future[None]] = []  # who waits for the last step
        self._listeners: list[Listener] = []
        self._pacing = pacing
        max_running = self._engine.scheduler.memory.shape.max_running
        self._admission = Admission(max_unfinished, max_running=max_running)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._ids = itertools.count(1)
        self._sinks: dict[int, Sink] = {}
        self._unfinished: dict[int, _Unfinished] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._has_ended = False
        self._failure = ""
        self._restarts: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._num_restarts = 0
        self._pulse = Pulse()
        self._thread = threading.Thread(target=self._supervise, name="blazr-engine", daemon=True)
        self._thread.start()
        _RUNNING.add(self)

    def expect_recording(self) -> None:
        """Have patience with the present step; called by what is about to record it."""
        self._pulse.extend()

    def submit(self, request: Request, sink: Sink) -> int:
        """Queue a request. Never waits for a step.

        Args:
            request: What to generate.
            sink: Called with every output, on the engine's thread; must not block. The last output
                of each of the request's replies has a finish reason.

        Returns:
            The id of it, for :meth:`abort`.

        Raises:
            RequestError: It can never run, or asks for more replies than the queue holds.
            CapacityError: The queue is full, or the rest of it is kept for others.
            EngineError: The engine is closed, or broken for good, or it is asked from within a
                step.
        """
        self._check_caller()
        self._check_running()
        if why := self.lasting_failure():
            raise EngineError("the engine is not running.", found=why)
        self._engine.check(request)
        choices = request.params.n
        with self._lock:
            self._check_running()  # again: from now on whoever ends the engine answers
            self._admission.take(request.client, choices)
            request_id = next(self._ids)
            self._unfinished[request_id] = _Unfinished(request.client, set(range(choices)))
            self._sinks[request_id] = sink
        seed = random.getrandbits(64)
        self._inbox.put(lambda: self._add(request, request_id, seed))
        return request_id

    def abort(self, request_id: int, index: int | None = None) -> None:
        """End a request, or one of its replies, at the next step. Unknown ids are ignored."""
        self._inbox.put(lambda: self._deliver(self._engine.abort(request_id, index)))

    def logits(
        self, token_ids: Sequence[int], cuts: Sequence[int] = (), *, model: nn.Module | None = None
    ) -> Tensor:
        """Scores at every position, (T, V) float32. Waits for the step that runs now.

        Args:
            token_ids: T tokens, every id below the vocabulary size.
            cuts: Positions where the computation is interrupted and resumed from memory.
            model: Another network of the same config, to compute them with.

        Raises:
            RequestError: There is no token, or an id is out of range.
        """
        params = SamplingParams(max_tokens=0)
        self._engine.check(Request(prompt_ids=tuple(token_ids), params=params))
        return self.call(lambda: self._logits(token_ids, cuts, model))

    def pause(self, *, finishes: bool) -> Future[None]:
        """Stop until `resume`. What is submitted meanwhile waits, and may run out of time.

        Args:
            finishes: What runs or waits already is brought to its end first; else it goes on later.

        Returns:
            Done when no step is computed any more.

        Raises:
            EngineError: The engine is closed.
        """
        stopped: Future[None] = Future()
        stopped.set_running_or_notify_cancel()  # so that whoever waits cannot take it back

        def begin() -> None:
            self._pauses.append(stopped)
            if finishes and not self.is_paused:
                self._engine.scheduler.stop_admitting()
            else:
                self.is_paused = True

        self._put(begin)
        return stopped

    def resume(self) -> None:
        """Go on after `pause`.

        Raises:
            EngineError: The engine is closed.
        """

        def resume_scheduling() -> None:
            self.is_paused = False
            self._engine.scheduler.admit_until = inf
            self._end_pauses()

        self.call(resume_scheduling)

    def forget_prefixes(self, *, restarts: bool = False) -> int:
        """Forget what prompts have left for others.

        Args:
            restarts: What runs computes its own again, too; else it keeps that until it ends.

        Returns:
            How many blocks were forgotten.

        Raises:
            EngineError: The engine is closed.
        """
        return self.call(lambda: self._engine.scheduler.forget_prefixes(restarts=restarts))

    def watch_prefixes(self, listener: Listener) -> None:
        """Tell a listener which blocks a prompt could go on from, and what changes from now on.

        Args:
            listener: Called on the engine's thread; must not block.

        Raises:
            EngineError: The engine is closed.
        """

        def join() -> None:
            self._listeners.append(listener)
            self._engine.scheduler.memory.trie.tell(listener)

        self.call(join)

    def unwatch_prefixes(self, listener: Listener) -> None:
        """Tell a listener nothing any more."""

        def leave() -> None:
            self._listeners.remove(listener)
            self._engine.scheduler.memory.trie.known.leave(listener)

        self._inbox.put(leave)

    def use_slot(self, action: SlotAction, slot: int, name: str) -> int:
        """Save, restore or forget what was last computed in a slot; see `Engine.use_slot`.

        Raises:
            EngineError: The engine is closed.
            RequestError: It cannot be done.
        """
        return self.call(lambda: self._engine.use_slot(action, slot, name))

    @property
    def files(self) -> DiskCache | None:
        """Where prefixes are kept on disk, if anywhere."""
        disk = self._engine.scheduler.memory.disk
        return None if disk is None else disk.files

    def block_names(self, request: Request) -> list[bytes]:
        """The names on disk of a prompt's blocks; see `Engine.block_names`."""
        return self._engine.block_names(request)

    def keep_prompts(self, requests: Sequence[Request]) -> None:
        """Have all that is known of some prompts on disk when this returns.

        Raises:
            EngineError: The engine is closed.
        """

        def keep() -> None:
            for each in requests:
                self._engine.keep_prompt(each)

        self.call(keep)
        if self.files is not None:
            self.files.flush()

    def replace_model(self, model: nn.Module) -> None:
        """Go on with a network of the same config and other weights, between two steps.

        Nothing that the old one has computed counts any more: what runs computes its tokens again.

        Raises:
            EngineError: The engine is closed.
        """

        def replace() -> None:
            self._engine.scheduler.forget_prefixes(restarts=True)
            self._replace(model)

        self.call(replace)

    def load_adapter(
        self,
        factors: Mapping[str, LoraFactors],
        *,
        fingerprint: str,
        replaces: Adapter | None = None,
    ) -> Adapter:
        """Hold an adapter beside the network, for requests that name it.

        Args:
            factors: What it changes, by module.
            fingerprint: A hash of all that it holds, in hexadecimal.
            replaces: The adapter whose place it takes: requests that have not reached the queue get
                the new one, and those in the queue keep the old one to their ends.

        Raises:
            RequestError: The network takes none.
            CapacityError: There are too many.
            EngineError: The engine is closed.
        """
        put = self._put_adapter
        if put is None:
            raise RequestError(
                "a model that runs through transformers, or over several ranks, takes no adapters.",
                hint="merge it with PEFT's merge_and_unload(), and serve what that saves",
            )

        def load() -> Adapter:
            adapter = Adapter(slot=put(factors), fingerprint=fingerprint)
            if replaces is not None:
                replaces.successor = adapter
                self._let_go(replaces)
            return adapter

        return self.call(load)

    def unload_adapter(self, adapter: Adapter) -> None:
        """Let new requests use an adapter no longer; it goes when the last that does has ended.

        Raises:
            EngineError: The engine is closed.
        """
        self.call(lambda: self._let_go(adapter))

    def _let_go(self, adapter: Adapter) -> None:
        adapter.is_loaded = False
        self._leaving.append(adapter)
        self._drop_unused_adapters()

    def health(self) -> Health:
        """Whether the engine works, from its heartbeat rather than from the process being there."""
        allowed_s = self._pulse.allowed_s  # before the beat, which is set first
        age = time.monotonic() - self._pulse.beat_s
        reason = self._failure or self.lasting_failure()
        if not reason and (self._closing or not self._thread.is_alive()):
            reason = "the engine is stopped"
        is_lost = bool(reason)
        if not reason and age > allowed_s:
            reason = f"no step has ended for {age:.0f} s"
            is_lost = age > LOST_S
        if not reason and self._pulse.has_failed:
            reason = "the last requests all failed"
        return Health(ok=not reason, reason=reason, heartbeat_age_s=age, is_lost=is_lost)

    def stats(self) -> dict[str, float]:
        """Figures for the metrics, by name."""
        return self._engine.stats() | {"restarts": self._num_restarts}

    @property
    def has_drafters(self) -> bool:
        """Whether replies may have drafts, as ``--spec`` says."""
        return self._engine.has_drafters

    def running(self) -> list[RunningReply]:
        """How far the replies have come that are computed now."""
        return self._engine.running()

    def close(self, timeout_s: float | None = None) -> None:
        """Stop the thread; what still runs ends with an error. May be called twice.

        The thread drops the network and its caches at its end.

        Args:
            timeout_s: How long to wait for it; None waits until it has stopped.
        """
        self._closing = True
        self._inbox.put(lambda: None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def call(self, work: Callable[[], R]) -> R:
        """Run something between two steps on the engine's thread and wait for its result.

        Raises:
            EngineError: The engine is closed, or it is asked from within a step.
        """
        self._check_caller()
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  (it belongs to the caller)
                future.set_exception(error)

        self._put(run)
        return future.result()

    def warm_up(self, record: Callable[[int], None]) -> None:
        """Do once what the first request would otherwise wait for: before any is submitted.

        Some tokens are computed, which no figure counts and no prefix keeps, and usual steps are
        recorded.

        Args:
            record: Records the decode steps of 1 to that many sequences, on the engine's thread.

        Raises:
            EngineError: The engine is closed.
        """
        self.call(lambda: self._warm_up(record))

    def _warm_up(self, record: Callable[[int], None]) -> None:
        # The tokens go through an engine of their own. It uses the same memory; what it leaves
        # there is cleared as it is handed out.
        trial = self._build()
        num_prompt = min(WARM_UP_TOKENS, trial.max_seq_len - 2)
        params = SamplingParams(max_tokens=2, ignore_eos=True, seed=0)
        request = Request(prompt_ids=(0,) * num_prompt, params=params)
        try:
            trial.add(request, request_id=0, now=0.0, seed=0)
        except RequestError as error:  # a context of two tokens
            _log.debug("no warm-up: %s", error)
            return
        while trial.has_work():
            before = trial.counts.computed_tokens
            started = time.monotonic()
            outputs = trial.step(0.0)
            self._pulse.learn(trial.counts.computed_tokens - before, time.monotonic() - started)
            for output in outputs:
                if output.error is not None:
                    _log.warning("the warm-up failed: %s", output.error)
                    return
        # layers prepare some tensors in their first step, which no recording could hold
        record(RECORDED_SIZES)

    def _check_caller(self) -> None:
        # the step would wait for what only the steps after it can do
        if threading.current_thread() is self._thread:
            raise EngineError(
                "the engine is asked from within one of its own steps, which would wait forever.",
                found="a call on the engine's thread, as from a logits processor",
                expected="another thread, or a second LLM",
            )

    def _check_running(self) -> None:
        if self._closing or self._has_ended or not self._thread.is_alive():
            if not self._closing and not self._failure:
                raise EngineError(
                    "the engine is not running.",
                    found="a process that was forked, where threads of its parent do not run",
                    hint="load the model in the process that uses it",
                )
            raise EngineError("the engine is not running.", found=self._failure or "it was closed")

    def _put(self, work: Callable[[], None]) -> None:
        self._check_running()  # without the lock, which another thread may have held in a fork
        with self._lock:  # the thread takes it before it looks into the inbox for the last time
            self._check_running()
            self._inbox.put(work)

    def _end_drained_pauses(self) -> None:
        """Stop computing, if that is wanted and nothing is left that was to end before."""
        if self._pauses:
            self.is_paused = self.is_paused or self._engine.scheduler.is_drained
        if self.is_paused:
            self._end_pauses()

    def _end_pauses(self) -> None:
        while self._pauses:
            self._pauses.pop().set_result(None)

    @torch.inference_mode()  # once, as to enter it takes as long as a good part of a small step
    def _supervise(self) -> None:
        """Run until closed; after a failure start afresh, unless that keeps failing."""
        is_broken = False
        while not self._closing:
            try:
                if is_broken:
                    self._begin_afresh()  # may fail as well, and is then tried again
                    is_broken = False
                    self._end_drained_pauses()
                self._run()
            except BaseException as error:  # noqa: BLE001  (it is logged)
                is_broken = True
                self._failure = describe_error(error)
                _log.exception("the engine failed")
                self._fail_everything(f"the engine failed: {self._failure}")
                now = time.monotonic()
                is_hopeless = (
                    len(self._restarts) == MAX_RESTARTS
                    and now - self._restarts[0] < RESTART_WINDOW_S
                )
                if is_hopeless:
                    break
                self._restarts.append(now)
                self._num_restarts += 1
        if not self._failure:
            _attempt(self._engine.close)
        with self._lock:
            self._has_ended = True
        while not self._inbox.empty():  # so that nobody waits for what is in it
            _attempt(self._inbox.get())
        self._fail_everything("the engine was closed")
        self._end_pauses()
        _attempt(self._release_memory)

    def _release_memory(self) -> None:
        """Drop the network and its caches, which whoever keeps a closed engine would keep too."""
        self._engine.release()
        self._build = self._logits = self._replace = refuse_closed
        self._put_adapter = self._drop_adapter = refuse_closed

    def _begin_afresh(self) -> None:
        self._engine = self._build()
        self._drop_unused_adapters()
        for listener in self._listeners:
            listener(AllRemoved())
            self._engine.scheduler.memory.trie.tell(listener)

    def _run(self) -> None:
        self._pulse.work()
        self._failure = ""
        while not self._closing:
            self._receive()
            if self.is_paused:
                self._deliver(self._engine.expire(time.monotonic()))
                continue
            if not self._engine.has_work():
                if self._pulse.has_failed:
                    self._try_engine()
                continue
            started = time.monotonic()
            engine = self._engine
            scheduler = engine.scheduler
            before = engine.counts.computed_tokens
            drafts_before = scheduler.counts.drafts
            decodes, budget = self._expect_step(scheduler)
            outputs = engine.step(started, budget)
            computed = engine.counts.computed_tokens - before
            took_s = time.monotonic() - started
            self._note_step(outputs, computed, took_s)
            # a step that was only launched says nothing
            if scheduler.counts.drafts == drafts_before and (outputs or not decodes):
                self._pacing.learn(decodes, max(computed - decodes, 0), took_s)
            if _log.isEnabledFor(TRACE):
                self._trace_step(decodes, computed, took_s)
            self._deliver(outputs)
            if self._pauses:
                self._end_drained_pauses()

    def _trace_step(self, decodes: int, computed: int, took_s: float) -> None:
        stats = self._engine.stats()
        _log.log(
            TRACE,
            "step %d: %d tokens in %.1f ms; %d decoding, %d running, %d waiting;"
            " %d pages and %d states free",
            stats["steps"],
            computed,
            1000 * took_s,
            decodes,
            stats["num_running"],
            stats["num_waiting"],
            stats["pages_free"],
            stats["states_free"],
        )

    def _expect_step(self, scheduler: Scheduler) -> tuple[int, int | None]:
        """Let the pulse know what comes.

        Returns:
            How many sequences decode in the next step, and how many tokens of prompts are read
            beside them, at most; None where there are no prompts.
        """
        remaining = [max(each.remaining, 1) for each in scheduler.running]
        decodes = num_tokens = remaining.count(1)
        prompts = len(remaining) - decodes + len(scheduler.waiting)
        budget = None
        if prompts:
            budget = self._pacing.prefill_budget(decodes, prompts)
            most = scheduler.token_budget if not decodes else decodes + budget
            unread = sum(each.remaining for each in scheduler.waiting)
            num_tokens = min(most, sum(remaining) + unread)
        self._pulse.step(num_tokens)
        return decodes, budget

    def _note_step(self, outputs: Sequence[TokenOutput], computed: int, took_s: float) -> None:
        """Let the pulse know how long a step took, and whether requests fail."""
        if computed:
            self._pulse.learn(computed, took_s)
        for output in outputs:
            if output.finish_reason is FinishReason.ERROR:
                self._pulse.fail(output.request_id)
            elif output.finish_reason not in {FinishReason.ABORT, FinishReason.TIMEOUT}:
                self._pulse.succeed()

    def _try_engine(self) -> None:
        """Compute a token, in memory of its own, after requests have failed.

        Otherwise an engine that nobody asks, because it is not healthy, would never be healthy.
        """
        self._pulse.work()
        try:
            if self._logits((0,), (), None).isfinite().all():
                self._pulse.succeed()
        except BaseException as error:  # noqa: BLE001  (it goes on as any failing step does)
            _log.debug("the engine still fails: %s", error)

    def _receive(self) -> None:
        """Take what has come in; wait for something only when there is nothing to do."""
        while not self._closing:
            has_nothing = self.is_paused or not self._engine.has_work()
            if has_nothing:
                self._pulse.rest()
            elif self._inbox.empty():
                return
            try:
                work = self._inbox.get(block=has_nothing, timeout=TRIAL_S)
            except Empty:
                return
            self._pulse.work()
            work()
            self._end_drained_pauses()  # it may be a pause, or have ended the last that ran
            if self.is_paused:
                return

    def _add(self, request: Request, request_id: int, seed: int) -> None:
        _log.debug(
            "request %d: %d prompt tokens, at most %d new, %d replies, priority %d",
            request_id,
            len(request.prompt_ids),
            request.params.max_tokens,
            request.params.n,
            request.priority,
        )
        request = _with_latest_adapter(request)
        if request.adapter is not None and not request.adapter.is_loaded:
            message = "the adapter was unloaded before the request began"
            self._deliver(_errors(request_id, range(request.params.n), message))
            return
        try:
            self._engine.add(request, request_id=request_id, now=time.monotonic(), seed=seed)
        except BaseException as error:  # noqa: BLE001  (one request's failure is its own)
            self._deliver(_errors(request_id, range(request.params.n), describe_error(error)))

    def _deliver(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            sink = self._sinks.get(output.request_id)
            if sink is None:
                continue
            if output.finish_reason is not None:
                self._count_finished(output.request_id, output.index)
                _log.debug(
                    "request %d.%d ended: %s; %d prompt tokens, %d of them reused (%s)",
                    output.request_id,
                    output.index,
                    output.finish_reason,
                    output.num_prompt_tokens,
                    output.num_cached_tokens,
                    output.reuse,
                )
            try:
                sink(output)
            except BaseException:  # noqa: BLE001  (it is logged)
                _log.exception("a reader of request %d failed", output.request_id)
                self.abort(output.request_id)
        if self._leaving:
            self._drop_unused_adapters()

    def _drop_unused_adapters(self) -> None:
        used = {each.request.adapter for each in self._engine.scheduler.sequences()}
        for adapter in self._leaving:
            if adapter not in used:
                self._drop_adapter(adapter.slot)
        self._leaving = [each for each in self._leaving if each in used]

    def _count_finished(self, request_id: int, index: int) -> None:
        """One reply less of a request; after the last of them the request is forgotten."""
        with self._lock:
            unfinished = self._unfinished[request_id]
            unfinished.replies.discard(index)
            self._admission.give_back(unfinished.client)
            if not unfinished.replies:
                del self._unfinished[request_id]
                del self._sinks[request_id]

    def _fail_everything(self, message: str) -> None:
        for request_id, unfinished in list(self._unfinished.items()):
            _attempt(
                partial(self._deliver, _errors(request_id, sorted(unfinished.replies), message))
            )


def _with_latest_adapter(request: Request) -> Request:
    """A request that has not begun, with what took the place of its adapter since it was made."""
    adapter = request.adapter
    if adapter is None or adapter.successor is None:
        return request
    latest = adapter.latest
    salt = latest.salt(adapter.salt_without(request.cache_salt))
    return replace(request, adapter=latest, cache_salt=salt)


def _errors(request_id: int, indices: Iterable[int], message: str) -> list[TokenOutput]:
    reason = FinishReason.ERROR
    return [
        TokenOutput(request_id=request_id, index=i, finish_reason=reason, error=message)
        for i in indices
    ]


def _attempt(work: Callable[[], object]) -> None:
    """Do what others wait behind: an engine that has failed may fail in anything."""
    try:
        work()
    except BaseException:  # noqa: BLE001  (it is logged)
        _log.exception("the engine could not end in order")


@atexit.register
def _close_running() -> None:
    """Let no thread be in the middle of a step when Python ends, which would abort the process."""
    threads = threading.enumerate()  # no simulated ones
    for engine in list(_RUNNING):
        if engine._thread in threads:
            engine.close(timeout_s=EXIT_S)
