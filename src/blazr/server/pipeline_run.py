"""From a handler to a pipeline's thread and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Generic, TypeVar

import msgspec

from blazr.pipelines.jobs import Job, Outlet
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.sse import Framing, WorkStream

T = TypeVar("T")
E = TypeVar("E", bound=msgspec.Struct)


class PipelineRun(Generic[T]):
    """What a pipeline does for a request. Its owner calls `close`, whatever happened.

    Args:
        call: The request.
        work: What is done on the pipeline's thread.

    Raises:
        CapacityError: Too many requests wait.
        EngineError: The pipeline has stopped.
    """

    def __init__(self, call: Call[Any], work: Callable[[Outlet[T]], None]) -> None:
        self._service = call.hosted
        self._facts = call.facts
        self._started_s = monotonic()
        self._outcome = "cancelled"
        self._is_closed = False
        try:
            self._job: Job[T] = self._service.pipeline.jobs.start(work)
        except BaseException:
            self._service.count("blazr_requests", outcome="rejected")
            raise
        self._service.track(self._job, {call.request_id, call.id} - {""})

    @property
    def is_done(self) -> bool:
        """Whether nothing more comes."""
        return self._outcome != "cancelled"

    async def take(self) -> list[T]:
        """Wait for items; none where nothing came for the time after which a stream says so.

        Raises:
            HttpError: 408, it takes too long.
            Exception: What the work has raised.
        """
        config = self._service.config
        left_s = self._started_s + config.request_timeout_s - monotonic()
        if left_s <= 0:
            self._outcome = "failed"
            raise HttpError(408, "the request took too long.", code="generation_timeout")
        try:
            return await self._job.take(timeout_s=min(config.keep_alive_s, left_s))
        except StopAsyncIteration:
            self._outcome = "ok"
            return []
        except Exception:
            self._outcome = "failed"
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

    def close(self) -> None:
        """End what still runs and record the outcome. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._job.abort()
        self._service.forget(self._job)
        self._service.count("blazr_requests", outcome=self._outcome)
        self._service.whole_request(monotonic() - self._started_s)
        self._facts.update(model=self._service.name, outcome=self._outcome)


class RunStream(WorkStream[E], Generic[T, E]):
    """Streams what a pipeline makes; the run is closed with it.

    Args:
        call: The request.
        run: What is streamed.
        events_of: What to send for an item.
        last: What to send after the last one.
        framing: How events become bytes, where it is not as the route says.
    """

    def __init__(
        self,
        call: Call[Any],
        run: PipelineRun[T],
        events_of: Callable[[T], Iterable[E]],
        last: Callable[[], Iterable[E]] = lambda: (),
        *,
        framing: Framing | None = None,
    ) -> None:
        super().__init__(call.state.config, framing or call.framing)
        self._run = run
        self._events_of = events_of
        self._last = last

    def close(self) -> None:
        """Close the run."""
        self._run.close()

    async def send_work(self) -> None:
        """Send what comes."""
        while not self._run.is_done:
            items = await self._run.take()
            data = self._frames(event for item in items for event in self._events_of(item))
            if not data and self._is_silent and not self._run.is_done:
                data = self._framing.keep_alive
            await self.send_bytes(data)
        await self.send_bytes(self._frames(self._last()))
