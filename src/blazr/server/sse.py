"""Streams: server-sent events or lines of JSON, each sent as it happens."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Generic, Self, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blazr.server.config import ServerConfig

_log = logging.getLogger(__name__)

E = TypeVar("E", bound=msgspec.Struct)
T = TypeVar("T")

FILLER = "blazr.filler"  # key of a request's scope: bytes that may be sent between two frames
_KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """How the events of a stream become bytes.

    Args:
        encode: Encodes one event.
        end: Sent after the last event.
        keep_alive: Sent while nothing happens; clients ignore it.
        media_type: Of the whole stream.
    """

    encode: Callable[[msgspec.Struct], bytes]
    end: bytes = b""
    keep_alive: bytes = _KEEP_ALIVE
    media_type: str = "text/event-stream"


def _encode_data(event: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def _encode_named(event: msgspec.Struct) -> bytes:
    name = str(event.__struct_config__.tag)
    return b"event: " + name.encode() + b"\n" + _encode_data(event)


DATA = Framing(_encode_data, end=b"data: [DONE]\n\n")  # OpenAI's older APIs
ENDLESS_DATA = Framing(_encode_data)  # llama.cpp's server: no [DONE]
NAMED = Framing(_encode_named)  # each event is named by its type, which is its Struct's tag
LINES = Framing(
    lambda event: msgspec.json.encode(event) + b"\n",
    keep_alive=b" ",
    media_type="application/x-ndjson",
)


class Stream(Response, Generic[E]):
    """A response that streams events of type ``E``.

    A client that does not read for too long is dropped, so that its unread bytes stay few.

    Args:
        config: Timeouts.
        framing: How events become bytes.
    """

    def __init__(self, config: ServerConfig, framing: Framing) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=framing.media_type)
        del self.headers["content-length"]
        self._config = config
        self._framing = framing
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the frames as they come."""
        if scope["method"] != "HEAD":
            scope[FILLER] = self._framing.keep_alive
        self._send = send
        with SendTimeout(self._config.send_timeout_s) as self._timeout:
            try:
                await self.send_events()
                self.close()  # first, so that nothing runs any more when the client knows the end
                await self.send_bytes(self._framing.end, is_last=True)
            finally:
                self.close()

    @abstractmethod
    async def send_events(self) -> None:
        """Send everything but the end."""

    def close(self) -> None:
        """Release what the stream owns. Idempotent."""

    def late_headers(self) -> Mapping[str, str]:
        """Headers that are known only when the first frame is sent."""
        return {}

    async def send_bytes(self, data: bytes, *, is_last: bool = False) -> None:
        """Send some frames, and before the first the headers."""
        self._timeout.begin()
        if (data or is_last) and not self._has_begun:
            self._has_begun = True
            self.headers.update(self.late_headers())
            headers = self.raw_headers
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if data or is_last:
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
        self._timeout.end(did_send=bool(data))

    def _frames(self, events: Iterable[msgspec.Struct]) -> bytes:
        return b"".join(map(self._framing.encode, events))

    async def wait_for_item(self, queue: asyncio.Queue[T]) -> T:
        """The next item of a queue; the connection is kept alive meanwhile."""
        while True:
            try:
                async with asyncio.timeout(self._config.keep_alive_s):
                    return await queue.get()
            except TimeoutError:
                await self.send_bytes(self._framing.keep_alive)


class SendTimeout:
    """Cancels the task that made it when one send takes too long, and ends the block with that.

    One timer serves the whole stream: one for each of its thousands of frames costs as much as
    sending them.

    Args:
        limit_s: Longest time of a send.
    """

    def __init__(self, limit_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.sent_s = monotonic()
        self._task = task
        self._limit_s = limit_s
        self._began_s: float | None = None
        self._has_cancelled = False
        self._check_in(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> bool:
        self._timer.cancel()
        if kind is not asyncio.CancelledError or not self._has_cancelled or self._task.uncancel():
            return False  # somebody else has cancelled the task, too
        _log.warning("dropped a client that does not read")
        return True

    def begin(self) -> None:
        """A send begins."""
        self._began_s = monotonic()

    def end(self, *, did_send: bool) -> None:
        """The send has ended."""
        if did_send:
            self.sent_s = self._began_s or 0.0
        self._began_s = None

    def _check_in(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._check)

    def _check(self) -> None:
        took_s = 0.0 if self._began_s is None else monotonic() - self._began_s
        if took_s < self._limit_s:
            self._check_in(self._limit_s - took_s)
        else:
            self._has_cancelled = True
            self._task.cancel()
