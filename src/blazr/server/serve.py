"""Listening, serving, and stopping without cutting anyone off."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from time import monotonic
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from blazr.core.errors import ConfigError
from blazr.llm.async_llm import AsyncLLM
from blazr.server.app import build_app
from blazr.server.config import MAX_HEADER_BYTES, ServerConfig
from blazr.server.service import Service

_log = logging.getLogger(__name__)

_BACKLOG = 2048
_IDLE_S = 30
_HEADER_S = 10.0


def listen(config: ServerConfig) -> socket.socket:
    """Take the port, before anything slow is done.

    Raises:
        ConfigError: It is in use or not allowed, or there is no such address.
    """
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
        raise ConfigError(
            f"cannot listen on {config.host[:100]} port {config.port}.",
            found=str(error),
            hint="--port 0 picks a free port",
        ) from None
    return sock


def address_of(sock: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    llm: AsyncLLM,
    config: ServerConfig,
    sock: socket.socket,
    *,
    aliases: tuple[str, ...] = (),
) -> None:
    """Serve until a signal says to stop.

    The first SIGTERM or SIGINT refuses new requests and lets running ones finish for
    ``config.drain_timeout_s``; those still running then end with an error. The second stops at
    once.

    Args:
        llm: The model.
        config: How to behave.
        sock: What `listen` returned. Closed at the end.
        aliases: More names the model answers to.
    """
    app = build_app(llm, config, aliases=aliases)
    make_server(app, app.state.service).run(sockets=[sock])


def make_server(app: ASGIApp, service: Service) -> DrainingServer:
    """The server around an application, ready to run."""
    settings = uvicorn.Config(
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
        timeout_graceful_shutdown=5,
    )
    return DrainingServer(settings, service)


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that waits for a request's headers, but not for ever.

    The other parser that uvicorn has accepts headers of any length.
    """

    header_timeout_s = _HEADER_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self.loop.call_later(self.header_timeout_s, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.close()


class DrainingServer(uvicorn.Server):
    """A server that finishes what it has begun.

    Args:
        settings: uvicorn's.
        service: Told when to refuse new requests; tells what still runs.
        now_s: Monotonic time.
    """

    def __init__(
        self,
        settings: uvicorn.Config,
        service: Service,
        *,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(settings)
        self._service = service
        self._now_s = now_s
        self._deadline_s: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to stop; at the second signal, stop. Signals are not raised again, so we exit 0."""
        if self._deadline_s is not None:
            self.should_exit = self.force_exit = True
            return
        self._service.is_draining = True
        self._deadline_s = self._now_s() + self._service.config.drain_timeout_s

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; says whether to stop listening."""
        if await super().on_tick(counter):
            return True
        if self._deadline_s is None:
            return False
        if self._service.num_working and self._now_s() < self._deadline_s:
            return False
        if self._service.num_working:
            _log.warning("ending %d requests that still run", self._service.num_working)
            self._service.stop()
        return True
