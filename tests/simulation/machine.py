"""A machine with a clock of its own: an event loop, threads and queues that never wait.

Only one thread runs at a time, the event loop's or another, and each says when it hands over: where
it sleeps, waits for a queue, or ends. So the same seed gives the same order of everything.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
import uuid
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import Empty
from types import ModuleType, SimpleNamespace

START = 1_800_000_000.0  # the time of day when a simulation begins
_TICK_S = 1e-7  # what looking at the clock takes
_WAKE_S = 2e-5  # until a thread runs that something was put into the queue of


class Loop(BaseEventLoop):
    """An event loop that moves the clock on instead of waiting."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._selector = self
        self.failures: list[str] = []
        self.set_exception_handler(self._note_failure)

    def time(self) -> float:
        return self._machine.now

    def select(self, timeout: float | None) -> list[object]:
        """Stand in for the selector of the base class: nothing ever comes from outside."""
        if timeout is None:
            raise RuntimeError("everything waits, and nothing is to happen")
        self._machine.now += timeout
        return []

    def call_soon_threadsafe(self, callback, *args, context=None):
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor, func, *args):
        """Run it a little later, in one piece."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001  (whoever waits for it gets it)
                future.set_exception(error)

        self.call_later(self._machine.random.uniform(0.0, 0.01), run)
        return future

    def _process_events(self, events: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _note_failure(self, loop: object, context: dict[str, object]) -> None:
        self.failures.append(f"{context['message']}: {context.get('exception')!r}")


class Thread:
    """A thread that runs only while the event loop does not."""

    def __init__(self, machine: Machine, target: Callable[[], None]) -> None:
        self._machine = machine
        self._target = target
        self._may_run = threading.Semaphore(0)
        self._is_over = False
        self.timer: asyncio.TimerHandle | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._machine.threads.append(self)
        self._thread.start()
        self.wake_in(_WAKE_S)

    @property
    def ident(self) -> int | None:
        """Names the real thread; None before it has started."""
        return self._thread.ident

    def is_alive(self) -> bool:
        return not self._is_over

    def join(self, timeout: float | None = None) -> None:
        while not self._is_over:
            if self.timer is None:
                raise RuntimeError("a thread is waited for that waits itself")
            self._machine.now = max(self._machine.now, self.timer.when())
            self.timer.cancel()
            self.run()
        self._thread.join()

    def wake_in(self, seconds: float) -> None:
        """Let it run after so long, or earlier if that is arranged already."""
        loop = self._machine.loop
        when = loop.time() + seconds
        if self.timer is not None:
            if self.timer.when() <= when:
                return
            self.timer.cancel()
        self.timer = loop.call_at(when, self.run)

    def run(self) -> None:
        """Let it run until it hands over; on the event loop's thread."""
        self.timer = None
        self._machine.current = self
        self._may_run.release()
        self._machine.loop_may_run.acquire()
        self._machine.current = None

    def hand_over(self) -> None:
        """Let the event loop run until somebody calls `run`; on this very thread."""
        self._machine.loop_may_run.release()
        self._may_run.acquire()

    def _work(self) -> None:
        self._may_run.acquire()
        try:
            self._target()
        except BaseException as error:  # noqa: BLE001  (the simulation reports it)
            self.failure = error
        self._is_over = True
        self._machine.loop_may_run.release()


class Queue:
    """A `SimpleQueue` between the simulated threads."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._items: deque[object] = deque()
        self._waiting: Thread | None = None

    def put(self, item: object) -> None:
        self._items.append(item)
        if self._waiting is not None:
            self._waiting.wake_in(_WAKE_S)

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        current = self._machine.current
        if not self._items and block and current is not None:
            self._waiting = current
            if timeout is not None:
                current.wake_in(timeout)
            current.hand_over()
            self._waiting = None
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class Waited(Future):
    """What another simulated thread will say; who waits for it lets the others run."""

    machine: Machine

    def result(self, timeout: float | None = None) -> object:
        while self.machine.current is None and not self.done():
            self.machine.run_next_thread()
        return super().result(timeout)


class Machine:
    """Time, threads and chance, as a seed decides.

    Args:
        seed: Of everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.wall_offset = START - self.now
        self.threads: list[Thread] = []
        self._ident = threading.get_ident()  # of the event loop's thread
        self.current: Thread | None = None
        self.loop_may_run = threading.Semaphore(0)
        self.loop = Loop(self)

    def run_next_thread(self) -> None:
        """Let the thread run that is the first to, while the event loop waits."""
        timers = [each.timer.when() for each in self.threads if each.timer is not None]
        if not timers:
            raise RuntimeError("the event loop waits for a thread, and every thread waits, too")
        thread = next(
            each for each in self.threads if each.timer and each.timer.when() == min(timers)
        )
        self.now = max(self.now, thread.timer.when())
        thread.timer.cancel()
        thread.run()

    @property
    def is_foreign(self) -> bool:
        """Whether a thread asks that is not simulated, as that of an idle engine of another test.

        It shares the modules, but its looks at the clock must not move the simulated one.
        """
        ident = threading.get_ident()
        return ident != self._ident and all(ident != each.ident for each in self.threads)

    def monotonic(self) -> float:
        if self.is_foreign:
            return time.monotonic()
        self.now += _TICK_S
        return self.now

    def wall(self) -> float:
        """The time of day, which may jump."""
        if self.is_foreign:
            return time.time()  # noqa: TID251  (the real one is meant)
        return self.monotonic() + self.wall_offset

    def sleep(self, seconds: float) -> None:
        """Spend time on a simulated thread, while the event loop goes on."""
        if self.is_foreign:
            time.sleep(seconds)
            return
        current = self.current
        if current is None:
            self.now += seconds
            return
        current.wake_in(seconds)
        current.hand_over()

    @contextmanager
    def running_blazr(self) -> Iterator[None]:
        """Let everything that blazr imports of time, threads, queues and chance be this machine's.

        The code is left as it is: only the standard library's names in its modules change.
        """
        machine = self

        class Wall(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.fromtimestamp(machine.wall(), tz or UTC)

        clock = SimpleNamespace(
            monotonic=self.monotonic,
            perf_counter=self.monotonic,
            sleep=self.sleep,
            time=self.wall,
            time_ns=lambda: int(self.wall() * 1e9),
        )
        threads = SimpleNamespace(
            Thread=lambda *, target, **_: Thread(self, target),
            Lock=threading.Lock,
            Condition=threading.Condition,
            Event=threading.Event,
            current_thread=lambda: self.current,
        )
        ids = SimpleNamespace(
            uuid4=lambda: uuid.UUID(int=self.random.getrandbits(128), version=4), UUID=uuid.UUID
        )
        everywhere = [
            (time.monotonic, self.monotonic),
            (time.perf_counter, self.monotonic),
            (time.time, self.wall),  # noqa: TID251  (it is replaced)
            (time, clock),
            (datetime, Wall),
            (uuid, ids),
            (random, self.random),
        ]
        in_engine = [
            (threading, threads),
            (sys.modules["queue"].SimpleQueue, lambda: Queue(self)),
            (Future, type("Waited", (Waited,), {"machine": self})),
        ]
        undo = []
        for name, module in list(sys.modules.items()):
            if name.startswith(("blazr.server", "blazr.llm", "blazr.engine", "blazr.core")):
                swaps = everywhere + in_engine * (name == "blazr.engine.async_engine")
                undo += _swap(module, swaps)
        try:
            yield
        finally:
            for module, attribute, value in undo:
                setattr(module, attribute, value)


def _swap(
    module: ModuleType, swaps: list[tuple[object, object]]
) -> list[tuple[ModuleType, str, object]]:
    """Replace some values in a module; what was there."""
    found = [
        (attribute, value, ours)
        for attribute, value in vars(module).items()
        for real, ours in swaps
        if value is real
    ]
    for attribute, _, ours in found:
        setattr(module, attribute, ours)
    return [(module, attribute, value) for attribute, value, _ in found]
