"""Middleware: request ids, access log, limits on headers, API keys, errors as answers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from time import monotonic
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blazr.core.log import write_line
from blazr.server.config import (
    MAX_HEADER_BYTES,
    MAX_HEADER_FIELDS,
    ServerConfig,
)
from blazr.server.endpoint import Route
from blazr.server.errors import STOPS, ErrorShape, HttpError, clean
from blazr.server.state import ServerState
from blazr.server.tracing import Tracer

_log = logging.getLogger(__name__)

# Key of a request's scope: whether it is counted and logged elsewhere, or is not worth it.
IS_COUNTED = "blazr.is_counted"
_MAX_REQUEST_ID = 128
_ABSOLUTE = re.compile(r"https?://(?P<host>[^/@]+)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)
# Of a body that is refused unread: how long, and how many times the longest body, is still taken.
_LINGER_S = 5.0
_LINGER_BODIES = 4


class BodyMiddleware:
    """Takes bodies that nobody reads, before their request is refused.

    A client that is still sending does not read, and where a connection is closed over what it
    sends, its system throws the answer away. So a refusal waits for the end of the body, but not
    for long. Requests with two lengths end their connection: programs on the way may not agree
    where the next one begins [RFC 9112, 6.1].
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._most_bytes = _LINGER_BODIES * max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        headers = Headers(scope=scope)
        is_ambiguous = "content-length" in headers and "transfer-encoding" in headers
        has_more = "expect" not in headers  # who asks before it sends reads at once

        async def take() -> Message:
            nonlocal has_more
            message = await receive()
            has_more = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                if is_ambiguous:
                    MutableHeaders(scope=message)["Connection"] = "close"
                if message["status"] >= 400:
                    await discard()
            await send(message)

        async def discard() -> None:
            left = self._most_bytes
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while has_more and left > 0:
                        left -= len((await take()).get("body", b""))

        await self._app(scope, take, answer)


class RequestContextMiddleware:
    """Gives a request its id, logs and counts it, and turns errors into answers.

    The client's ``X-Request-Id`` is echoed and logged, and is a key to nothing. Anthropic's client
    looks for it under ``Request-Id``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        state: ServerState,
        shape_of: Callable[[str, Headers], ErrorShape],
        tracer: Tracer | None = None,
    ) -> None:
        self._app = app
        self._state = state
        self._is_replica = state.config.replica is not None
        # the process in front of a replica has taken it off
        self._root = "" if self._is_replica else state.config.root_path
        self._shape_of = shape_of  # by path and headers
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            return
        started_s = monotonic()
        started = datetime.now(UTC)
        _take_absolute_form(scope)
        headers = Headers(scope=scope)
        request_id = scope["request_id"] = _request_id(headers)
        # the process in front of a replica gives all requests an id but its own
        scope[IS_COUNTED] = self._is_replica and "x-request-id" not in headers
        root, path = self._root, scope["path"]
        scope["path"] = _without_prefix(root, path)
        # without a slash at the end of its address, a page would look for its files elsewhere
        app = redirect(scope, f"{path}/") if root and path == root else self._app
        facts: dict[str, str | int] = scope.setdefault("facts", {})
        status = 0
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s %s begins, %s", scope["method"], clean(scope["path"], 100), request_id)

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                answered["X-Request-Id"] = answered["Request-Id"] = request_id
            await send(message)

        try:
            await app(scope, receive, note)
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001  (see STOPS)
            answer = HttpError.of(error)
            if answer.code == "internal_error":
                _log.exception("request %s failed", request_id)
                answer.message += f" Its log has more under {request_id}."
            if status == 0:
                shape = self._shape_of(scope["path"], headers)
                await answer.response(shape)(scope, receive, note)
        finally:
            facts |= {
                "method": clean(scope["method"], 20),
                "path": clean(scope["path"], 100),
                "status": status,
                "request_id": request_id,
            }
            self._account(scope, started, monotonic() - started_s, facts)

    def _account(
        self, scope: Scope, started: datetime, took_s: float, facts: Mapping[str, str | int]
    ) -> None:
        """Count, log and trace a request that has ended."""
        if not scope[IS_COUNTED]:
            status = str(facts["status"] or "none")
            self._state.metrics.count("blazr_http_responses", status=status)
            self._log(started, took_s, facts)
        if self._tracer is not None:
            self._tracer.record(started, took_s, facts, Headers(scope=scope))

    def _log(self, started: datetime, took_s: float, facts: Mapping[str, str | int]) -> None:
        """One line for a request; of what was said there is nothing in it."""
        took_ms = round(took_s * 1000, 1)
        if self._state.config.access_log == "text":
            _log.info(
                "%s %s %d %.1f ms %s",
                facts["method"],
                facts["path"],
                facts["status"],
                took_ms,
                facts["request_id"],
            )
        elif self._state.config.access_log == "json":
            line = {"time": started.isoformat(), "ms": took_ms, **facts}
            write_line(msgspec.json.encode(line).decode())


class AuthMiddleware:
    """Checks headers, host, origin and API key, before anything of the body is read."""

    def __init__(self, app: ASGIApp, *, state: ServerState, routes: Sequence[Route]) -> None:
        self._app = app
        self._state = state
        config = state.config
        # where a client shows a key, a web page of another name could not
        self._checks_host = not config.uds and not config.api_keys
        # a path may be a page for all, and an endpoint for those who have a key
        self._open = {
            method: _matches(each for each in routes if each.is_open and each.method == method)
            for method in {each.method for each in routes if each.is_open}
        }
        self._is_command = _matches(each for each in routes if each.is_command)
        self._needs_operator = _matches(x for x in routes if x.is_command or x.needs_operator)
        # the keys themselves are not looked at again
        self._admins = [digest_of(key) for key in config.admin_api_keys]
        self._digests = [digest_of(key) for key in config.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or raise what refuses it."""
        headers = Headers(scope=scope)
        num_bytes = sum(len(name) + len(value) for name, value in headers.raw)
        if num_bytes > MAX_HEADER_BYTES or len(headers.raw) > MAX_HEADER_FIELDS:
            raise HttpError(
                431,
                f"the headers are too large: at most {MAX_HEADER_FIELDS} fields and "
                f"{MAX_HEADER_BYTES} bytes.",
                code="headers_too_large",
            )
        if self._checks_host:
            _check_host(headers, self._state.config)
        if scope["method"] == "POST":
            _check_site(headers, self._state.config)
        path = scope["path"]
        if not self._is_open(scope["method"], path):
            digest = self._check_key(headers, path)
            scope["tenant"] = digest.hex()
            scope["is_operator"] = not self._admins or digest in self._admins
            self._state.check_not_draining()
        await self._app(scope, receive, send)

    def _is_open(self, method: str, path: str) -> bool:
        matches = self._open.get("GET" if method == "HEAD" else method)
        return matches is not None and matches(path)

    def _check_key(self, headers: Headers, path: str) -> bytes:
        """The digest of the key that a request shows; empty where it needs none."""
        known = self._digests and self._digests + self._admins
        fault = "the API key is missing or wrong."
        if self._needs_operator(path):
            known = self._admins or self._digests
            if self._admins:
                fault = "the API key is missing, or not an operator's (--admin-api-key)."
        if not known:
            if self._is_command(path):
                raise HttpError(
                    403,
                    "only operators may do this, and nobody can tell them from others: "
                    "start the server with --admin-api-key or --api-key.",
                    code="no_operator",
                )
            return b""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        shown = headers.get("x-api-key", headers.get("api-key", ""))
        if scheme.lower() == "bearer":
            shown = token.strip()
        digest = digest_of(shown)
        # every key is compared, so that timing does not say which one was close
        matches = [hmac.compare_digest(digest, each) for each in known]
        if not any(matches):
            raise HttpError(
                401,
                fault,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return digest


def _matches(routes: Iterable[Route]) -> Callable[[str], bool]:
    """Whether a path is one of theirs; one with a parameter stands for all that begin like it."""
    paths = frozenset(each.path for each in routes)
    prefixes = tuple(path.partition("{")[0] for path in paths if "{" in path)
    return lambda path: path in paths or path.startswith(prefixes)


def digest_of(key: str) -> bytes:
    """What is kept of an API key; in hexadecimal it names who has it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _request_id(headers: Headers) -> str:
    """The client's, where it can be echoed and logged, or a new one."""
    given = headers.get("x-request-id", "")
    is_fit = 0 < len(given) <= _MAX_REQUEST_ID and given.isascii() and given.isprintable()
    return given if is_fit else uuid.uuid4().hex


def _take_absolute_form(scope: Scope) -> None:
    """Put what a target such as ``http://host/path`` names where other targets have it.

    Its host counts, and not the header [RFC 9112, 3.2.2]. One with a password is left as it is,
    and leads nowhere.
    """
    found = _ABSOLUTE.fullmatch(scope["path"])
    if found is None:
        return
    scope["path"] = found["path"] or "/"
    others = [each for each in scope["headers"] if each[0] != b"host"]
    scope["headers"] = [(b"host", found["host"].encode()), *others]


def _without_prefix(root: str, path: str) -> str:
    """A path as our routes have it; a proxy may leave its prefix on, or take it off."""
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) :] or "/"
    return path


def redirect(scope: Scope, path: str) -> Response:
    """What leads a client from a path to the one that differs by the slash at its end.

    It does not say of which host, or by which scheme: behind a proxy the server knows neither.

    Args:
        scope: Of the request, whose query is kept.
        path: Where to, as the client or the routes have it.
    """
    *_, name = path.rstrip("/").split("/")
    location = f"{quote(name)}/" if path.endswith("/") else f"../{quote(name)}"
    query = scope["query_string"].decode("latin-1")
    return Response(
        status_code=307, headers={"Location": f"{location}?{query}" if query else location}
    )


def _check_host(headers: Headers, config: ServerConfig) -> None:
    """Refuse a request under a name that is not this machine's.

    A web page can point its own name at this machine and then read what the server answers (DNS
    rebinding). It cannot do so with an address, or with a name that has no dot, which only the
    network's own name server resolves.
    """
    host = headers.get("host", "").strip()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if "." not in name or name.endswith(".localhost") or "*" in config.allowed_hosts:
        return
    with suppress(ValueError):
        ip_address(name)
        return
    own = {config.host, socket.gethostname(), *config.allowed_hosts}
    if name.lower().removesuffix(".") not in {each.lower() for each in own}:
        raise HttpError(
            421,
            f"without API keys this server does not answer to the name {name[:100]!r}; start it "
            "with --allowed-host NAME, or with --api-key.",
            code="misdirected_request",
        )


def _check_site(headers: Headers, config: ServerConfig) -> None:
    """Refuse what a page of another site makes a browser send without asking here first.

    Browsers ask (a CORS preflight) before they send JSON under its own name; for the types that
    forms have they do not, and bodies are read as JSON whatever they are called.
    """
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site")
    if content_type == "application/json" or site in {"same-origin", "none"}:
        return
    is_own = origin is not None and origin.partition("://")[2] == headers.get("host")
    is_foreign = site is not None if origin is None else not is_own
    if is_foreign and not config.allows_origin(origin or ""):
        raise HttpError(
            403,
            "a page of another site may not send this; allow its origin with --cors-origin, "
            "or send 'Content-Type: application/json'.",
            code="cross_site",
        )
