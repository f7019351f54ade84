"""``/health`` by a process of its own: it answers while the event loop, or Python, does not."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import httpx2
import msgspec
import pytest

from blazr.core.errors import ConfigError
from blazr.server import liveness_process, serve
from blazr.server.endpoint import Call, Route
from blazr.server.liveness import Liveness
from blazr.server.liveness_process import PATHS
from blazr.server.routes import ROUTES
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until

_may_go_on = threading.Event()
_is_blocked = threading.Event()


class Done(msgspec.Struct):
    """The loop goes on."""


async def block(call: Call[None]) -> Done:
    """Hold the event loop."""
    _is_blocked.set()
    _may_go_on.wait(20)
    return Done()


@pytest.fixture
def running() -> Iterator[Loopback]:
    row = Route("GET", "/block", block, needs_model=False)
    with serving(scripted_core(), routes=[*ROUTES.values(), row]) as running:
        yield running


@pytest.fixture
def live(running: Loopback) -> Iterator[httpx2.Client]:
    liveness = Liveness("127.0.0.1", 0)
    with (
        liveness.answering(running.server.check),
        httpx2.Client(base_url=f"http://127.0.0.1:{liveness.port}", timeout=10) as client,
    ):
        yield client


def test_it_answers_while_the_event_loop_is_held(running: Loopback, live: httpx2.Client) -> None:
    _may_go_on.clear()
    _is_blocked.clear()
    held = threading.Thread(target=running.client.get, args=("/block",))
    held.start()
    try:
        assert _is_blocked.wait(10)
        for path in sorted(PATHS):
            reply = live.get(path)
            assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
        assert held.is_alive()
    finally:
        _may_go_on.set()
        held.join()


def test_a_loop_that_is_held_for_long_does_not_live(
    running: Loopback, live: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "LOOP_STALL_S", 0.3)
    _may_go_on.clear()
    held = threading.Thread(target=running.client.get, args=("/block",))
    held.start()
    try:
        wait_until(lambda: live.get("/health").status_code == 503)
        assert "event loop" in live.get("/health").json()["error"]["message"]
    finally:
        _may_go_on.set()
        held.join()
    wait_until(lambda: live.get("/health").status_code == 200)


def test_a_broken_engine_is_told_with_its_reason(running: Loopback, live: httpx2.Client) -> None:
    running.engine.broken = "no more steps"
    wait_until(lambda: live.get("/health").status_code == 503)
    assert running.client.get("/health").status_code == 503
    assert "no more steps" in live.get("/health").json()["error"]["message"]
    running.engine.broken = "no" * 10_000
    wait_until(lambda: "no more" not in live.get("/health").json()["error"]["message"])


# Asks again and again, and prints when each answer came.
ASK = """
import sys, time, urllib.request
while True:
    with urllib.request.urlopen(sys.argv[1], timeout=30) as reply:
        assert reply.status == 200
    print(time.monotonic(), flush=True)
"""


def test_it_answers_while_the_interpreter_is_held() -> None:
    liveness = Liveness("127.0.0.1", 0)
    with liveness.answering(lambda: None):
        command = [sys.executable, "-c", ASK, f"http://127.0.0.1:{liveness.port}/health"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            client.stdout.readline()
            start = monotonic()
            ctypes.PyDLL(None).usleep(900_000)  # does not let other threads run, as decoding JSON
            end = monotonic()
            lines = [client.stdout.readline() for _ in range(4)]
            client.kill()
    assert all(float(line) < end for line in lines), (start, end, lines)


def test_a_server_that_does_not_run_does_not_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(liveness_process.__file__).read_text(encoding="utf-8")
    impatient = tmp_path / "impatient.py"
    impatient.write_text(text.replace("STALL_S = 10.0", "STALL_S = 0.5"), encoding="utf-8")
    monkeypatch.setattr(liveness_process, "__file__", str(impatient))
    runs = threading.Event()
    runs.set()

    def check() -> None:
        runs.wait(20)

    liveness = Liveness("127.0.0.1", 0)
    with (
        liveness.answering(check),
        httpx2.Client(base_url=f"http://127.0.0.1:{liveness.port}", timeout=10) as live,
    ):
        assert live.get("/health").status_code == 200
        runs.clear()
        wait_until(lambda: live.get("/health").status_code == 503)
        assert "does not run" in live.get("/health").json()["error"]["message"]
        runs.set()
        wait_until(lambda: live.get("/health").status_code == 200)


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="of Linux")
def test_a_process_that_dies_is_replaced_and_none_is_left() -> None:
    before = children()
    liveness = Liveness("127.0.0.1", 0)
    with (
        liveness.answering(lambda: None),
        httpx2.Client(base_url=f"http://127.0.0.1:{liveness.port}", timeout=10) as live,
    ):
        assert live.get("/health").status_code == 200
        (process,) = children() - before
        os.kill(process, signal.SIGKILL)
        assert live.get("/health").status_code == 200
        assert children() - before not in ({process}, set())
    assert children() <= before


def test_it_tells_nothing_else(live: httpx2.Client) -> None:
    assert live.get("/metrics").status_code == 404
    assert live.post("/health").status_code == 501
    assert "Python" not in live.get("/health").headers["server"]


def test_a_port_in_use_is_told() -> None:
    first = Liveness("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="cannot listen"):
        Liveness("127.0.0.1", first.port)
    with first.answering(lambda: None):
        pass
    with Liveness("127.0.0.1", first.port).answering(lambda: None):
        pass
