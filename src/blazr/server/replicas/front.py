"""The process in front: it checks, chooses, passes on, and answers for all replicas together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import httpx2
import msgspec
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import blazr
from blazr.server.app import assemble
from blazr.server.config import LARGE_BODY_BYTES
from blazr.server.endpoint import (
    FORWARDED_PROTO,
    Endpoint,
    Route,
    read_body,
    run_in_worker_if,
    run_until_disconnect,
    working,
)
from blazr.server.errors import HttpError, openai_error
from blazr.server.kv_peers import EXPORT_PATH
from blazr.server.liveness_process import PATHS as HEALTH_PATHS
from blazr.server.middleware import IS_COUNTED
from blazr.server.native.status import PROMETHEUS
from blazr.server.openai.responses.items import ITEM_REFERENCE
from blazr.server.replica_ids import number_in
from blazr.server.replicas.metrics import FRONT, merge
from blazr.server.replicas.pool import Pool
from blazr.server.replicas.prefixes import block_names
from blazr.server.replicas.replica import Replica, ReplicaRequest
from blazr.server.routes import ROUTES
from blazr.server.sse import ENDLESS_DATA, FILLER, LINES, NAMED, SendTimeout

if TYPE_CHECKING:
    from blazr.server.models import Models

_WITH_IDS = ("/v1/responses/{id}", "/v1/images/files/{id}")  # what one replica alone knows

_ASK_S = 10.0
# Headers of one connection, and those that the process in front sets or has checked itself.
_NOT_SENT = frozenset(
    b"connection keep-alive te trailer transfer-encoding upgrade proxy-connection content-length "
    b"expect origin sec-fetch-site x-request-id".split()
)
_NOT_RETURNED = frozenset(
    b"connection keep-alive transfer-encoding date vary x-request-id request-id".split()
)
_STREAMS = {each.media_type: each for each in (NAMED, LINES)}
_OF_ONE = frozenset({"/slots/{id}", "/cache_events"})
_STATES = frozenset({"/is_paused", "/is_sleeping", "/load"})
# What a command is about; of two about the same thing the later one counts.
_SUBJECTS = {
    "/pause": "pause",
    "/pause_generation": "pause",
    "/resume": "pause",
    "/continue_generation": "pause",
    "/sleep": "sleep",
    "/wake_up": "sleep",
    "/update_weights": "weights",
    "/update_weights_from_disk": "weights",
    "/models/load": "load",
    "/models/unload": "load",
    "/v1/load_lora_adapter": "adapter",
    "/v1/unload_lora_adapter": "adapter",
}


class ReplicaLost(msgspec.Struct, tag="error"):
    """The error event of /v1/responses."""

    code: str | None
    message: str
    sequence_number: int
    param: str | None = None


def build_front(pool: Pool) -> Starlette:
    """Build the application that stands before replicas, with the endpoints that each of them has.

    Args:
        pool: The replicas.
    """

    def endpoint(row: Route) -> ASGIApp:
        # what such a row is about is in the state, which the replicas have together
        return Endpoint(row, cast("Models", pool)) if row.is_in_front else Front(pool, row)

    return assemble(pool.state, list(ROUTES.values()), endpoint)


class Front:
    """A route as an ASGI application that has replicas answer.

    Args:
        pool: The replicas.
        route: The route.
    """

    def __init__(self, pool: Pool, route: Route) -> None:
        self._pool = pool
        self._route = route
        # an endless stream is nothing to wait for
        self._is_endless = route.method == "GET" and route.framing is ENDLESS_DATA

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Errors are raised; the middleware renders them."""
        state = self._pool.state
        with state.bodies.hold() as grow:
            body = b""
            if self._route.method == "POST":
                body = await read_body(scope, receive, state.config, grow)
            with nullcontext() if self._is_endless else working(state):
                await run_until_disconnect(receive, self._answer(scope, receive, send, body))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        path = self._route.path
        response: Response
        if path in HEALTH_PATHS:
            response = self._health()
        elif path == "/ready":
            response = await self._ready()
        elif path == "/metrics":
            response = await self._metrics()
        elif path in _OF_ONE:
            message = f"{path} is about one replica; this server has several."
            raise HttpError(501, message, code="of_one_replica")
        elif path != EXPORT_PATH and (
            path in _STATES or self._route.is_command or self._route.needs_operator
        ):
            response = await self._tell_all(scope, body)
        else:
            await self._forward(scope, send, body)
            return
        await response(scope, receive, send)

    def _health(self) -> Response:
        """Whether a replica works."""
        self._pool.check()
        return JSONResponse(
            {
                "status": "ok",
                "version": blazr.__version__,
                "replicas": {each.number: _state_of(each) for each in self._pool.replicas},
            }
        )

    async def _ready(self) -> Response:
        """Whether a replica takes new requests."""
        self._pool.check()
        self._pool.state.check_not_draining()
        answers = await self._ask_all(ReplicaRequest("GET", b"/ready", self._pool.headers))
        best = min(answers.values(), key=lambda each: each.status_code, default=None)
        if best is None:
            raise _lost()
        return _as_response(best)

    async def _metrics(self) -> Response:
        """What all have counted."""
        answers = await self._ask_all(ReplicaRequest("GET", b"/metrics", self._pool.headers))
        pages = {str(number): each.text for number, each in answers.items() if each.is_success}
        pages[FRONT] = self._pool.state.metrics.render().decode()
        return PlainTextResponse(merge(pages, self._pool.replicas), media_type=PROMETHEUS)

    async def _ask_all(
        self, request: ReplicaRequest, *, timeout_s: float | None = _ASK_S
    ) -> dict[int, httpx2.Response]:
        """What the replicas answer, by their numbers, but for those that do not."""
        asked = [each for each in self._pool.replicas if each.is_ready]
        answers = await asyncio.gather(
            *(each.ask(request, timeout_s=timeout_s) for each in asked),
            return_exceptions=True,
        )
        return {
            replica.number: answer
            for replica, answer in zip(asked, answers, strict=True)
            if isinstance(answer, httpx2.Response)
        }

    async def _tell_all(self, scope: Scope, body: bytes) -> Response:
        """Send a command to every replica; if one refuses, its answer is the answer."""
        # a HEAD, too, is answered with what all say together
        command = _request_of(scope, body)._replace(method=self._route.method)
        is_command = self._route.method == "POST"
        async with self._pool.changing if is_command else nullcontext():
            timeout_s = None if is_command else _ASK_S
            answers = await self._ask_all(command, timeout_s=timeout_s)
            if not answers:
                raise _lost()
            refusals = [each for each in answers.values() if not each.is_success]
            if refusals:
                return _as_response(refusals[0])
            if is_command:
                self._note(scope, command)
        return _merged(list(answers.values()))

    def _note(self, scope: Scope, command: ReplicaRequest) -> None:
        """Remember a command for replicas that start later, and that prefixes may be forgotten."""
        for each in self._pool.replicas:
            each.sent.clear()
        subject = _SUBJECTS.get(self._route.path)
        if subject is None:
            return
        given: dict[str, Any] = dict(HTTPConnection(scope).query_params)
        with suppress(msgspec.DecodeError):
            given.update(msgspec.json.decode(command.body or b"{}", type=dict[str, Any]))
        name = f"{subject} {given.get('model')} {given.get('lora_name')}"
        self._pool.commands.pop(name, None)  # told in the order in which they came last
        self._pool.commands[name] = command

    async def _forward(self, scope: Scope, send: Send, body: bytes) -> None:
        """Have one replica answer; another one, if it turns out to be gone before it was asked."""
        is_large = len(body) > LARGE_BODY_BYTES
        names, number = await run_in_worker_if(is_large, partial(self._look, scope, body))
        request = _request_of(scope, body)
        tried: list[Replica] = []
        while True:
            replica = self._pool.choose(names, number=number, but=tried)
            if replica in tried:
                raise _lost()
            tried.append(replica)
            with _sending(replica, names, is_counted=not self._is_endless) as mark_read:
                try:
                    response = await replica.send(request)
                except httpx2.ConnectError:
                    replica.is_ready = False
                    continue
                except httpx2.TransportError:
                    raise _lost() from None
                passing = _Passing(self._pool, self._route, response, mark_read)
                if await passing.run(scope, send):
                    return
                replica.is_ready = False

    def _look(self, scope: Scope, body: bytes) -> tuple[list[bytes], int | None]:
        """The names of a prompt's blocks, and the replica that alone knows what it goes on from."""
        if self._route.path.startswith(_WITH_IDS):
            return [], number_in(scope["path_params"]["id"])
        if self._route.body is None or self._route.is_form or not body:
            return [], None
        try:
            given = msgspec.json.decode(body, type=dict[str, Any])
            names = block_names(scope.get("tenant", ""), given)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return [], None  # the replica says what is wrong
        earlier = given.get("previous_response_id") or _last_item_named(given.get("input"))
        return names, number_in(earlier) if isinstance(earlier, str) else None


def _last_item_named(items: object) -> object:
    """The id of the item that an input refers to; of the last, where it refers to several."""
    for item in reversed(items) if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("type") == ITEM_REFERENCE:
            return item.get("id")
    return None


class _Passing:
    """An answer on its way from a replica to a client, as it comes."""

    def __init__(
        self, pool: Pool, route: Route, response: httpx2.Response, mark_read: Callable[[], None]
    ) -> None:
        self._config = pool.state.config
        self._route = route
        self._response = response
        self._mark_read = mark_read
        media_type = response.headers.get("content-type", "").partition(";")[0]
        self._framing = _STREAMS.get(media_type)
        self._end = b"\n" if self._framing is LINES else b"\n\n"
        self._has_begun = False
        self._num_events = 0

    async def run(self, scope: Scope, send: Send) -> bool:
        """Pass it on. Where the replica ends before its stream does, an error event is the end.

        Returns:
            Whether it was one: not where the replica stops and takes no more requests.

        Raises:
            HttpError: 503, the replica has ended, and nothing can say so in the answer.
        """
        try:
            if self._response.status_code == 503 and await _is_stopping(self._response):
                return False
            scope[IS_COUNTED] = True
            if self._framing is not None and scope["method"] != "HEAD":
                scope[FILLER] = self._framing.keep_alive
            with SendTimeout(self._config.send_timeout_s) as self._timeout:
                await self._send_all(scope, send)
        finally:
            await self._response.aclose()
        return True

    async def _send_all(self, scope: Scope, send: Send) -> None:
        """Send the whole answer, or that the rest of it is lost."""
        try:
            async for data in self._whole_frames():
                self._mark_read()
                await self._send(send, data)
            await self._send(send, b"", is_last=True)
        except httpx2.TransportError:
            if self._framing is None or not self._has_begun:
                scope[IS_COUNTED] = False
                raise _lost() from None
            await self._send(send, self._error_event(), is_last=True)

    async def _whole_frames(self) -> AsyncIterator[bytes]:
        """The bytes of the answer; of a stream, no event is begun that may never end."""
        if self._response.is_stream_consumed:
            yield self._response.content
            return
        rest = b""
        async for data in cast("httpx2.AsyncByteStream", self._response.stream):
            if self._framing is None:
                yield data
                continue
            frames, end, rest = (rest + data).rpartition(self._end)
            if self._framing is LINES and not end and not rest.strip():
                frames, rest = rest, b""  # a sign of life
            if frames or end:
                self._num_events += frames.count(b"event: ")
                yield frames + end
        if rest:
            yield rest

    async def _send(self, send: Send, data: bytes, *, is_last: bool = False) -> None:
        self._timeout.begin()
        if not self._has_begun:
            self._has_begun = True
            headers = [
                (name.lower(), value)
                for name, value in self._response.headers.raw
                if name.lower() not in _NOT_RETURNED
                and not name.lower().startswith(b"access-control-")
            ]
            status = self._response.status_code
            await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})
        self._timeout.end(did_send=bool(data))

    def _error_event(self) -> bytes:
        """What a client is told in its dialect when the replica has ended."""
        error = _lost()
        framing = self._route.framing
        if framing is NAMED and self._route.error is openai_error:
            event: msgspec.Struct = ReplicaLost(error.code, error.text, self._num_events)
        else:
            event = self._route.error(error)
        return framing.encode(event) + framing.end


@contextmanager
def _sending(
    replica: Replica, names: Sequence[bytes], *, is_counted: bool
) -> Iterator[Callable[[], None]]:
    """Count what a replica is sent; yields what to call when it has read the prompt."""
    waiting = len(names) - replica.sent.match(names)
    replica.sent.add(names)
    replica.num_running += is_counted
    replica.waiting_blocks += waiting

    def mark_read() -> None:
        nonlocal waiting
        replica.waiting_blocks -= waiting
        waiting = 0

    try:
        yield mark_read
    finally:
        mark_read()
        replica.num_running -= is_counted


async def _is_stopping(response: httpx2.Response) -> bool:
    """Whether a refusal says that the replica takes no more requests; the body is read then."""
    content = await response.aread()
    with suppress(msgspec.DecodeError):
        error = msgspec.json.decode(content, type=dict[str, Any]).get("error")
        return isinstance(error, Mapping) and error.get("code") == "stopping"
    return False


def _lost() -> HttpError:
    return HttpError(
        503,
        "the replica that worked on this has ended; send the request again.",
        code="replica_lost",
        retry_after_s=1,
    )


def _request_of(scope: Scope, body: bytes) -> ReplicaRequest:
    """A client's request as a replica gets it, without what a proxy has put before the path."""
    path = quote(scope["path"], safe="/:@!$&'()*+,;=~").encode()
    query = scope["query_string"]
    headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_SENT]
    headers.append((b"x-request-id", scope["request_id"].encode()))
    if FORWARDED_PROTO not in HTTPConnection(scope).headers:
        headers.append((FORWARDED_PROTO.encode(), scope["scheme"].encode()))
    target = path + (b"?" + query if query else b"")
    return ReplicaRequest(scope["method"], target, headers, body)


def _state_of(replica: Replica) -> str:
    if replica.is_leaving:
        return "restarting"
    return "ready" if replica.is_ready else "starting"


def _as_response(answer: httpx2.Response) -> Response:
    kept = {name: answer.headers[name] for name in ("retry-after",) if name in answer.headers}
    media_type = answer.headers.get("content-type", "application/json")
    return Response(answer.content, answer.status_code, headers=kept, media_type=media_type)


def _merged(answers: Sequence[httpx2.Response]) -> Response:
    """One answer to what all were told: counts are added, and what one has done is done."""
    try:
        found = [msgspec.json.decode(each.content, type=dict[str, Any]) for each in answers]
    except msgspec.DecodeError:
        return _as_response(answers[0])
    whole = found[0]
    for other in found[1:]:
        for name, value in whole.items():
            if isinstance(value, bool):
                whole[name] = value or other.get(name) is True
            elif isinstance(value, int):
                whole[name] = value + int(other.get(name) or 0)
    return JSONResponse(whole)
