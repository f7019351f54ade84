"""What the server knows about itself, whichever models it has."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple

import msgspec

from blazr.core.metrics import Metrics
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError
from blazr.server.store import Store

MAX_REMEMBERED = 100

ModelState = Literal["loaded", "loading", "sleeping", "unloaded"]


class PrefixReport(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a prompt was reused."""

    request_id: str  # the X-Request-Id of its answer
    model: str
    prompt_tokens: int
    cached_tokens: int  # of the prompt's, those not computed again
    reason: str  # why no more of them
    state: str | None = None  # why the recurrent state had been kept from which it went on


@dataclass(frozen=True, slots=True)
class ProfileRecording:
    """A profile being made.

    Args:
        stop: Ends it.
        task: Makes it, and writes the file.
    """

    stop: asyncio.Event
    task: asyncio.Task[Path]


class ServerState:
    """What the server knows about itself, whichever models it has.

    Args:
        config: How to behave.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.metrics = Metrics()
        self.started_s = monotonic()
        self.started = datetime.now(UTC)
        self.document: Callable[[], Mapping[str, object]] = dict
        self.is_draining = False
        self.profiling = asyncio.Lock()
        self.recording: ProfileRecording | None = None
        self.num_working = 0
        self.kept: Store[object] = Store()
        self._reports: deque[tuple[str, PrefixReport]] = deque(maxlen=MAX_REMEMBERED)

    def check_not_draining(self) -> None:
        """Refuse new requests while the server stops.

        Raises:
            HttpError: 503.
        """
        if self.is_draining:
            raise HttpError(
                503, "the server is stopping.", code="stopping", headers={"Retry-After": "5"}
            )

    def remember(self, tenant: str, report: PrefixReport) -> None:
        """Keep a report until there are too many newer ones."""
        self._reports.append((tenant, report))

    def reports(self, tenant: str) -> list[PrefixReport]:
        """The latest reports, newest first; each key sees its own."""
        return [report for whose, report in reversed(self._reports) if whose == tenant]


class ModelEvent(NamedTuple):
    """A change of a model: where it is in its life, and whether it has just failed to load."""

    model: str
    status: ModelState
    has_failed: bool


class EventBus:
    """Passes changes of the models on to those who subscribe."""

    def __init__(self) -> None:
        self._subscribers: set[asyncio.Queue[ModelEvent | None]] = set()

    @contextmanager
    def subscribe(self) -> Iterator[asyncio.Queue[ModelEvent | None]]:
        """All events from now on; None is the end."""
        queue: asyncio.Queue[ModelEvent | None] = asyncio.Queue()
        self._subscribers.add(queue)
        try:
            yield queue
        finally:
            self._subscribers.discard(queue)

    def publish(self, event: ModelEvent) -> None:
        """Tell every subscriber of an event."""
        for queue in self._subscribers:
            queue.put_nowait(event)

    def close(self) -> None:
        """Tell every subscriber that there will be no more."""
        for queue in self._subscribers:
            queue.put_nowait(None)
