"""Clients that leave, engines that fail, servers that stop."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from blazr.core.errors import ConfigError
from blazr.engine.outputs import FinishReason
from blazr.server.config import ServerConfig
from blazr.server.serve import PatientProtocol, listen
from blazr.text.events import Event
from blazr.text.stream import TextStream
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until

ENDLESS = {"prompt": "a", "max_tokens": 10**9, "ignore_eos": True}


@pytest.fixture
def running() -> Iterator[Loopback]:
    with serving(scripted_core(max_unfinished=8)) as server:
        yield server
        server.engine.broken = ""
        server.engine.go.set()


def raw_post(running: Loopback, body: dict, path: str = "/v1/completions") -> socket.socket:
    """Send a request on a socket of its own and leave the answer unread."""
    host, port = running.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("when", ["at once", "before the first token", "between tokens"])
def test_a_client_that_leaves_is_forgotten(running: Loopback, stream: bool, when: str) -> None:
    if when == "before the first token":
        running.engine.go.clear()
    with raw_post(running, {**ENDLESS, "stream": stream}) as sock:
        if when != "at once":
            wait_until(lambda: running.engine.num_running == 1)
        if when == "between tokens":
            steps = running.engine.num_steps
            wait_until(lambda: running.engine.num_steps > steps + 3)
        sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: running.state.num_working == 0)
    wait_until(lambda: running.engine.num_running == 0)
    running.engine.go.set()
    assert running.client.post("/generate", json={"prompt": "a"}).is_success


def test_a_full_queue_is_429_with_retry_after(running: Loopback) -> None:
    running.engine.go.clear()
    socks = [raw_post(running, {**ENDLESS, "n": 4}) for _ in range(2)]
    wait_until(lambda: running.engine.num_running == 2)
    reply = running.client.post("/v1/completions", json={"prompt": "a"})
    assert reply.status_code == 429
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.json()["error"]["code"] == "overloaded"
    assert running.client.get("/health").is_success
    for sock in socks:
        sock.close()


def test_more_prompts_than_the_queue_holds_take_turns(running: Loopback) -> None:
    reply = running.client.post("/v1/completions", json={"prompt": ["a"] * 30})
    assert [c["index"] for c in reply.json()["choices"]] == list(range(30))


def test_a_failed_reply_is_a_500_or_an_error_in_the_stream(running: Loopback) -> None:
    running.engine.fails_with = "not a number"
    raw = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    for path in ("/v1/completions", "/v1/chat/completions"):
        for streams in (True, False):  # a stream that has not begun can still have a status
            reply = running.client.post(path, json={**raw, "stream": streams})
            assert reply.status_code == 500
            assert reply.json()["error"]["type"] == "server_error"
        running.engine.fails_with = ""
        with running.client.stream("POST", path, json={**raw, **ENDLESS, "stream": True}) as reply:
            lines = reply.iter_lines()
            assert "choices" in next(lines)
            running.engine.fails_with = "not a number"
            last = [line for line in lines if line][-2:]
        assert json.loads(last[0].removeprefix("data: "))["error"]["message"] == "not a number"
        assert last[1] == "data: [DONE]"
    running.engine.fails_with = ""
    assert running.client.post("/v1/completions", json=raw).is_success


class PanicError(BaseException):
    """Like a panic in an extension module: not an Exception."""


@pytest.mark.parametrize("error", [RuntimeError, PanicError])
def test_a_token_that_cannot_be_turned_into_text_fails_its_reply_alone(
    running: Loopback, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    push = TextStream.push
    calls = []

    def push_or_fail(*args: object, **kwargs: object) -> list[Event]:
        calls.append(1)
        if len(calls) == 500:  # long after the first was sent
            raise error
        return push(*args, **kwargs)

    body = {"prompt": "a", "max_tokens": 5}
    right = running.client.post("/v1/completions", json=body).json()["choices"]
    monkeypatch.setattr(TextStream, "push", push_or_fail)
    stream = running.client.post("/v1/completions", json={**ENDLESS, "stream": True})
    assert '"internal_error"' in stream.text
    assert stream.text.endswith("data: [DONE]\n\n")
    assert running.client.post("/v1/completions", json=body).json()["choices"] == right
    metrics = running.client.get("/metrics").text
    assert 'blazr_requests_total{model="scripted",outcome="failed"} 1.0' in metrics
    assert running.engine.num_running == 0


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_too_little_memory_for_a_request_is_a_503(
    running: Loopback, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(TextStream, "push", fail)
        reply = running.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 5})
        assert reply.status_code == 503
        assert reply.headers["retry-after"]
        assert reply.json()["error"]["code"] == "no_memory"
    body = {"prompt": "a", "max_tokens": 5}
    assert running.client.post("/v1/completions", json=body).is_success


def test_running_out_of_time_is_a_408(running: Loopback) -> None:
    running.engine.fails_with, running.engine.fails_as = "too late", FinishReason.TIMEOUT
    reply = running.client.post("/v1/completions", json={"prompt": "a"})
    assert reply.status_code == 408
    assert reply.json()["error"]["type"] == "timeout_error"


def test_a_dead_engine_is_503_everywhere(running: Loopback) -> None:
    running.engine.broken = "it died"
    for reply in (
        running.client.get("/health"),
        running.client.get("/ready"),
        running.client.post("/v1/completions", json={"prompt": "a"}),
    ):
        assert reply.status_code == 503
        assert "it died" in reply.json()["error"]["message"]
        assert reply.headers["retry-after"]


def test_waiting_clients_learn_that_the_engine_died() -> None:
    with serving(scripted_core(), keep_alive_s=0.05) as running:
        running.engine.go.clear()
        threading.Timer(0.2, lambda: setattr(running.engine, "broken", "it died")).start()
        assert running.client.post("/v1/completions", json={"prompt": "a"}).status_code == 503
        running.engine.broken = ""
        threading.Timer(0.2, lambda: setattr(running.engine, "broken", "it died")).start()
        text = running.client.post("/v1/completions", json={"prompt": "a", "stream": True}).text
        assert ": keep-alive" in text
        assert "it died" in text
        assert text.endswith("data: [DONE]\n\n")
        running.engine.broken = ""
        running.engine.go.set()


def test_health_answers_while_requests_wait(running: Loopback) -> None:
    running.engine.go.clear()
    with raw_post(running, ENDLESS):
        wait_until(lambda: running.engine.num_running == 1)
        assert running.client.get("/health", timeout=30).is_success


def test_stopping_lets_replies_finish(running: Loopback) -> None:
    running.engine.go.clear()
    replies = []
    body = {"prompt": "a", "max_tokens": 5}
    thread = threading.Thread(
        target=lambda: replies.append(running.client.post("/v1/completions", json=body))
    )
    thread.start()
    wait_until(lambda: running.engine.num_running == 1)
    running.server.handle_exit(signal.SIGTERM, None)
    assert running.client.get("/ready").status_code == 503
    refused = running.client.post("/v1/completions", json=body)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    running.engine.go.set()
    thread.join()
    assert replies[0].json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("stream", [True, False])
def test_stopping_ends_what_takes_too_long(stream: bool) -> None:
    with serving(scripted_core(), drain_timeout_s=0.3) as running:
        replies = []
        thread = threading.Thread(
            target=lambda: replies.append(
                running.client.post("/v1/completions", json={**ENDLESS, "stream": stream})
            )
        )
        thread.start()
        wait_until(lambda: running.engine.num_running == 1)
        running.server.handle_exit(signal.SIGTERM, None)
        thread.join()
        if stream:
            assert replies[0].text.endswith("data: [DONE]\n\n")
            assert '"code":"stopping"' in replies[0].text
        else:
            assert replies[0].status_code == 503
            assert replies[0].headers["retry-after"]
        assert running.engine.num_running == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_second_signal_ends_what_runs_without_a_word(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    body = {**ENDLESS, "stream": stream}
    with serving(scripted_core(), drain_timeout_s=60) as running, raw_post(running, body):
        wait_until(lambda: running.engine.num_running == 1)
        running.server.handle_exit(signal.SIGINT, None)
        running.server.handle_exit(signal.SIGINT, None)
        wait_until(lambda: running.engine.num_running == 0)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_stopping_leaves_a_client_that_does_not_read_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(scripted_core(), drain_timeout_s=0.1) as running:
        running.server.unread_s = 0.1
        with raw_post(running, {**ENDLESS, "stream": True}):
            connections = running.server.server_state.connections
            wait_until(lambda: any(each.flow.write_paused for each in connections))
            running.server.handle_exit(signal.SIGTERM, None)
            wait_until(lambda: not running.server.server_state.tasks)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_a_port_in_use_is_told_at_once() -> None:
    config = ServerConfig(host="127.0.0.1", port=0)
    with listen(config) as first:
        taken = ServerConfig(host="127.0.0.1", port=first.getsockname()[1])
        with pytest.raises(ConfigError, match="cannot listen"):
            listen(taken)


@pytest.mark.parametrize("port", [-1, 70000])
def test_impossible_ports_are_refused(port: int) -> None:
    with pytest.raises(ConfigError):
        listen(ServerConfig(host="127.0.0.1", port=port))


def test_without_descriptors_connections_wait_and_the_log_is_short(
    running: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    running.client.get("/health")  # on a connection that stays
    host, port = running.url.removeprefix("http://").split(":")
    clients = [socket.socket() for _ in range(3)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    fill = [os.dup(0) for _ in range(most - len(clients))]  # so that none below the limit is free
    most = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        for client in clients:
            client.settimeout(10)
            client.connect((host, int(port)))
        wait_until(lambda: "ulimit" in caplog.text)
        assert running.client.get("/health").is_success
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in fill:
            os.close(each)
    for client in clients:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.close()
    assert "system resource" not in caplog.text
    assert caplog.text.count("ulimit") == 1


def test_slow_readers_are_dropped() -> None:
    with (
        serving(scripted_core(text=" word" * 5000), send_timeout_s=0.3) as running,
        raw_post(running, {**ENDLESS, "stream": True}),
    ):
        wait_until(lambda: running.engine.num_running == 1)
        wait_until(lambda: running.engine.num_running == 0, timeout_s=30)
        wait_until(lambda: running.state.num_working == 0)


def test_clients_that_say_nothing_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PatientProtocol, "header_timeout_s", 0.1)
    with serving(scripted_core()) as running:
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(b"GET /health HTT")
            assert sock.recv(100) == b""


def test_bodies_that_do_not_arrive_are_408() -> None:
    with serving(scripted_core(), body_timeout_s=0.1) as running:
        host, port = running.url.removeprefix("http://").split(":")
        head = f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(f"{head}Content-Length: 50\r\n\r\n{{".encode())
            assert sock.recv(100).startswith(b"HTTP/1.1 408 ")


def test_answers_are_not_delayed(running: Loopback) -> None:
    """Two writes to a socket with Nagle's algorithm on take 40 ms together."""

    def seconds() -> float:
        started = time.monotonic()
        running.client.get("/health")
        return time.monotonic() - started

    # on a busy machine many may be late, but those that wait for the other side all are
    assert any(seconds() < 0.03 for _ in range(200))
