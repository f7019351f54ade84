"""A thread that does one job after the other, for the requests of an event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from blazr.core.errors import CapacityError, EngineError

_log = logging.getLogger(__name__)

MAX_WAITING = 16
# Of 0 to 19. Text needs its processors for a moment at each token, and a pipeline for minutes: the
# system then prefers text, and the pipeline has all that is left. No more than this, as the thread
# holds Python's lock at times, and whoever needs the lock waits until the thread has had its turn.
_NICENESS = 5
_END_S = 30.0  # for work that checks too rarely

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class JobEndedError(Exception):
    """Nobody waits for the job any more."""


class Outlet(Protocol[T_contra]):
    """What work tells its caller through."""

    def emit(self, item: T_contra) -> None:
        """Pass an item on."""

    def check(self) -> None:
        """Raise where the work is to end."""


class Job(Generic[T]):
    """Work on another thread, as its event loop sees it. Made by `JobQueue.start`.

    Whoever made it calls `abort` at the end, whatever happened.
    """

    def __init__(self, work: Callable[[Outlet[T]], None]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[T | BaseException | None] = asyncio.Queue()
        self._has_ended = threading.Event()

    def emit(self, item: T) -> None:
        """Pass an item on; on the job's thread."""
        self._put(item)

    def check(self) -> None:
        """End the work where nobody waits for it any more; on the job's thread.

        Raises:
            JobEndedError: Nobody does.
        """
        if self._has_ended.is_set():
            raise JobEndedError

    def run(self) -> None:
        """Do the work; on the job's thread."""
        try:
            self.check()
            self._work(self)
        except JobEndedError:
            self._put(EngineError("the request was aborted."))
        except BaseException as error:  # noqa: BLE001  (it is raised again where it is awaited)
            self._put(error)
        else:
            self._put(None)

    async def take(self, *, timeout_s: float | None) -> list[T]:
        """Wait for items; none where nothing came for ``timeout_s``, which None leaves open.

        Raises:
            StopAsyncIteration: There are no more.
            Exception: What the work raised, or `fail` was given.
        """
        try:
            async with asyncio.timeout(timeout_s):
                item = await self._items.get()
        except TimeoutError:
            return []
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, BaseException):
            raise item
        return [item]

    async def items(self) -> AsyncIterator[T]:
        """All items, to the end.

        Raises:
            Exception: What the work raised, or `fail` was given.
        """
        with suppress(StopAsyncIteration):
            while True:
                (item,) = await self.take(timeout_s=None)
                yield item

    def abort(self) -> None:
        """End the work at its next `check`. Idempotent."""
        self._has_ended.set()

    def fail(self, error: Exception) -> None:
        """End the work, and make who waits raise; on the event loop's thread."""
        self._items.put_nowait(error)
        self.abort()

    def _put(self, item: T | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)


class JobQueue:
    """Jobs, and the thread that does them.

    Args:
        name: Of the thread.
        max_waiting: Most jobs that wait.
        on_idle: Called on the thread when no job waits.
    """

    def __init__(
        self,
        name: str,
        *,
        max_waiting: int = MAX_WAITING,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._on_idle = on_idle
        self._waiting: deque[Job[Any]] = deque()
        self._running: Job[Any] | None = None
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"blazr-{name}", daemon=True)
        self._thread.start()

    def start(self, work: Callable[[Outlet[T]], None]) -> Job[T]:
        """Have work done when its turn comes; on an event loop.

        Raises:
            CapacityError: Too many jobs wait.
            EngineError: The queue is closed.
        """
        job = Job(work)
        with self._changed:
            if self._is_closed:
                raise EngineError(f"{self._name} has stopped.")
            if len(self._waiting) >= self._max_waiting:
                raise CapacityError(
                    f"{self._name} has too many requests.",
                    found=f"{len(self._waiting)} wait",
                    hint="send it again later",
                )
            self._waiting.append(job)
            self._changed.notify()
        return job

    @property
    def figures(self) -> dict[str, int]:
        """How many jobs run and wait."""
        return {"running": int(self._running is not None), "waiting": len(self._waiting)}

    @property
    def is_alive(self) -> bool:
        """Whether the thread does what it is given."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End all jobs, and the thread. Idempotent."""
        with self._changed:
            self._is_closed = True
            for job in (*self._waiting, *filter(None, [self._running])):
                job.abort()
            self._changed.notify()
        self._thread.join(_END_S)

    def _work(self) -> None:
        if sys.platform == "linux":  # where each thread has a priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while (job := self._next()) is not None:
            job.run()

    def _next(self) -> Job[Any] | None:
        """Wait for the next job; None at the end."""
        with self._changed:
            had_work = self._running is not None
            self._running = None
            if not self._waiting and had_work:
                self._on_idle()
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._waiting:
                self._running = self._waiting.popleft()
            return self._running
