"""A site on a loopback port, and an internet on which everybody is that site."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpcore2
from typing_extensions import override

PUBLIC = "93.184.215.14"
Answer = tuple[int, dict[str, str], bytes]  # status, headers, body


class Handler(BaseHTTPRequestHandler):
    """Answers what its class says for a path: status, headers, body."""

    answers: ClassVar[Mapping[str, Answer]]
    asked: ClassVar[list[tuple[str, str]]]
    may_go_on: ClassVar[threading.Event]

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append((self.headers["Host"], self.path))
        assert self.headers["Accept-Encoding"] == "identity"
        if self.path == "/slow":
            self.may_go_on.wait()
        status, headers, body = self.answers.get(self.path, (404, {}, b""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection to the local server that looks as if it led to a public address."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, ends: tuple[str, str]) -> None:
        self._inner = inner
        self._ends = ends
        self.read = inner.read  # type: ignore[method-assign]
        self.write = inner.write  # type: ignore[method-assign]
        self.aclose = inner.aclose  # type: ignore[method-assign]

    @override
    def get_extra_info(self, info: str) -> object:
        found = {"client_addr": (self._ends[0], 1), "server_addr": (self._ends[1], 80)}
        return found.get(info) or self._inner.get_extra_info(info)


class Internet(httpcore2.AsyncNetworkBackend):
    """The internet: everybody in it is the local server.

    Args:
        port: Of the local server.
        ends: The addresses of both ends of each connection; None is the truth.
    """

    def __init__(self, port: int, ends: tuple[str, str] = ("8.8.8.8", PUBLIC)) -> None:
        self._port = port
        self._ends = ends
        self.connected: list[tuple[str, int]] = []

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.connected.append((host, port))
        inner = await httpcore2.AnyIOBackend().connect_tcp("127.0.0.1", self._port)
        return _Stream(inner, self._ends)


@contextmanager
def site(answers: Mapping[str, Answer]) -> Iterator[tuple[type[Handler], int]]:
    """Serve answers by path on a loopback port: the handler and the port."""
    handler = type("Handler", (Handler,), {"answers": answers, "asked": []})
    handler.may_go_on = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield handler, server.server_port
    finally:
        handler.may_go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
