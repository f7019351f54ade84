"""``/health`` on a thread of its own: it answers while the event loop does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx2
import msgspec
import pytest

from blazr.core.errors import ConfigError
from blazr.server import serve
from blazr.server.endpoint import Call, Route
from blazr.server.liveness import PATHS, Liveness
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
    reply = live.get("/health")
    assert reply.status_code == running.client.get("/health").status_code == 503
    assert "no more steps" in reply.json()["error"]["message"]


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
