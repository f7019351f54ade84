"""``/health`` on a port and threads of its own, beside an event loop that is busy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import msgspec
from typing_extensions import override

from blazr.core.errors import BlazrError, ConfigError
from blazr.server.errors import HttpError, openai_error
from blazr.server.models import Models

PATHS = frozenset({"/health", "/v1/health", "/ping"})
# An event loop that has not come round for so long does not live, however busy it is.
LOOP_STALL_S = 30.0
_CLIENT_S = 2.0  # a client that neither sends nor reads for so long is dropped


def check_engines(models: Models) -> None:
    """Raise where the engine of a loaded model does not work; on any thread.

    Raises:
        EngineError: With its reason.
    """
    for service in models.loaded():
        service.check()


class Liveness:
    """Answers ``GET /health``, without TLS and keys, while the event loop serves a crowd.

    On the loop a request waits for all that came before it, and thousands of new connections take
    seconds. It tells neither models nor version, as anyone who reaches the port may ask.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.

    Raises:
        ConfigError: It is in use or not allowed, or there is no such address.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("_Server", (_Server,), {"address_family": family})
        try:
            self._server: _Server = server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {host[:100]} port {port} for /health.", found=str(error)
            ) from None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @contextmanager
    def answering(self, check: Callable[[], None]) -> Iterator[None]:
        """Answer until the block ends, and listen no longer.

        Args:
            check: Raises `BlazrError` where something does not work; on any thread.
        """
        self._server.check = check
        thread = threading.Thread(
            target=self._server.serve_forever, name="blazr-liveness", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
    block_on_close = False
    check: Callable[[], None]

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """A client left; there is nobody to tell."""


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[float] = _CLIENT_S
    wbufsize = -1  # the answer goes out in one piece

    def do_GET(self) -> None:
        """Say whether everything works."""
        assert isinstance(self.server, _Server)
        if self.path.partition("?")[0] not in PATHS:
            self._refuse(HttpError(404, "there is no such endpoint.", code="not_found"))
            return
        try:
            self.server.check()
        except BlazrError as error:
            self._refuse(HttpError.of(error))
        else:
            self._send(200, b'{"status":"ok"}')

    def _refuse(self, error: HttpError) -> None:
        self._send(error.status, msgspec.json.encode(openai_error(error)))

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    @override
    def version_string(self) -> str:
        return "blazr"

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds."""
