"""A reply as frames, each sent as it happens: server-sent events, or lines of JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from time import monotonic

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blazr.server.errors import HttpError
from blazr.server.run import Renderer, Run, failure_of

_log = logging.getLogger(__name__)

_KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """How payloads become bytes.

    Args:
        encode: One payload.
        end: After the last one.
        keep_alive: Shows in silence that the connection lives; empty where nothing can.
        media_type: What they are together.
    """

    encode: Callable[[object], bytes]
    end: bytes = b""
    keep_alive: bytes = _KEEP_ALIVE
    media_type: str = "text/event-stream"


def _data(payload: object) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def _named(payload: object) -> bytes:
    name = payload["type"] if isinstance(payload, dict) else "error"
    return b"event: " + str(name).encode() + b"\n" + _data(payload)


def _line(payload: object) -> bytes:
    return msgspec.json.encode(payload) + b"\n"


DATA = Framing(_data, end=b"data: [DONE]\n\n")
NAMED = Framing(_named)  # each event is named by its payload's type
LINES = Framing(_line, keep_alive=b"", media_type="application/x-ndjson")


class EventStream(Response):
    """The answer that streams.

    It owns the run: whatever happens to the connection, the run is ended. A client that does not
    read for too long is dropped, so that what waits for it stays small. The headers go out with the
    first frame, so that they can tell of the prompt; an engine that stops before is a 503.

    Args:
        run: What is generated.
        renderer: How the dialect says it.
        framing: How that becomes bytes.
    """

    def __init__(self, run: Run, renderer: Renderer, framing: Framing = DATA) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=framing.media_type)
        del self.headers["content-length"]
        self._run = run
        self._renderer = renderer
        self._framing = framing
        self._has_begun = False
        self._last_sent_s = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the frames as they come."""
        try:
            await self._send_events(send)
            self._run.end()  # so that nothing of it runs any more when the client knows the end
            await self._send_bytes(send, self._framing.end, is_last=True)
        except TimeoutError:
            _log.warning("dropped a client that does not read")
        finally:
            self._run.end()

    async def _send_events(self, send: Send) -> None:
        config = self._run.service.config
        try:
            while not self._run.is_done:
                events = await self._run.take(timeout_s=config.keep_alive_s)
                failure = next((each for each in map(failure_of, events) if each), None)
                if failure is not None and not self._has_begun:
                    raise failure  # noqa: TRY301  (nothing was sent, so the status can tell)
                sound = takewhile(lambda event: failure_of(event) is None, events)
                data = self._frames(each for event in sound for each in self._renderer.event(event))
                if not data and monotonic() - self._last_sent_s >= config.keep_alive_s:
                    data = self._framing.keep_alive  # nothing to tell, but the connection lives
                await self._send_bytes(send, data)
                if failure is not None:
                    raise failure  # noqa: TRY301
            await self._send_bytes(send, self._frames(self._renderer.last(self._run.usage())))
        except TimeoutError:
            raise
        except Exception as error:
            if not self._has_begun:
                raise
            # the status is sent: this is how it is told
            failure = HttpError.of(error)
            if failure.code == "internal_error":
                _log.exception("a stream failed")
            await self._send_bytes(send, self._frames(self._renderer.failure(failure)))

    def _frames(self, payloads: Iterable[object]) -> bytes:
        return b"".join(map(self._framing.encode, payloads))

    async def _send_bytes(self, send: Send, data: bytes, *, is_last: bool = False) -> None:
        if data and not self._has_begun:
            self._has_begun = True
            self.headers.update(self._run.headers)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await self._send(send, start)
        if data or is_last:
            await self._send(
                send, {"type": "http.response.body", "body": data, "more_body": not is_last}
            )

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        async with asyncio.timeout(self._run.service.config.send_timeout_s):
            await send(message)
        self._last_sent_s = monotonic()
