"""A bound on connections: those beyond it are told to come again, and probes are answered."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from blazr.core.errors import ConfigError
from blazr.server.config import ServerConfig
from blazr.server.liveness_process import PATHS
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until

LIMIT = 4


@pytest.fixture
def running() -> Iterator[Loopback]:
    with serving(scripted_core(), max_connections=LIMIT) as running:
        yield running


@pytest.fixture
def crowd(running: Loopback) -> Iterator[list[socket.socket]]:
    """As many connections as there may be, on which nothing is asked."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(running)) for _ in range(LIMIT)]
        wait_until(lambda: len(running.server.server_state.connections) == LIMIT)
        yield crowd


def connect(running: Loopback) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def ask(connection: socket.socket, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes and read until the server closes."""
    connection.sendall(raw)
    reply = b""
    while data := connection.recv(2**16):
        reply += data
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def test_one_too_many_is_told_to_come_again(running: Loopback, crowd: list[socket.socket]) -> None:
    with connect(running) as late:
        status, headers, body = ask(late, get("/v1/models"))
    assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "too_many_connections"
    assert f"at most {LIMIT}" in error["message"]
    assert ask(crowd[0], get("/v1/models"))[0] == 200


@pytest.mark.usefixtures("crowd")
def test_a_long_body_that_is_refused_leaves_the_answer_readable(running: Loopback) -> None:
    raw = b'{"prompt": "' + b"a" * 3_000_000 + b'"}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    with connect(running) as late:
        assert ask(late, head.encode() + raw)[0] == 503


@pytest.mark.usefixtures("crowd")
def test_probes_are_answered_however_many_there_are(running: Loopback) -> None:
    for path in sorted(PATHS):
        with connect(running) as late:
            assert ask(late, get(path))[0] == 200
    with connect(running) as late:
        late.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert late.recv(2**16).startswith(b"HTTP/1.1 200")
        assert ask(late, get("/v1/models"))[0] == 503


def test_who_came_too_early_is_served_once_others_have_left(
    running: Loopback, crowd: list[socket.socket]
) -> None:
    with connect(running) as late:
        wait_until(lambda: len(running.server.server_state.connections) == LIMIT + 1)
        crowd[0].close()
        wait_until(lambda: len(running.server.server_state.connections) == LIMIT)
        assert ask(late, get("/v1/models"))[0] == 200


def test_those_turned_away_are_gone_after_a_moment(
    running: Loopback, crowd: list[socket.socket]
) -> None:
    """Also those that never close their own side."""
    with ExitStack() as stack:
        for _ in range(20):
            late = stack.enter_context(connect(running))
            late.sendall(get("/v1/models"))
        wait_until(lambda: len(running.server.server_state.connections) == len(crowd))


def test_the_limit_is_shown_and_checked() -> None:
    with serving(scripted_core(), max_connections=77) as running:
        assert running.client.get("/server_info").json()["limits"]["max_connections"] == 77
    with pytest.raises(ConfigError, match="the limit --max-connections "):
        ServerConfig(max_connections=0)
