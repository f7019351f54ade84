"""A reply as frames, each sent as it happens: server-sent events, or lines of JSON."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError
from blazr.server.run import Renderer, Run
from blazr.text.events import Event

_log = logging.getLogger(__name__)

FILLER = "blazr.filler"  # in a request's scope: what can be sent between the frames of its answer
_KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """How payloads become bytes.

    Args:
        encode: One payload.
        end: After the last one.
        keep_alive: Shows in silence that the connection lives, and means nothing.
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
LINES = Framing(_line, keep_alive=b" ", media_type="application/x-ndjson")  # JSON may begin with it


class Stream(Response):
    """An answer that streams.

    A client that does not read for too long is dropped, so that what waits for it stays small.

    Args:
        config: How long things may take.
        framing: How payloads become bytes.
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
        watch = Watch(self._config.send_timeout_s)
        try:
            await self.send_events(send, watch)
            self.end()  # so that nothing of it runs any more when the client knows the end
            await self.send_bytes(send, watch, self._framing.end, is_last=True)
        except asyncio.CancelledError:
            if not watch.has_cancelled():
                raise
            _log.warning("dropped a client that does not read")
        finally:
            self.end()
            watch.close()

    @abstractmethod
    async def send_events(self, send: Send, watch: Watch) -> None:
        """Send everything but the end."""

    @abstractmethod
    def end(self) -> None:
        """Nothing more will be sent. Idempotent."""

    def late_headers(self) -> Mapping[str, str]:
        """Headers that are known only when the first frame is sent."""
        return {}

    async def send_bytes(
        self, send: Send, watch: Watch, data: bytes, *, is_last: bool = False
    ) -> None:
        """Send some frames, and before the first the headers."""
        watch.begin()
        if (data or is_last) and not self._has_begun:
            self._has_begun = True
            self.headers.update(self.late_headers())
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if data or is_last:
            await send({"type": "http.response.body", "body": data, "more_body": not is_last})
        watch.end(did_send=bool(data))


class EventStream(Stream):
    """What a run generates.

    It owns the run: whatever happens to the connection, the run is ended. The headers go out with
    the first frame, so that they can tell of the prompt; an engine that stops before is a 503.

    Args:
        run: What is generated.
        renderer: How the dialect says it.
        framing: How that becomes bytes.
    """

    def __init__(self, run: Run, renderer: Renderer, framing: Framing = DATA) -> None:
        super().__init__(run.service.config, framing)
        self._run = run
        self._renderer = renderer

    def end(self) -> None:
        """End the run."""
        self._run.end()

    def late_headers(self) -> Mapping[str, str]:
        """What is to be told of the prompt."""
        return self._run.headers

    async def send_events(self, send: Send, watch: Watch) -> None:
        """Send what is generated, or why it failed."""
        keep_alive_s = self._config.keep_alive_s
        try:
            while not self._run.is_done:
                events = await self._run.take(timeout_s=keep_alive_s)
                data, failure = self._render(events)
                if failure is not None and not self._has_begun:
                    raise failure  # noqa: TRY301  (nothing was sent, so the status can tell)
                if not data and monotonic() - watch.sent_s >= keep_alive_s:
                    data = self._framing.keep_alive  # nothing to tell, but the connection lives
                await self.send_bytes(send, watch, data)
                if failure is not None:
                    raise failure  # noqa: TRY301
            last = self._frames(self._renderer.last(self._run.usage()))
            await self.send_bytes(send, watch, last)
        except Exception as error:
            if not self._has_begun:
                raise
            # the status is sent: this is how it is told
            failure = HttpError.of(error)
            if failure.code == "internal_error":
                _log.exception("a stream failed")
            await self.send_bytes(send, watch, self._frames(self._renderer.failure(failure)))

    def _render(self, events: Iterable[Event]) -> tuple[bytes, HttpError | None]:
        """The frames of some events, up to one that is a failure."""
        data = b""
        for event in events:
            failure = self._run.failure_of(event)
            if failure is not None:
                return data, failure
            data += self._frames(self._renderer.event(event))
        return data, None

    def _frames(self, payloads: Iterable[object]) -> bytes:
        return b"".join(map(self._framing.encode, payloads))


class Watch:
    """Cancels the task it was made in when something is sent for too long.

    One timer for a stream, because one for each of its thousands of frames costs as much as they.

    Args:
        limit_s: What is too long.
    """

    def __init__(self, limit_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.sent_s = monotonic()
        self._task = task
        self._limit_s = limit_s
        self._began_s: float | None = None
        self._has_cancelled = False
        self._look_in(limit_s)

    def begin(self) -> None:
        """Something is to be sent."""
        self._began_s = monotonic()

    def end(self, *, did_send: bool) -> None:
        """It is sent, if there was anything."""
        if did_send:
            self.sent_s = self._began_s or 0.0
        self._began_s = None

    def has_cancelled(self) -> bool:
        """Whether the task was cancelled by this and nobody else; then it goes on."""
        return self._has_cancelled and not self._task.uncancel()

    def close(self) -> None:
        """The task has ended."""
        self._timer.cancel()

    def _look_in(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        took_s = 0.0 if self._began_s is None else monotonic() - self._began_s
        if took_s < self._limit_s:
            self._look_in(self._limit_s - took_s)
        else:
            self._has_cancelled = True
            self._task.cancel()
