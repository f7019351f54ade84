"""Connections between simulated clients and the server's real protocol."""

from __future__ import annotations

import asyncio
from collections import deque

from tests.simulation.machine import Machine

HIGH_WATER = 2000  # unread bytes at which the server is to stop writing
LOW_WATER = 500


class Connection(asyncio.Transport):
    """Both ends of a connection: the server's transport, and what its client does with it.

    Args:
        machine: Whose time passes.
        delay_s: From one end to the other.
    """

    def __init__(self, machine: Machine, delay_s: float) -> None:
        super().__init__()
        self._machine = machine
        self._delay_s = delay_s
        self._protocol: asyncio.Protocol | None = None
        self._unread = 0  # bytes that the server has written and the client has not taken
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._held: deque[bytes] = deque()
        self._is_closing = False
        self._arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._is_lost = False
        self._last = 0.0  # when the latest of all that is on its way arrives

    def connect(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # what the client does

    def send(self, data: bytes) -> None:
        """Send some bytes to the server."""
        self._later(self._deliver, data)

    async def receive(self, timeout_s: float) -> bytes:
        """The bytes that come next; empty at the end.

        Raises:
            TimeoutError: Nothing came.
        """
        async with asyncio.timeout(timeout_s):
            data = await self._arrived.get()
        if data is None:
            self._arrived.put_nowait(None)
            return b""
        self._unread -= len(data)
        if self._is_writing_paused and self._unread <= LOW_WATER and not self._is_lost:
            self._is_writing_paused = False
            self._protocol.resume_writing()
        return data

    def leave(self, *, resets: bool = False) -> None:
        """Go away without reading the rest."""
        self._later(self._lose, ConnectionResetError() if resets else None)

    @property
    def is_lost(self) -> bool:
        """Whether the server knows that it is over."""
        return self._is_lost

    # what the server does

    def write(self, data: bytes) -> None:
        if not data or self._is_closing:
            return
        self._unread += len(data)
        self._later(self._arrived.put_nowait, bytes(data))
        if self._unread > HIGH_WATER and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._machine.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self._machine.loop.call_soon(self._deliver_held)

    def is_reading(self) -> bool:
        return not self._is_reading_paused

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 8080)}.get(
            name, default
        )

    def _deliver(self, data: bytes) -> None:
        self._held.append(data)
        self._deliver_held()

    def _deliver_held(self) -> None:
        while self._held and not (self._is_reading_paused or self._is_closing):
            self._protocol.data_received(self._held.popleft())

    def _lose(self, error: Exception | None) -> None:
        self._is_closing = True
        if not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(error)
            self._later(self._arrived.put_nowait, None)

    def _later(self, call, *args: object) -> None:
        # timers of the same moment come in any order, and bytes must not
        self._last = max(self._machine.now + self._delay_s, self._last + 1e-9)
        self._machine.loop.call_at(self._last, call, *args)
