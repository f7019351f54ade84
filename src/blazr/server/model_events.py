"""Where each model of a server is in its life, told to whoever subscribes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

ModelState = Literal["loaded", "loading", "sleeping", "unloaded"]


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

    def publish(self, event: ModelEvent | None) -> None:
        """Tell every subscriber of an event; None is the last."""
        for queue in self._subscribers:
            queue.put_nowait(event)
