"""One replica: a server process of its own, which is reached through a socket file."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx2

from blazr.core.child import end_child, start_child
from blazr.server.replicas.prefixes import SentPrefixes

_CONNECT_S = 5.0
_URL = httpx2.URL("http://replica")


class ReplicaRequest(NamedTuple):
    """A request to a replica.

    Args:
        method: As in HTTP.
        target: Path and query.
        headers: Without the body's length.
        body: Sent along with a POST.
    """

    method: str
    target: bytes
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes = b""


class Replica:
    """A process with an engine.

    Args:
        number: Which one it is, from 0 on.
        folder: Where its socket file lies; nobody else can reach it.
        arguments: The command line of the server, to which what makes it a replica is added.

    Attributes:
        is_ready: Whether it lives and its engine works.
        is_leaving: Whether it gets no new requests, because it is restarted.
        num_running: Requests that it was sent and has not answered to the end.
        waiting_blocks: Blocks of prompts that it was sent and, as far as is known, has yet to read.
        num_starts: How often it was started.
        sent: What it was sent.
    """

    def __init__(self, number: int, folder: Path, arguments: Sequence[str]) -> None:
        self.number = number
        self.is_ready = False
        self.is_leaving = False
        self.num_running = 0
        self.waiting_blocks = 0
        self.num_starts = 0
        self.sent = SentPrefixes()
        self._path = folder / f"{number}.sock"
        self._arguments = (*arguments, "--as-replica", str(self._path))
        self._process: subprocess.Popen[bytes] | None = None
        # a connection for each request: then one that cannot be made says that nothing has begun
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx2.AsyncHTTPTransport(uds=str(self._path), limits=limits)

    @property
    def pid(self) -> int | None:
        """Its process, once it was started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, which takes a while to be ready.

        Raises:
            OSError: It cannot be started.
        """
        self.close()
        self._path.unlink(missing_ok=True)
        self.sent.clear()
        self.num_starts += 1
        self._process = start_child("blazr", *self._arguments, is_module=True)

    def exit_code(self) -> int | None:
        """What the process ended with; None while it lives."""
        return None if self._process is None else self._process.poll()

    def end(self, *, at_once: bool = False) -> None:
        """Have the process finish what it does and exit; or, at once, without finishing it."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)

    def close(self) -> None:
        """Leave nothing of the process behind."""
        self.is_ready = False
        if self._process is not None:
            end_child(self._process)
            self._process = None

    async def send(
        self, request: ReplicaRequest, *, timeout_s: float | None = None
    ) -> httpx2.Response:
        """Send a request, and return when the answer's headers are there. The caller closes it.

        Args:
            request: What is sent.
            timeout_s: Most seconds between two signs of life.

        Raises:
            httpx2.ConnectError: There is no such process: nothing was sent.
            httpx2.TransportError: The process ended, or said nothing for too long.
        """
        limits = {"connect": _CONNECT_S, "read": timeout_s, "write": timeout_s, "pool": None}
        return await self._transport.handle_async_request(
            httpx2.Request(
                request.method,
                _URL.copy_with(raw_path=request.target),
                headers=list(request.headers),
                content=request.body if request.method == "POST" else None,
                extensions={"timeout": limits},
            )
        )

    async def ask(
        self, request: ReplicaRequest, *, timeout_s: float | None = None
    ) -> httpx2.Response:
        """Send a request, and return the whole answer.

        Raises:
            httpx2.TransportError: As `send`.
        """
        response = await self.send(request, timeout_s=timeout_s)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return response
