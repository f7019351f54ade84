"""Listening, serving, and stopping without cutting anyone off."""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import signal
import socket
import ssl
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Protocol, cast

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from blazr.core.errors import ConfigError, EngineError
from blazr.server.app import build_app
from blazr.server.config import MAX_HEADER_BYTES, ServerConfig
from blazr.server.errors import HttpError, openai_error
from blazr.server.liveness import LOOP_STALL_S, Liveness
from blazr.server.liveness_process import PATHS
from blazr.server.model_events import EventBus
from blazr.server.models import Models
from blazr.server.sse import FILLER
from blazr.server.state import ServerState
from blazr.server.tracing import Tracer

_log = logging.getLogger(__name__)

_BACKLOG = 2048
# Attempts to accept a connection before anything else is done; where they fail, each is made again
# a second later, so that many would keep a processor busy.
_ACCEPTED_AT_ONCE = 32
_FRONT_CONNECTIONS = 64  # that the process in front of replicas makes besides those for clients
_IDLE_S = 30
_HEADER_S = 10.0
_PROBE_S = 0.1
_MAX_PROBE_S = 2.0
_LINGER_S = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_LAST_S = 2.0  # for what still runs when an engine has failed for good
_UNREAD_S = 5  # for clients to read what is left, when the server stops
_WARN_S = 10.0
# How requests begin that are answered however many there are.
_PROBES = tuple(f"GET {path} ".encode() for path in sorted(PATHS))


def listen(config: ServerConfig) -> socket.socket:
    """Take the port, or the socket file, before anything slow is done.

    Raises:
        ConfigError: It is in use or not allowed, or there is no such address; or certificate and
            key cannot be used.
    """
    if config.tls_cert is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(config.tls_cert, config.tls_key, password="")
        except (OSError, ValueError) as error:
            raise ConfigError(
                "the TLS certificate cannot be used.",
                found=str(error)[:200],
                expected="a certificate and its key in PEM files, without a password",
            ) from None
    if config.uds is not None:
        return _listen_on_file(Path(config.uds))
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio turns Nagle's delay of 40 ms off only for sockets that say they are TCP
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
        # a port that is bound but not listening can be bound again by another process
        sock.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise ConfigError(
            f"cannot listen on {config.host[:100]} port {config.port}.",
            found=str(error),
            hint="--port 0 picks a free port" if is_taken else "--host 127.0.0.1 --port 8080",
        ) from None
    return sock


def _listen_on_file(path: Path) -> socket.socket:
    """A socket file that this user alone can connect to; one that nobody listens to is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _has_listener(path):
            path.unlink()
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {str(path)[:200]}.", found=str(error)[:200]) from None
    return sock


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def address_of(sock: socket.socket, *, is_tls: bool = False) -> str:
    """The URL of a listening socket."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{host}:{port}"


class Served(Protocol):
    """What a server serves: models, or replicas that do."""

    @property
    def state(self) -> ServerState:
        """What the server knows about itself."""

    @property
    def events(self) -> EventBus:
        """Told a last event, None, when the server stops."""

    @property
    def failure(self) -> EngineError | None:
        """Why the server can only end, if it can."""

    def check(self) -> None:
        """Raise an `EngineError`, with its reason, where it does not work; on any thread."""

    def fail(self) -> None:
        """End what still runs with an error."""


def serve(models: Models, sock: socket.socket, liveness: Liveness | None = None) -> None:
    """Serve until a signal says to stop.

    The first SIGTERM, SIGINT or SIGHUP (the terminal has gone) refuses new requests and lets
    running ones finish for ``config.drain_timeout_s``; those still running then end with an error.
    The second stops at once.

    Args:
        models: What to serve, and how. Closed at the end.
        sock: What `listen` returned. Closed at the end.
        liveness: Answers ``/health`` besides.

    Raises:
        ConfigError: Tracing is asked for and not installed.
        EngineError: An engine has failed for good.
    """
    config = models.state.config
    tracer = None if config.otlp_endpoint is None else Tracer(config.otlp_endpoint)
    try:
        run_server(make_server(build_app(models, tracer=tracer), models), sock, liveness)
        failure = models.failure
    finally:
        models.close()
        if tracer is not None:
            tracer.close()
    if failure is not None:
        raise failure


def run_server(server: DrainingServer, sock: socket.socket, liveness: Liveness | None) -> None:
    """Run a server until a signal says to stop; the socket is closed then."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup has it ignored
        signal.signal(signal.SIGHUP, server.handle_exit)
    path = sock.getsockname() if sock.family == socket.AF_UNIX else None
    try:
        with liveness.answering(server.check) if liveness else nullcontext():
            server.run(sockets=[sock])
    finally:
        if path is not None:
            Path(path).unlink(missing_ok=True)


def make_server(app: ASGIApp, models: Models) -> DrainingServer:
    """The server around an application, ready to run."""
    return DrainingServer(uvicorn_config(app, models.state.config), models)


def uvicorn_config(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    """How uvicorn is to run an application."""
    most_connections = config.max_connections
    if config.replica is not None:
        most_connections += _FRONT_CONNECTIONS
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=2 * _UNREAD_S,
        backlog=_ACCEPTED_AT_ONCE,
        limit_concurrency=most_connections,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
    )


@cache
def _too_many_connections(max_connections: int) -> bytes:
    """An answer, ready to send: it must cost little, as thousands may need it at once."""
    error = HttpError(
        503,
        f"there are too many connections: at most {max_connections}.",
        code="too_many_connections",
    )
    body = msgspec.json.encode(openai_error(error))
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that waits for a request's headers, but not for ever.

    The other parser that uvicorn has accepts headers of any length.

    A client that will send no more may still read: a program at the end of a pipe does. Or it is
    gone: that looks the same, until something is sent, which a machine refuses for a client that is
    gone. So who closes its side is sent something that means nothing: 102 when there is no answer
    after a moment [RFC 9110, 15.2], and in an answer what it says itself to be harmless.

    Where there are too many connections, only `/health` is answered on those that came last. They
    are accepted even so: what waits in the kernel's queue looks to a client like a server that does
    not live. uvicorn would build a request and run a task to refuse it.
    """

    header_timeout_s = _HEADER_S
    probe_s = _PROBE_S
    _error_watch: select.epoll | None = None  # of the socket, once its client sends no more
    _is_over_limit = False
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._max_connections = self.config.limit_concurrency or 0
        self.limit_concurrency = None
        self._is_over_limit = self._has_too_many()
        self.loop.call_later(self.header_timeout_s, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; its handler, if it still works, gets a disconnect."""
        super().connection_lost(exc)
        if self._error_watch is not None:
            self.loop.remove_reader(self._error_watch)
            self._error_watch.close()

    def data_received(self, data: bytes) -> None:
        """A client has sent something.

        The idle timeout stays until that is a request; uvicorn would end it with the first byte.
        """
        if self._is_refused:
            return  # closing before all was read would take the answer from who still sends
        if self._is_over_limit and not self._is_let_in(data):
            self._refuse()
            return
        self.conn.receive_data(data)
        self.handle_events()

    def send_400_response(self, msg: str) -> None:
        """A client has sent what is no HTTP; a handler that still works has lost its client."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:  # an answer has begun
            self.transport.close()

    def _has_too_many(self) -> bool:
        return len(self.connections) > self._max_connections

    def _is_let_in(self, data: bytes) -> bool:
        """Whether what a connection beyond the limit sends is still read."""
        if not self._has_too_many():
            self._is_over_limit = False  # others have left
            return True
        is_between = self.cycle is None or self.cycle.response_complete
        return not is_between or data.startswith(_PROBES)

    def _refuse(self) -> None:
        self._is_refused = True
        self.transport.write(_too_many_connections(self._max_connections))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more; returns whether it can still be answered."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme == "https":
            return False
        if self._error_watch is None:
            # the loop does not watch the socket any more, nor could it ask for errors alone
            self._error_watch = select.epoll()
            self._error_watch.register(self.transport.get_extra_info("socket"), select.EPOLLERR)
            self.loop.add_reader(self._error_watch, self.transport.abort)
            if self.conn.our_state is h11.SEND_BODY:
                self._probe(self.probe_s)
            else:
                self.loop.call_later(self.probe_s, self._probe, self.probe_s)
        return True

    def on_response_complete(self) -> None:
        """An answer is sent, and the next request is begun if it is there already."""
        super().on_response_complete()
        if self._error_watch is not None and self.cycle.response_complete:
            self.transport.close()

    def _should_upgrade(self) -> bool:
        return False  # many ask for HTTP/2 in passing, which needs no warning

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.close()

    def _probe(self, delay_s: float) -> None:
        if self.transport.is_closing():
            return
        state = self.conn.our_state
        scope = cast("Scope", self.scope)
        if state is h11.SEND_RESPONSE:
            if scope["http_version"] == "1.0":  # knows no such answer
                self.transport.close()
                return
            event = h11.InformationalResponse(status_code=102, headers=[], reason="Processing")
            self.transport.write(self.conn.send(event))
        elif state is h11.SEND_BODY and FILLER in scope:
            self.transport.write(self.conn.send(h11.Data(data=scope[FILLER])) or b"")
        self.loop.call_later(delay_s, self._probe, min(2 * delay_s, _MAX_PROBE_S))


class DrainingServer(uvicorn.Server):
    """A server that finishes what it has begun.

    Args:
        settings: uvicorn's.
        models: Told when to refuse new requests; tell what still runs.
    """

    unread_s: float = _UNREAD_S

    def __init__(self, settings: uvicorn.Config, models: Served) -> None:
        super().__init__(settings)
        self._models = models
        self._state = models.state
        self.deadline_s: float | None = None  # once it stops
        self._tick_s = monotonic()
        self._warns_again_s = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        asyncio.get_running_loop().set_exception_handler(self._report)
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)
        if self._state.batches is not None:
            self._state.batches.begin()

    def check(self) -> None:
        """Raise where the engines or the event loop do not work; on any thread.

        Raises:
            EngineError: With its reason.
        """
        self._models.check()
        age_s = monotonic() - self._tick_s
        if age_s > LOOP_STALL_S:
            raise EngineError("the event loop does not advance.", found=f"none for {age_s:.0f} s")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to stop; at the second signal, stop. Signals are not raised again, so we exit 0."""
        if self.deadline_s is not None:
            self.should_exit = self.force_exit = True
            return
        self._state.is_draining = True
        self.deadline_s = monotonic() + self._state.config.drain_timeout_s

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; says whether to stop listening."""
        self._tick_s = monotonic()
        if await super().on_tick(counter):
            return True
        if self.deadline_s is None:
            if self._models.failure is None:
                return False
            self._state.is_draining = True
            self.deadline_s = monotonic() + _LAST_S
        if self._state.batches is not None:
            await self._state.batches.stop()
        if self._state.num_working and monotonic() < self.deadline_s:
            return False
        if self._state.num_working:
            _log.warning("ending %d requests that still run", self._state.num_working)
            self._models.fail()
        return True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and wait a little for those who are being answered."""
        self._models.events.publish(None)  # or those who watch would wait for ever
        if self._state.batches is not None:
            await self._state.batches.stop()
        if self.force_exit:
            self._hang_up()
        hanging_up = asyncio.get_running_loop().call_later(self.unread_s, self._hang_up)
        await super().shutdown(sockets)
        hanging_up.cancel()

    def _hang_up(self) -> None:
        # a request that is cancelled, and whose client has not left, is logged as one that failed
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what went wrong in the event loop.

        Where no file can be opened any more, asyncio reports each attempt to accept a connection
        with a traceback. Each attempt also listens again later, which fails once we have stopped.
        """
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            if monotonic() >= self._warns_again_s:
                self._warns_again_s = monotonic() + _WARN_S
                _log.warning(
                    "connections wait, for none can be accepted: %s; ulimit -n may be too low",
                    error.strerror,
                )
        elif "_start_serving" not in repr(context.get("handle")):
            loop.default_exception_handler(context)
