"""Answers ``/health`` from a process of its own; `liveness.py` starts it and tells it what to say.

A script that imports nothing of blazr, so that it starts at once and stays small:

    python -P liveness_process.py SOCKET NEWS

Both are numbers of inherited descriptors: a listening socket, and a file. This begins with `NEWS`:
when the server last said something, by the monotonic clock, and in which of the two places behind
it, of `PLACE` bytes each. There is an `ANSWER`, the status of HTTP and the length of the body, and
the body; the other place is written next. The process ends when its standard input does, which the
server holds.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic

PATHS = frozenset({"/health", "/v1/health", "/ping"})
NEWS = struct.Struct("<dQ")
ANSWER = struct.Struct("<II")
PLACE = 2048
SIZE = NEWS.size + 2 * PLACE
# A server that has said nothing for so long does not live: it is stopped, or stuck outside Python.
STALL_S = 10.0
_CLIENT_S = 2.0  # a client that neither sends nor reads for so long is dropped

_NOT_FOUND = (
    b'{"error":{"message":"there is no such endpoint.","type":"invalid_request_error",'
    b'"param":null,"code":"not_found"}}'
)
_STALLED = (
    b'{"error":{"message":"the server\'s process does not run.","type":"server_error",'
    b'"param":null,"code":"engine_error"}}'
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, status: mmap.mmap) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.status = status

    def handle_error(self, request: object, client_address: object) -> None:
        """A client left; there is nobody to tell."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _CLIENT_S
    wbufsize = -1  # the answer goes out in one piece

    def do_GET(self) -> None:
        """Say what the server's process said last."""
        assert isinstance(self.server, _Server)
        if self.path.partition("?")[0] not in PATHS:
            self._send(404, _NOT_FOUND)
            return
        told = self.server.status
        at, place = NEWS.unpack_from(told)
        if monotonic() - at > STALL_S:
            self._send(503, _STALLED)
            return
        start = NEWS.size + place * PLACE
        status, length = ANSWER.unpack_from(told, start)
        self._send(status, told[start + ANSWER.size : start + ANSWER.size + length])

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        return "blazr"

    def log_message(self, *args: object) -> None:
        """Probes come every few seconds."""


def main() -> None:
    """Answer until standard input ends."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    with mmap.mmap(int(sys.argv[2]), SIZE, access=mmap.ACCESS_READ) as status:
        server = _Server(listening, status)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.read(0, 1)
        os._exit(0)  # with whoever is still being answered


if __name__ == "__main__":
    main()
