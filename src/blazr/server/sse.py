"""Server-sent events: a reply as frames, each sent as it happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from time import monotonic

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blazr.server.errors import HttpError
from blazr.server.run import Renderer, Run, failure_of

_log = logging.getLogger(__name__)

_DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"


class EventStream(Response):
    """The answer that streams.

    It owns the run: whatever happens to the connection, the run is ended. A client that does not
    read for too long is dropped, so that what waits for it stays small. The headers go out with the
    first frame, so that they can tell of the prompt; an engine that stops before is a 503.

    Args:
        run: What is generated.
        renderer: How the dialect says it.
    """

    media_type = "text/event-stream"

    def __init__(self, run: Run, renderer: Renderer) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._run = run
        self._renderer = renderer
        self._has_begun = False
        self._last_sent_s = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the frames as they come."""
        try:
            await self._send_events(send)
            self._run.end()  # so that nothing of it runs any more when the client knows the end
            await self._send_bytes(send, _DONE, is_last=True)
        except TimeoutError:
            _log.warning("dropped a client that does not read")
        finally:
            self._run.end()

    async def _send_events(self, send: Send) -> None:
        config = self._run.service.config
        try:
            while not self._run.is_done:
                events = await self._run.take(timeout_s=config.keep_alive_s)
                payloads: list[object] = []
                for event in events:
                    failure = failure_of(event)
                    payloads.extend([failure] if failure else self._renderer.event(event))
                data = _frames(payloads)
                if not data and monotonic() - self._last_sent_s >= config.keep_alive_s:
                    data = _KEEP_ALIVE  # nothing to tell, but the connection lives
                await self._send_bytes(send, data)
            await self._send_bytes(send, _frames(self._renderer.last(self._run.usage())))
        except TimeoutError:
            raise
        except Exception as error:
            if not self._has_begun:
                raise
            # the status is sent: this is how it is told
            failure = HttpError.of(error)
            if failure.status == 500:
                _log.exception("a stream failed")
            await self._send_bytes(send, _frames([failure]))

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


def _frames(payloads: Iterable[object]) -> bytes:
    return b"".join(
        b"data: "
        + (each.body() if isinstance(each, HttpError) else msgspec.json.encode(each))
        + b"\n\n"
        for each in payloads
    )
