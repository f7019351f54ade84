"""What is made for a request on another thread, and its stream: replies, and pipelines' items."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Generic, TypeVar

import msgspec

from blazr.pipelines.jobs import Job, Outlet
from blazr.server.endpoint import Call
from blazr.server.errors import STOPS, HttpError, openai_error
from blazr.server.served import ReplyHandle
from blazr.server.sse import Framing, Stream

T = TypeVar("T")
E = TypeVar("E", bound=msgspec.Struct)

_log = logging.getLogger(__name__)

_NAMES = ("request_id", "rid")  # fields of a body that name it, for those who end it


class Work(ABC, Generic[T]):
    """What a model makes for a request, item by item. Its owner calls `close`, whatever happened.

    Args:
        call: The request.
        running: What is made, on another thread.
        started_s: When it was asked for, by the monotonic clock.
    """

    def __init__(self, call: Call[Any], running: ReplyHandle, *, started_s: float) -> None:
        names = {call.request_id, call.id, *(getattr(call.body, name, None) for name in _NAMES)}
        self.call = call
        self._running = running
        self._started_s = started_s
        self._has_failed = False
        self._is_closed = False
        call.model.track(running, {name for name in names if name})

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether nothing more comes."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What an answer's headers say of it so far."""
        return {}

    @abstractmethod
    async def take(self) -> list[T]:
        """Wait for items; none where nothing came for the time after which a stream says so."""

    def failure_of(self, item: T) -> HttpError | None:  # noqa: ARG002
        """The error that an item amounts to, if it is one."""
        return None

    def close(self) -> None:
        """End what still runs and record the outcome. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._running.abort()
        model = self.call.model
        model.forget(self._running)
        outcome = "failed" if self._has_failed else "ok" if self.is_done else "cancelled"
        model.count("blazr_requests", outcome=outcome)
        model.whole_request(monotonic() - self._started_s)
        self.call.facts.update(model=model.name, outcome=outcome)


class PipelineRun(Work[T]):
    """What a pipeline does for a request.

    Args:
        call: The request.
        work: What is done on the pipeline's thread.

    Raises:
        CapacityError: Too many requests wait.
        EngineError: The pipeline has stopped.
    """

    def __init__(self, call: Call[Any], work: Callable[[Outlet[T]], None]) -> None:
        started_s = monotonic()
        try:
            self._job: Job[T] = call.pipeline.jobs.start(work)
        except BaseException:
            call.model.count("blazr_requests", outcome="rejected")
            raise
        super().__init__(call, self._job, started_s=started_s)
        self._is_over = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more comes."""
        return self._is_over or self._has_failed

    async def take(self) -> list[T]:
        """Wait for items; none where nothing came for the time after which a stream says so.

        Raises:
            HttpError: 408, it takes too long.
            Exception: What the work has raised.
        """
        config = self.call.state.config
        left_s = self._started_s + config.request_timeout_s - monotonic()
        if left_s <= 0:
            self._has_failed = True
            raise HttpError(408, "the request took too long.", code="generation_timeout")
        try:
            return await self._job.take(timeout_s=min(config.keep_alive_s, left_s))
        except StopAsyncIteration:
            self._is_over = True
            return []
        except Exception:
            self._has_failed = True
            raise

    async def result(self) -> list[T]:
        """All items, to the end; it is closed then.

        Raises:
            Exception: What `take` raises.
        """
        items: list[T] = []
        try:
            while not self.is_done:
                items += await self.take()
        finally:
            self.close()
        return items


class WorkStream(Stream[E], Generic[T, E]):
    """Streams what is made; where that fails, its last event says so.

    It owns the work: whatever happens to the connection, that is closed. The headers go out with
    the first frame, so that they can tell of the prompt; what fails before is no stream.

    Args:
        work: What is streamed.
        events_of: What to send for an item.
        last: What to send after the last one.
        pending: What to send of items before when the next one has yet to come.
        failure: What to send when it fails; as OpenAI says it where that is left out.
        framing: How events become bytes, where it is not as the route says.
    """

    def __init__(
        self,
        work: Work[T],
        events_of: Callable[[T], Iterable[E]],
        last: Callable[[], Iterable[E]] = lambda: (),
        *,
        pending: Callable[[], Iterable[E]] = lambda: (),
        failure: Callable[[HttpError], Iterable[msgspec.Struct]] | None = None,
        framing: Framing | None = None,
    ) -> None:
        super().__init__(work.call.state.config, framing or work.call.framing)
        self._work = work
        self._events_of = events_of
        self._last = last
        self._pending = pending
        self._failure = failure or _failure_event

    def close(self) -> None:
        """Close the work."""
        self._work.close()

    def late_headers(self) -> Mapping[str, str]:
        """What headers tell of the prompt."""
        return self._work.headers

    async def send_events(self) -> None:
        """Send what is made, or why that failed."""
        try:
            while not self._work.is_done:
                await self._send_next()
            await self.send_bytes(self._frames(self._last()))
        except STOPS:
            raise
        except BaseException as error:
            if not self._has_begun:
                raise
            # the status is sent already, so an event says it
            failure = HttpError.of(error)
            if failure.code == "internal_error":
                _log.exception("a stream failed")
            await self.send_bytes(self._frames(self._failure(failure)))

    async def _send_next(self) -> None:
        """Send what comes next, up to what is a failure."""
        data = b""
        failure = None
        for item in await self._work.take():
            failure = self._work.failure_of(item)
            if failure is not None:
                break
            data += self._frames(self._events_of(item))
        else:
            data += self._frames(self._pending())
        if failure is not None and not self._has_begun:
            raise failure  # nothing was sent, so the status can tell
        is_silent = monotonic() - self._timeout.sent_s >= self._config.keep_alive_s
        if not data and is_silent and not self._work.is_done:
            data = self._framing.keep_alive  # nothing to tell, but the connection lives
        await self.send_bytes(data)
        if failure is not None:
            raise failure


def _failure_event(error: HttpError) -> Iterable[msgspec.Struct]:
    return (openai_error(error),)
