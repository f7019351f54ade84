"""A response in the background as a stream: followed from any place, by any number of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from blazr.server.config import ServerConfig
from blazr.server.openai.responses.rendering import ResponseEvent
from blazr.server.sse import NAMED, Stream


class EventLog:
    """The events of a response so far, as frames; the index of each is its sequence number."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.num_bytes = 0
        self.is_done = False
        self._added = asyncio.Event()

    def add(self, events: Iterable[msgspec.Struct]) -> None:
        """Something has happened."""
        new = [NAMED.encode(each) for each in events]
        self.frames += new
        self.num_bytes += sum(map(len, new))
        self._wake()

    def close(self) -> None:
        """Nothing more will happen. Idempotent."""
        self.is_done = True
        self._wake()

    async def wait(self, timeout_s: float) -> bool:
        """Whether something happens within ``timeout_s``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self._added.wait()
        return False

    def _wake(self) -> None:
        self._added.set()
        self._added = asyncio.Event()  # those who waited have the old one


class Replay(Stream[ResponseEvent]):
    """Streams a log, and what is added to it. The response is generated with or without readers.

    Args:
        log: What is sent.
        config: How long things may take.
        after: The number of the last event that is left out.
    """

    def __init__(self, log: EventLog, config: ServerConfig, *, after: int = -1) -> None:
        super().__init__(config, NAMED)
        self._log = log
        self._place = after + 1

    async def send_events(self) -> None:
        """Send the frames."""
        log = self._log
        while True:
            data = b"".join(log.frames[self._place :])
            self._place = max(self._place, len(log.frames))
            if not data and log.is_done:
                return
            if data or not await log.wait(self._config.keep_alive_s):
                await self.send_bytes(data or NAMED.keep_alive)
