"""Several models in one server: loaded when asked for, let go again, none in another's way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
import pytest

from blazr.core import garbage
from blazr.core.errors import CapacityError, CheckpointError
from blazr.llm.async_llm import AsyncLLM
from blazr.server.config import ServerConfig
from blazr.server.models import Models, ModelSource
from tests.support.loopback import Loopback, serving_models
from tests.support.scripted import ScriptedEngine, scripted_core, wait_until

PROMPT = {"prompt": "a", "max_tokens": 3}


@pytest.fixture(autouse=True)
def _nothing_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """These engines hold no memory, and what other tests left takes a second to look through."""
    monkeypatch.setattr(garbage, "collect_all", lambda: None)


@dataclass
class Shelf:
    """Models that can be opened, and what became of each opening."""

    sizes: dict[str, int] = field(default_factory=dict)
    opened: list[tuple[str, ScriptedEngine]] = field(default_factory=list)
    fails: dict[str, Exception] = field(default_factory=dict)
    knows_sizes: bool = True
    halted: set[str] = field(default_factory=set)  # models whose engines begin halted
    go: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.go.set()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.opened]

    @property
    def open_now(self) -> set[str]:
        return {name for name, engine in self.opened if not engine._closed}

    def engine(self, name: str) -> ScriptedEngine:
        return next(engine for each, engine in reversed(self.opened) if each == name)

    def source(self, name: str) -> ModelSource:
        def open_it() -> AsyncLLM:
            assert self.go.wait(10)
            if name in self.fails:
                raise self.fails[name]
            core = scripted_core(name=f"own name of {name}", size_bytes=self.sizes.get(name, 0))
            if name in self.halted:
                core.engine.go.clear()
            self.opened.append((name, core.engine))
            return AsyncLLM.of(core)

        return ModelSource(
            name=name,
            open=open_it,
            aliases=(f"path/to/{name}",),
            num_bytes=self.sizes.get(name, 0) if self.knows_sizes else 0,
        )


@contextmanager
def shelf_of(
    *names: str, sizes: dict[str, int] | None = None, knows: bool = True, **config: object
) -> Iterator:
    shelf = Shelf(sizes or {}, knows_sizes=knows)
    settings = ServerConfig(host="127.0.0.1", port=0, **config)
    models = Models([shelf.source(name) for name in names], settings)
    with serving_models(models) as running:
        yield shelf, running


def ask(running: Loopback, model: str | None, **body: object) -> dict:
    reply = running.client.post("/v1/completions", json={**PROMPT, "model": model, **body})
    assert reply.is_success, reply.text
    return reply.json()


def status(running: Loopback) -> dict[str, str]:
    cards = running.client.get("/v1/models").json()["data"]
    return {card["id"]: card["status"]["value"] for card in cards}


def test_models_are_loaded_when_they_are_asked_for() -> None:
    with shelf_of("a", "b", "c") as (shelf, running):
        assert status(running) == dict.fromkeys("abc", "unloaded")
        assert running.client.get("/health").is_success
        assert ask(running, "b")["model"] == "b"
        assert ask(running, "b")["model"] == "b"
        assert ask(running, "path/to/c:latest")["model"] == "c"
        assert shelf.names == ["b", "c"]
        assert status(running) == {"a": "unloaded", "b": "loaded", "c": "loaded"}
        assert ask(running, None)["model"] == ask(running, "default")["model"] == "a"
        assert shelf.names == ["b", "c", "a"]
        info = running.client.get("/tokenizer_info?model=b").json()
        assert info["tokenizer"] == "cl100k_base"


def test_unknown_models_load_nothing() -> None:
    with shelf_of("a", "b") as (shelf, running):
        for path, body in (("/v1/completions", PROMPT), ("/api/generate", {"prompt": "a"})):
            reply = running.client.post(path, json={**body, "model": "x" * 5000})
            assert reply.status_code == 404
            assert len(reply.text) < 500
        assert running.client.get("/v1/models/x").status_code == 404
        assert running.client.get("/v1/models/b").json()["status"] == {"value": "unloaded"}
        assert shelf.names == []


def test_every_dialect_finds_its_model() -> None:
    messages = [{"role": "user", "content": "hi"}]
    with shelf_of("a", "b") as (shelf, running):
        for path, body in (
            ("/v1/chat/completions", {"messages": messages}),
            ("/v1/messages", {"messages": messages, "max_tokens": 2}),
            ("/v1/responses", {"input": "hi"}),
            ("/api/chat", {"messages": messages, "stream": False}),
        ):
            reply = running.client.post(path, json={"model": "b", **body})
            assert reply.json()["model"] == "b"
        assert running.client.post("/api/show", json={"name": "b:latest"}).is_success
        assert shelf.names == ["b"]
        tags = running.client.get("/api/tags").json()["models"]
        assert [each["name"] for each in tags] == ["a:latest", "b:latest"]
        (loaded,) = running.client.get("/api/ps").json()["models"]
        assert loaded["name"] == "b:latest"


def test_one_loading_serves_all_who_wait_and_hinders_nobody() -> None:
    with shelf_of("a", "b") as (shelf, running), ThreadPoolExecutor(4) as pool:
        ask(running, "a")
        shelf.go.clear()
        waiting = [pool.submit(ask, running, "b") for _ in range(3)]
        wait_until(lambda: running.state.num_working == 3)
        assert ask(running, "a")["model"] == "a"
        assert status(running)["b"] == "loading"
        shelf.go.set()
        assert [each.result()["model"] for each in waiting] == ["b"] * 3
        assert shelf.names == ["a", "b"]


def test_who_leaves_while_it_loads_stops_nothing() -> None:
    with shelf_of("a") as (shelf, running):
        shelf.go.clear()
        with pytest.raises(Exception, match="timed out"):
            running.client.post("/v1/completions", json=PROMPT, timeout=0.2)
        wait_until(lambda: running.state.num_working == 0)
        shelf.go.set()
        wait_until(lambda: status(running) == {"a": "loaded"})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckpointError("the file is cut off.", found="/secret/path"), 500),
        (CapacityError("the memory for caches holds not even one sequence."), 503),
        (RuntimeError("a bug"), 500),
    ],
)
def test_what_cannot_be_loaded_is_told_and_tried_again(error: Exception, code: int) -> None:
    with shelf_of("a", "b") as (shelf, running):
        shelf.fails["b"] = error
        for _ in range(2):
            reply = running.client.post("/v1/completions", json={**PROMPT, "model": "b"})
            assert reply.status_code == code
            assert ("retry-after" in reply.headers) == (code == 503)
            assert reply.json()["error"]["code"] == "model_not_loaded"
            assert "'b'" in reply.text
            assert "secret" not in reply.text
        assert ask(running, "a")["model"] == "a"
        assert running.client.get("/health").is_success
        del shelf.fails["b"]
        assert ask(running, "b")["model"] == "b"
        text = running.client.get("/metrics").text
        assert 'blazr_model_loads_total{model="b",outcome="failed"} 2.0' in text
        assert 'blazr_model_loads_total{model="b",outcome="ok"} 1.0' in text


@pytest.mark.parametrize("knows", [True, False])
def test_the_least_recently_used_gives_way(knows: bool) -> None:
    sizes = {"a": 40, "b": 40, "c": 40, "d": 90}
    limits = {"models_memory_bytes": 100, "knows": knows}
    with shelf_of(*sizes, sizes=sizes, **limits) as (shelf, running):
        ask(running, "a")
        ask(running, "b")
        ask(running, "a")
        ask(running, "c")
        wait_until(lambda: shelf.open_now == {"a", "c"})
        ask(running, "d")
        wait_until(lambda: shelf.open_now == {"d"})
        assert status(running) == {"a": "unloaded", "b": "unloaded", "c": "unloaded", "d": "loaded"}
        ask(running, "a")
        wait_until(lambda: shelf.open_now == {"a"})
        assert 'blazr_engine_steps_total{model="d"}' not in running.client.get("/metrics").text


def test_a_model_too_large_alone_is_refused() -> None:
    sizes = {"a": 40 << 20, "b": 200 << 20}
    with shelf_of("a", "b", sizes=sizes, models_memory_bytes=100 << 20) as (shelf, running):
        for _ in range(2):
            reply = running.client.post("/v1/completions", json={**PROMPT, "model": "b"})
            assert reply.status_code == 500
            assert "200 MiB" in reply.text
            assert "100 MiB" in reply.text
            assert ask(running, "a")["model"] == "a"
            assert shelf.names == ["b", "a"], "it is not loaded again to be refused again"
            assert shelf.open_now == {"a"}


def in_flight(
    pool: ThreadPoolExecutor, running: Loopback, shelf: Shelf, model: str
) -> Callable[[], dict]:
    """A request that runs until the model's engine may go on."""
    ask(running, model)
    engine = shelf.engine(model)
    engine.go.clear()
    num = len(engine.submitted)
    future = pool.submit(ask, running, model, max_tokens=10)
    wait_until(lambda: len(engine.submitted) > num)
    return future.result


def test_running_requests_finish_before_a_model_gives_way() -> None:
    sizes = {"a": 60, "b": 60}
    with (
        shelf_of("a", "b", sizes=sizes, models_memory_bytes=100) as (shelf, running),
        ThreadPoolExecutor(4) as pool,
    ):
        finish = in_flight(pool, running, shelf, "a")
        first = shelf.engine("a")
        other = pool.submit(ask, running, "b")
        wait_until(lambda: status(running)["a"] == "unloaded")
        again = pool.submit(ask, running, "a")  # comes too late, and waits for its turn
        assert shelf.open_now == {"a"}
        first.go.set()
        assert finish()["choices"][0]["finish_reason"] == "length"
        assert other.result()["model"] == "b"
        assert again.result()["model"] == "a"
        assert shelf.names == ["a", "b", "a"]


def test_a_response_in_the_background_keeps_its_model() -> None:
    sizes = {"a": 60, "b": 60}
    with (
        shelf_of("a", "b", sizes=sizes, models_memory_bytes=100) as (shelf, running),
        ThreadPoolExecutor(1) as pool,
    ):
        ask(running, "a")
        shelf.engine("a").go.clear()
        body = {"model": "a", "input": "hi", "background": True}
        begun = running.client.post("/v1/responses", json=body).json()
        other = pool.submit(ask, running, "b")
        wait_until(lambda: status(running)["a"] == "unloaded")
        assert shelf.open_now == {"a"}
        shelf.engine("a").go.set()
        assert other.result()["model"] == "b"
        ended = running.client.get(f"/v1/responses/{begun['id']}").json()
        assert ended["status"] == "completed"


def test_models_nobody_uses_leave_the_memory() -> None:
    with (
        shelf_of("a", "b", idle_unload_s=0.05) as (shelf, running),
        ThreadPoolExecutor(1) as pool,
    ):
        shelf.halted.add("a")  # from its first request on, or it could leave before a second
        asked = pool.submit(ask, running, "a", max_tokens=10)
        wait_until(lambda: "a" in shelf.names and shelf.engine("a").submitted)
        ask(running, "b")
        wait_until(lambda: status(running) == {"a": "loaded", "b": "unloaded"})
        shelf.halted.clear()
        shelf.engine("a").go.set()
        asked.result()
        wait_until(lambda: shelf.open_now == set())
        assert ask(running, "a")["model"] == "a"


def test_who_waits_for_a_model_is_told_that_the_server_stops() -> None:
    with shelf_of("a", drain_timeout_s=0.01) as (shelf, running), ThreadPoolExecutor(1) as pool:
        shelf.go.clear()
        try:
            asked = pool.submit(running.client.post, "/v1/completions", json=PROMPT)
            wait_until(lambda: bool(running.models.slots[0].waiting))
            running.server.handle_exit(signal.SIGTERM, None)
            reply = asked.result()
        finally:
            shelf.go.set()
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "stopping"


def test_a_server_that_stops_does_not_wait_for_a_load_that_nobody_waits_for() -> None:
    with shelf_of("a") as (shelf, running):
        shelf.go.clear()
        try:
            with pytest.raises(httpx2.ReadTimeout):
                running.client.post("/v1/completions", json=PROMPT, timeout=0.1)
            assert running.models.slots[0].status == "loading"
            running.server.handle_exit(signal.SIGTERM, None)
            running.thread.join(5)
            assert not running.thread.is_alive()
        finally:
            shelf.go.set()


def test_a_model_whose_only_client_left_while_it_loaded_leaves_the_memory_too() -> None:
    with shelf_of("a", idle_unload_s=0.05) as (shelf, running):
        shelf.go.clear()
        with pytest.raises(httpx2.ReadTimeout):
            running.client.post("/v1/completions", json={**PROMPT, "model": "a"}, timeout=0.1)
        wait_until(lambda: not running.state.num_working)
        shelf.go.set()
        wait_until(lambda: shelf.names == ["a"])
        wait_until(lambda: shelf.open_now == set())


def test_one_broken_engine_shows_in_the_health_of_all() -> None:
    with shelf_of("a", "b") as (shelf, running):
        ask(running, "a")
        ask(running, "b")
        shelf.engine("b").broken = "on fire"
        assert running.client.get("/health").status_code == 503
        assert running.client.get("/ready").status_code == 503
        assert ask(running, "a")["model"] == "a"


def test_nothing_stays_open() -> None:
    with shelf_of("a", "b") as (shelf, running):
        ask(running, "a")
        ask(running, "b")
    assert shelf.names == ["a", "b"]
    assert shelf.open_now == set()


def ends_in_s(running: Loopback, name: str) -> float:
    shown = running.client.get("/api/ps").json()["models"]
    (expires,) = (each["expires_at"] for each in shown if each["name"] == f"{name}:latest")
    return (datetime.fromisoformat(expires) - datetime.now(UTC)).total_seconds()


def test_a_client_may_say_how_long_a_model_stays() -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "stream": False}
    asks = {
        "/api/generate": {"prompt": "a", "stream": False},
        "/api/chat": chat,
        "/api/embed": {"input": "a"},
        "/api/embeddings": {"prompt": "a"},
    }
    with shelf_of("a", "b", idle_unload_s=1000) as (shelf, running):
        ask(running, "b")
        for path, body in asks.items():
            for wish, expected in (("1h30m", 5400), (300, 300), ("200", 200)):
                raw = {**body, "model": "a", "keep_alive": wish}
                assert running.client.post(path, json=raw).is_success
                assert expected - 5 < ends_in_s(running, "a") <= expected
            for wish in (-1, "-1m"):
                running.client.post(path, json={**body, "model": "a", "keep_alive": wish})
                assert ends_in_s(running, "a") > 10**7
            running.client.post(path, json={**body, "model": "a"})
            assert 900 < ends_in_s(running, "a") <= 1000
            running.client.post(path, json={**body, "model": "a", "keep_alive": 0})
            wait_until(lambda: shelf.open_now == {"b"})
        assert 900 < ends_in_s(running, "b") <= 1000
        assert status(running) == {"a": "unloaded", "b": "loaded"}


def test_a_model_can_be_let_go_and_nothing_asked() -> None:
    with shelf_of("a", "b") as (shelf, running):
        body = {"model": "b", "stream": False}
        loaded = running.client.post("/api/generate", json=body).json()
        assert (loaded["done"], loaded["done_reason"]) == (True, "load")
        gone = running.client.post("/api/chat", json={**body, "keep_alive": 0}).json()
        assert (gone["done"], gone["done_reason"]) == (True, "unload")
        wait_until(lambda: shelf.open_now == set())


@pytest.mark.parametrize("wish", ["", "soon", "5", "5x", "5m " * 99, "1e3", [5], "٣m"])
def test_what_is_no_duration_is_refused(wish: object) -> None:
    with shelf_of("a") as (_, running):
        body = {"prompt": "a", "keep_alive": wish, "stream": False}
        reply = running.client.post("/api/generate", json=body)
        assert reply.status_code == (200 if wish == "5" else 400)
        assert wish == "5" or "keep_alive" in reply.json()["error"]


def test_each_model_s_cache_report_has_its_own_requests_only() -> None:
    with shelf_of("a", "b") as (_, running):
        for name in ("a", "b", "a"):
            ask(running, name)
        for name, count in (("a", 2), ("b", 1)):
            found = running.client.get("/debug/cache", params={"model": name}).json()["recent"]
            assert [each["model"] for each in found] == [name] * count
