"""Unusual and legal ways to use a connection, and ways to hold one up."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from blazr.server import middleware, serve
from blazr.server.serve import PatientProtocol
from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core, wait_until

ENDLESS = {"prompt": "a", "max_tokens": 10**9, "ignore_eos": True}


@pytest.fixture
def running() -> Iterator[Loopback]:
    with serving(scripted_core()) as server:
        yield server
        server.engine.go.set()


def connect(running: Loopback) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def request(path: str, body: dict | None = None, *headers: str, version: str = "1.1") -> bytes:
    method, data = ("GET", b"") if body is None else ("POST", json.dumps(body).encode())
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def answer(stream: IO[bytes]) -> tuple[int, bytes]:
    """The status and the body of the next answer, informational ones left out."""
    status = 100
    while status < 200:
        status = int(stream.readline().split()[1])
        fields = {}
        while line := stream.readline().strip():
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip()
    if b"content-length" in fields:
        return status, stream.read(int(fields[b"content-length"]))
    body = b""
    while size := int(stream.readline(), 16):
        body += stream.read(size + 2)[:-2]
    stream.readline()
    return status, body


def test_two_lengths_end_the_connection(running: Loopback) -> None:
    """A proxy may take the other one, and what follows for another client's request."""
    lines = ["POST /generate HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += ["Content-Length: 4", "Transfer-Encoding: chunked", "", ""]
    chunk = b'{"prompt": "a"}'
    sent = "\r\n".join(lines).encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(chunk), chunk)
    with connect(running) as sock, sock.makefile("rb") as stream:
        sock.sendall(sent + request("/version"))
        assert answer(stream)[0] == 200
        assert stream.read() == b""  # what was smuggled is not answered


def test_a_body_that_is_no_http_is_answered_once(caplog: pytest.LogCaptureFixture) -> None:
    """The handler, which refuses a client that asks before it sends, may not answer as well."""
    lines = ["POST /generate HTTP/1.1", "Host: localhost", "Expect: everything"]
    lines += ["Transfer-Encoding: chunked", "", "x" * 20_000]
    with (
        serving(scripted_core(), api_keys=("secret",)) as running,
        connect(running) as sock,
        sock.makefile("rb") as stream,
    ):
        sock.sendall("\r\n".join(lines).encode())
        assert stream.readline().startswith(b"HTTP/1.1 400 ")
        assert b"HTTP/1.1" not in stream.read()
        wait_until(lambda: not running.server.server_state.tasks)
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("path", "size", "status"),
    [("/generate", 30_000_000, 413), ("/nope", 9_000_000, 404), ("/sleep", 9_000_000, 403)],
)
@pytest.mark.parametrize("chunked", [True, False])
def test_who_still_sends_can_read_the_refusal(
    running: Loopback, path: str, size: int, status: int, *, chunked: bool
) -> None:
    how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", how, "", ""]
    head = "\r\n".join(lines).encode()
    piece = bytes(1_000_000)
    with connect(running) as sock, sock.makefile("rb") as stream:
        sock.sendall(head)
        for _ in range(size // len(piece)):
            sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        sock.sendall(b"0\r\n\r\n" if chunked else b"")
        assert answer(stream)[0] == status


def test_who_never_ends_a_refused_body_is_answered_after_a_while(
    running: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "_LINGER_S", 0.05)
    head = "POST /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    with connect(running) as sock, sock.makefile("rb") as stream:
        sock.sendall(head.encode())
        assert answer(stream)[0] == 404


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("is_slow", [True, False])
def test_who_sends_no_more_is_answered(
    running: Loopback, streams: bool, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatientProtocol, "probe_s", 0.01)
    with connect(running) as sock, sock.makefile("rb") as stream:
        if is_slow:
            running.engine.go.clear()
        sock.sendall(request("/v1/completions", {"prompt": "a", "stream": streams}))
        sock.shutdown(socket.SHUT_WR)
        if is_slow:
            wait_until(lambda: running.engine.num_running == 1)
            assert stream.peek(1).startswith(b"HTTP/1.1 102 ")  # is anyone there?
            running.engine.go.set()
        status, body = answer(stream)
        assert status == 200
        assert body.endswith(b"data: [DONE]\n\n" if streams else b"}")
        assert SCRIPT.split()[-1].encode() in body
        assert stream.read() == b""  # nothing more can come, so the connection ends


@pytest.mark.parametrize("streams", [True, False])
def test_who_sends_no_more_and_leaves_is_forgotten(
    running: Loopback, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatientProtocol, "probe_s", 0.01)
    running.engine.go.clear()
    with connect(running) as sock:
        sock.sendall(request("/v1/completions", {**ENDLESS, "stream": streams}))
        wait_until(lambda: running.engine.num_running == 1)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100).startswith(b"HTTP/1.1 102 ")
    wait_until(lambda: running.engine.num_running == 0)
    wait_until(lambda: running.state.num_working == 0)


@contextmanager
def in_a_silent_stream(running: Loopback, path: str) -> Iterator[tuple[socket.socket, IO[bytes]]]:
    """A client that has read the beginning of an answer, all that there is for now."""
    running.engine.halts_after = running.engine.num_steps + 3
    with connect(running) as sock, sock.makefile("rb") as stream:
        sock.sendall(request(path, {"prompt": "a", "stream": True}))
        while b" three" not in stream.readline():
            pass
        stream.readline()  # after what is in a line, what ends a chunk
        if path.startswith("/v1"):
            stream.readline()
        yield sock, stream


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate"])
def test_who_leaves_a_silent_stream_is_forgotten_at_once(running: Loopback, path: str) -> None:
    # the next sign of life would be later than anyone waits here
    with in_a_silent_stream(running, path):
        assert running.engine.num_running == 1
    wait_until(lambda: running.engine.num_running == 0)
    wait_until(lambda: running.state.num_working == 0)
    assert running.engine.num_steps == running.engine.halts_after


@pytest.mark.parametrize(("path", "filler"), [("/v1/completions", b":"), ("/api/generate", b" ")])
def test_who_sends_no_more_in_a_silent_stream_is_answered(
    running: Loopback, path: str, filler: bytes
) -> None:
    with in_a_silent_stream(running, path) as (sock, stream):
        sock.shutdown(socket.SHUT_WR)
        size = int(stream.readline(), 16)
        assert stream.read(size + 2).startswith(filler)  # is anyone there?
        running.engine.go.set()
        body = b""
        while size := int(stream.readline(), 16):
            body += stream.read(size + 2)[:-2]
        stream.readline()
        assert stream.read() == b""
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if b"{" in line]
    said = [json.loads(line) for line in lines]
    assert SCRIPT.split()[-1] in json.dumps(said)


def test_older_clients_that_send_no_more_are_gone(
    running: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatientProtocol, "probe_s", 0.01)
    running.engine.go.clear()
    with connect(running) as sock:
        sock.sendall(request("/v1/completions", ENDLESS, version="1.0"))
        wait_until(lambda: running.engine.num_running == 1)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b""
    wait_until(lambda: running.engine.num_running == 0)


def test_half_a_body_is_no_request(running: Loopback) -> None:
    with connect(running) as sock:
        sock.sendall(request("/v1/completions", ENDLESS)[:-3])
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b""
    assert running.state.num_working == running.engine.num_running == 0


@pytest.mark.parametrize("closes", [True, False])
def test_requests_may_be_sent_before_the_answers(running: Loopback, closes: bool) -> None:
    ask = [
        request("/health"),
        request("/v1/completions", {"prompt": "a"}),
        request("/nope", {"a": "b" * 200_000}),
        request("/v1/completions", {"prompt": "a", "stream": True}),
        request("/health"),
    ]
    with connect(running) as sock, sock.makefile("rb") as stream:
        sender = threading.Thread(target=sock.sendall, args=(b"".join(ask),))
        sender.start()
        if closes:
            sender.join()
            sock.shutdown(socket.SHUT_WR)
        assert [answer(stream)[0] for _ in ask] == [200, 200, 404, 200, 200]
        sender.join()
        if closes:
            assert stream.read() == b""


def test_a_body_can_wait_until_it_is_wanted(running: Loopback) -> None:
    expect = "Expect: 100-continue"
    whole = request("/v1/completions", {"prompt": "a"}, expect)
    head, _, body = whole.partition(b"\r\n\r\n")
    with connect(running) as sock, sock.makefile("rb") as stream:
        sock.sendall(head + b"\r\n\r\n")
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        stream.readline()
        sock.sendall(body)
        assert answer(stream)[0] == 200
        sock.sendall(request("/nope", {}, expect).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        assert stream.readline().split()[1] == b"404"  # without it, and without waiting


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("http://127.0.0.1/v1/models?a=http://b/c", 200),
        ("HTTPS://localhost:80/v1/models", 200),
        ("http://127.0.0.1", 200),
        ("http://127.0.0.1/nothing", 404),
        ("http://evil.example/v1/models", 421),  # whatever the header says
        ("http://127.0.0.1:1@evil.example/v1/models", 404),
        ("ftp://127.0.0.1/v1/models", 404),
    ],
)
def test_a_target_may_be_a_whole_url(running: Loopback, target: str, expected: int) -> None:
    with connect(running) as client:
        client.sendall(request(target))
        status, _ = answer(client.makefile("rb"))
        assert status == expected


def test_a_wish_for_http_2_is_no_reason_to_complain(
    running: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    wish = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    with connect(running) as sock, sock.makefile("rb") as stream, caplog.at_level(logging.WARNING):
        for _ in range(2):
            sock.sendall(request("/v1/completions", {"prompt": "a"}, *wish))
            assert answer(stream)[0] == 200
    assert not caplog.records


def test_others_are_served_beside_one_who_does_not_read(running: Loopback) -> None:
    with connect(running) as idle, connect(running) as sock, sock.makefile("rb") as stream:
        idle.sendall(request("/v1/completions", {**ENDLESS, "stream": True}))
        wait_until(lambda: running.engine.num_running == 1)
        for _ in range(30):
            sock.sendall(request("/v1/completions", {"prompt": "a", "max_tokens": 2}))
            assert answer(stream)[0] == 200


@pytest.mark.parametrize(
    "beginning", [b"GET /health HTT", request("/nope", {"a": "b" * 100})[:-50]]
)
def test_a_connection_in_use_may_not_be_held_up(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_IDLE_S", 0.2)
    with (
        serving(scripted_core()) as running,
        connect(running) as sock,
        sock.makefile("rb") as stream,
    ):
        sock.sendall(request("/health"))
        assert answer(stream)[0] == 200
        sock.sendall(beginning)
        if beginning.startswith(b"POST"):
            assert answer(stream)[0] == 404
        assert stream.read() == b""
