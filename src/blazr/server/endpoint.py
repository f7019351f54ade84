"""One endpoint: read the body within its limits, decode it, run the handler, answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blazr.core.errors import RequestError
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError, Shape, clean
from blazr.server.models import Models
from blazr.server.params import name_as_sent, refuse_foreign
from blazr.server.service import Call
from blazr.server.state import Service

MAX_JSON_DEPTH = 64

_FIELD = re.compile(r"at `\$\.(\w+)")


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the ROUTES table.

    Args:
        method: ``"GET"``, ``"POST"`` or ``"DELETE"``.
        path: The path, with parameters in Starlette's syntax.
        handler: What answers; takes a `Call`.
        body: Type of the request body, or of the query where there is no body; None where neither
            says anything.
        is_open: Whether it is answered without a key, and while the server stops.
        needs_model: Whether it waits for a model; None is whether something is posted. The body's
            ``model`` or the query's says which.
        is_command: Whether it is an operator's: its body may be left out, or stand in the query,
            and it needs a key.
        shape: How it writes errors; None is OpenAI's way.
    """

    method: str
    path: str
    handler: Callable[[Call[Any]], Awaitable[Response]]
    body: type[msgspec.Struct] | None = None
    is_open: bool = False
    shape: Shape | None = None
    needs_model: bool | None = None
    is_command: bool = False


class Endpoint:
    """A route as an ASGI application."""

    def __init__(self, route: Route, models: Models) -> None:
        self._route = route
        self._models = models
        has_body = route.method == "POST" and route.body is not None
        self._decoder = msgspec.json.Decoder(route.body) if has_body else None
        self._needs_model = has_body if route.needs_model is None else route.needs_model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Errors are raised; the middleware renders them."""
        state, connection = self._models.state, HTTPConnection(scope)
        body: msgspec.Struct | None = None
        is_command = self._route.is_command
        if self._decoder is not None:
            raw = await _read_body(scope, receive, state.config)
            body = _decode(self._decoder, raw or b"{}" if is_command else raw)
            if is_command:
                body = _fill_in(body, connection.query_params)
        elif self._route.body is not None:
            body = _decode_query(self._route.body, connection.query_params)
        if not self._needs_model:
            response = await self._route.handler(self._call(scope, body))
            await _until_gone(receive, response(scope, receive, send))
            return
        name = (
            connection.query_params.get("model") if body is None else getattr(body, "model", None)
        )

        async def work() -> None:
            async with self._models.using(name) as service:
                try:
                    response = await self._route.handler(self._call(scope, body, service))
                except RequestError as error:
                    name_as_sent(error, body)
                    raise
                await response(scope, receive, send)

        with state.working():
            await _until_gone(receive, work())

    def _call(self, scope: Scope, body: object, service: Service | None = None) -> Call[object]:
        return Call(
            body=body,
            models=self._models,
            used=service,
            path=dict(scope.get("path_params", {})),
            tenant=scope.get("tenant", ""),
            request_id=scope.get("request_id", ""),
            facts=scope.setdefault("facts", {}),
        )


def _fill_in(body: msgspec.Struct, query: Mapping[str, str]) -> msgspec.Struct:
    """A command, with what its body leaves out taken from the query."""
    asked = _decode_query(type(body), query)
    names = [name for name in body.__struct_fields__ if getattr(body, name) is None]
    return msgspec.structs.replace(body, **{name: getattr(asked, name) for name in names})


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes) -> msgspec.Struct:
    """Decode a JSON body.

    Raises:
        HttpError: 400, saying what is wrong with it and where.
    """
    try:
        raw.decode()  # the decoder skips unknown fields without looking at their bytes
        body: msgspec.Struct = decoder.decode(raw)
        if not {"temperature", "options"}.isdisjoint(body.__struct_fields__):  # it generates
            refuse_foreign(raw, body)
    except UnicodeDecodeError:
        raise HttpError(400, "the body is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise HttpError(400, "the JSON is nested too deep.", code="invalid_json") from None
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        raise HttpError(
            400,
            clean(f"{error}.", 200),
            param=field[1] if field else None,
            code="invalid_value",
        ) from None
    except msgspec.DecodeError as error:
        message = clean(f"the body is not JSON: {error}.", 200)
        raise HttpError(400, message, code="invalid_json") from None
    _check_depth(body)
    return body


def _decode_query(kind: type[msgspec.Struct], given: Mapping[str, str]) -> msgspec.Struct:
    """The query of a request. What is not known is ignored.

    Raises:
        HttpError: 400, saying what is wrong with it and where.
    """
    try:
        return msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        message = clean(f"{error}.", 200)
        name = field[1] if field else None
        raise HttpError(400, message, param=name, code="invalid_value") from None


def _check_depth(body: object) -> None:
    """Refuse what is nested deeper than any honest request; the types allow free-form fields."""
    layer: list[object] = [body]
    for _ in range(MAX_JSON_DEPTH):
        layer = [inner for outer in layer for inner in _inside(outer)]
        if not layer:
            return
    raise HttpError(400, "the JSON is nested too deep.", code="invalid_json")


def _inside(value: object) -> list[object]:
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list):
        # numbers and strings hold nothing: a prompt of a million ids is not walked twice
        return [each for each in value if isinstance(each, list | dict | msgspec.Struct)]
    return []


async def _read_body(scope: Scope, receive: Receive, config: ServerConfig) -> bytes:
    limit = config.max_body_bytes
    too_long = HttpError(413, f"the body is longer than {limit} bytes.", code="body_too_large")
    declared = HTTPConnection(scope).headers.get("content-length", "0")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise too_long
    body = bytearray()
    deadline = asyncio.get_running_loop().time() + config.body_timeout_s
    has_more = True
    while has_more:
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise HttpError(408, "the body did not arrive in time.", code="timeout") from None
        if message["type"] == "http.disconnect":
            raise HttpError(400, "the client left before its body was read.")
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_long
        has_more = message.get("more_body", False)
    return bytes(body)


async def _until_gone(receive: Receive, work: Coroutine[object, object, None]) -> None:
    """Run ``work``, and cancel it when the client leaves first. It has ended on return."""
    gone = asyncio.create_task(_wait_gone(receive))
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
