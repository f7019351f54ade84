"""A server whose stderr takes nothing serves all the same: full disks and ended pipes are usual."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import httpx2
import pytest

from tests.support.scripted import wait_until


@contextmanager
def full() -> Iterator[int]:
    """A device that has no room."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@contextmanager
def unread() -> Iterator[int]:
    """A pipe whose reader has gone, as in ``blazr serve 2>&1 | head -1``."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


LOST = {"full": full, "unread": unread, "closed": None}
STOPS = [("text", signal.SIGTERM), ("json", signal.SIGHUP), ("json", signal.SIGTERM)]
USUAL = set(zip(LOST, STOPS, strict=True))  # each of both once: a server takes seconds


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("lost", "log", "stop"),
    [
        pytest.param(
            LOST[lost],
            *stop,
            id=f"{lost}-{stop[0]}-{stop[1].name}",
            marks=[] if (lost, stop) in USUAL else pytest.mark.slow,
        )
        for lost, stop in product(LOST, STOPS)
    ],
)
def test_the_server_serves_and_stops_as_it_should(lost, log: str, stop: int) -> None:
    port = free_port()
    words = ["serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    command = [sys.executable, "-m", "blazr", *words, "--memory", "24MiB", "--access-log", log]
    # what Python has not written yet is tried again when it exits
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # noqa: TID251
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what the server is to inherit
    try:
        if lost is None:
            server = subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], env=env)
        else:
            with lost() as descriptor:
                server = subprocess.Popen(command, stderr=descriptor, env=env)
    finally:
        signal.signal(signal.SIGHUP, hangup)
    client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def is_ready() -> bool:
        assert server.poll() is None, "it has ended"
        try:
            return client.get("/ready").is_success
        except (httpx2.ConnectError, httpx2.TimeoutException):  # it is loading, on a busy machine
            return False

    try:
        wait_until(is_ready, timeout_s=120)
        for _ in range(2):
            body = {"prompt": "a", "max_tokens": 1}
            assert client.post("/v1/completions", json=body).is_success
        server.send_signal(stop)
        assert server.wait(60) == 0
    finally:
        client.close()
        server.kill()
        server.wait()
