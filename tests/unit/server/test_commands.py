"""Commands of operators: who may give them, how they are spelled, what they answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import jsonschema
import pytest

from blazr.cli.serve import _replica_config
from blazr.core.errors import ConfigError
from blazr.server.config import ServerConfig
from blazr.server.openapi import describe
from blazr.server.routes import ROUTES
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until
from tests.unit.server.test_models import Shelf, ask, shelf_of, status

COMMANDS = sorted({row.path for row in ROUTES.values() if row.is_command})
KEY = {"Authorization": "Bearer k"}
LONG = {"prompt": "a", "max_tokens": 1_000_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def keyed() -> Iterator[Loopback]:
    with serving(scripted_core(), api_keys=("k",)) as running:
        running.client.headers.update(KEY)
        yield running


@pytest.mark.parametrize("path", COMMANDS)
def test_nobody_commands_a_server_without_keys(loopback: Loopback, path: str) -> None:
    for body in ({}, {"level": 2}):
        reply = loopback.client.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "no_operator")
        assert "--api-key" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", COMMANDS)
def test_commands_need_a_key(keyed: Loopback, path: str) -> None:
    reply = keyed.client.post(path, headers={"Authorization": "Bearer other"})
    assert reply.status_code == 401


OPERATORS = [row for row in ROUTES.values() if row.is_command or row.needs_operator]


def test_whoever_may_ask_may_not_command() -> None:
    """Every route of operators, with a client's key in every place where a key may stand."""
    shown = [
        {},
        KEY,
        {"x-api-key": "k"},
        {"api-key": "k"},
        {"Authorization": "Bearer k a"},
        {"Authorization": "Basic a"},
        {"Authorization": "Bearer A"},
        {"Authorization": "Bearer k", "x-api-key": "a"},
        {"x-api-key": "a,k"},
    ]
    assert {"/models/load", "/models/unload", "/sleep"} <= {row.path for row in OPERATORS}
    with serving(scripted_core(), api_keys=("k",), admin_api_keys=("a",)) as running:
        for row in OPERATORS:
            for headers in shown:
                reply = running.client.request(row.method, row.path, json={}, headers=headers)
                assert reply.status_code == 401, (row.path, headers)
        loaded = running.client.post("/models/load", json={}, headers={"x-api-key": "a"})
        assert loaded.json() == {"success": True}


@pytest.mark.parametrize(("key", "is_heard"), [("k", False), ("a", True)])
def test_keep_alive_is_the_operators_where_there_are_operators(key: str, *, is_heard: bool) -> None:
    with serving(scripted_core(), api_keys=("k",), admin_api_keys=("a",)) as running:
        body = {"prompt": "a", "stream": False, "keep_alive": 3600}
        headers = {"Authorization": f"Bearer {key}"}
        assert running.client.post("/api/generate", json=body, headers=headers).is_success
        assert running.models.slots[0].idle_s == (3600 if is_heard else None)


def test_commands_may_need_a_key_of_their_own() -> None:
    with serving(scripted_core(), api_keys=("k",), admin_api_keys=("a",)) as running:
        post = running.client.post
        admin = {"Authorization": "Bearer a"}
        refused = post("/flush_cache", headers=KEY)
        assert refused.status_code == 401
        assert "--admin-api-key" in refused.json()["error"]["message"]
        assert post("/flush_cache", headers=admin).is_success
        for key in (KEY, admin):
            assert post("/v1/completions", json={"prompt": "a"}, headers=key).is_success
        assert post("/v1/completions", json={"prompt": "a"}).status_code == 401
    with serving(scripted_core(), admin_api_keys=("a",)) as running:
        assert running.client.post("/v1/completions", json={"prompt": "a"}).is_success
        assert running.client.post("/flush_cache").status_code == 401
        assert running.client.post("/flush_cache", headers=admin).is_success


def test_what_is_said_in_the_query_or_the_body(keyed: Loopback) -> None:
    post = keyed.client.post
    engine = keyed.engine
    forgotten = engine.num_forgotten
    for kwargs, count in (
        ({}, 1),
        ({"json": {}}, 1),
        ({"json": {"reset_running_requests": True}}, 2),
        ({"params": {"reset_running_requests": "true"}}, 2),
        ({"params": {"reset_running_requests": "true"}, "json": {"model": "scripted"}}, 2),
        ({"params": {"reset_running_requests": "true", "x": "y"}, "json": {"x": 1}}, 2),
    ):
        reply = post("/reset_prefix_cache", **kwargs)
        assert reply.json() == {"success": True, "num_blocks": 7}
        assert engine.num_forgotten == forgotten + count
        forgotten = engine.num_forgotten
    for kwargs, status_code in (
        ({"params": {"level": "3"}}, 400),
        ({"params": {"level": "deep"}}, 400),
        ({"json": {"level": "1"}}, 400),
        ({"json": {"mode": "gently"}}, 400),
        ({"json": []}, 400),
        ({"content": b"level=1", "headers": {"Content-Type": "text/plain"}}, 400),
        ({"json": {"model": "nobody"}}, 404),
        ({"params": {"model": "nobody"}}, 404),
    ):
        assert post("/sleep", **kwargs).status_code == status_code, kwargs
    assert keyed.client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert keyed.client.get("/is_sleeping?model=x").status_code == 404


def test_a_model_that_could_not_come_back_stays(keyed: Loopback) -> None:
    for path, body in (("/sleep", {"level": 2}), ("/sleep", {}), ("/models/unload", {})):
        reply = keyed.client.post(path, json=body)
        assert (reply.status_code, "cannot be loaded again" in reply.text) == (400, True)
    assert keyed.client.post("/v1/completions", json={"prompt": "a"}).is_success


@pytest.mark.parametrize("name", ["id", "header", "rid"])
def test_requests_are_ended_by_name(keyed: Loopback, name: str) -> None:
    engine = keyed.engine
    stay, gone = {"X-Request-Id": "stays"}, {"X-Request-Id": "mine-1"}

    def ask_streamed(headers: dict, got: list[str], names: dict, **more: object) -> str:
        body = {**LONG, "stream": True, **more}
        with keyed.client.stream("POST", "/v1/completions", json=body, headers=headers) as reply:
            for line in reply.iter_lines():
                got.append(line)
                if '"id"' in line:
                    names["id"] = line.partition('"id":"')[2].partition('"')[0]
        return "\n".join(got)

    engine.go.clear()
    first: list[str] = []
    names: dict = {"header": "mine-1", "rid": "r"}
    with ThreadPoolExecutor(2) as pool:
        ended = pool.submit(ask_streamed, gone, first, names, rid="r")
        going = pool.submit(ask_streamed, stay, [], {}, max_tokens=20)
        wait_until(lambda: engine.num_running == 2)
        engine.go.set()
        wait_until(lambda: len(first) > 2)
        body = {"rid": "r"} if name == "rid" else {"request_ids": ["x", names[name]]}
        reply = keyed.client.post("/abort_requests", json=body)
        assert reply.json() == {"status": "aborted", "aborted": 1}
        assert '"finish_reason":"abort"' in ended.result()
        assert ended.result().endswith("data: [DONE]\n")
        assert '"finish_reason":"length"' in going.result()
    assert keyed.client.post("/abort_requests").json()["aborted"] == 0


def test_whole_replies_end_where_they_stand_and_other_dialects_say_so(keyed: Loopback) -> None:
    engine, post = keyed.engine, keyed.client.post
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 500}
    requests = {
        "/v1/chat/completions": {**chat, "ignore_eos": True},
        "/v1/completions": {**LONG, "n": 2, "prompt": ["a", "b"]},
        "/v1/messages": chat,
        "/generate": {"prompt": "a", "max_tokens": 500},
    }
    engine.go.clear()
    with ThreadPoolExecutor(4) as pool:
        asked = {path: pool.submit(post, path, json=body) for path, body in requests.items()}
        wait_until(lambda: engine.num_running == 5)
        assert post("/abort_request", json={"abort_all": True, "rid": "x"}).json()["aborted"] == 4
        replies = {path: each.result() for path, each in asked.items()}
    engine.go.set()
    (choice,) = replies["/v1/chat/completions"].json()["choices"]
    assert choice["finish_reason"] == "abort"
    choices = replies["/v1/completions"].json()["choices"]
    assert [each["finish_reason"] for each in choices] == ["abort"] * 4
    for path in ("/v1/messages", "/generate"):
        assert replies[path].status_code == 503
        assert replies[path].json()["error"]["message"] == "the reply was ended."


def test_pausing_in_each_mode(keyed: Loopback) -> None:
    engine, post = keyed.engine, keyed.client.post
    assert keyed.client.get("/is_paused").json() == {"is_paused": False}
    forgotten = engine.num_forgotten
    for path, query, clears in (
        ("/pause", {}, True),
        ("/pause", {"mode": "wait"}, True),
        ("/pause", {"mode": "abort", "clear_cache": "false"}, False),
        ("/pause_generation", {"mode": "in_place"}, False),
        ("/pause", {"wait_for_inflight_requests": "true"}, True),
    ):
        assert post(path, params=query).json() == {"status": "paused"}
        assert engine.num_forgotten == forgotten + clears
        forgotten = engine.num_forgotten
        assert keyed.client.get("/is_paused").json() == {"is_paused": True}
        assert post("/continue_generation").json() == {"status": "resumed"}
        assert engine.go.is_set()
    assert post("/pause", params={"mode": "later"}).status_code == 400


@contextmanager
def keyed_shelf(*names: str) -> Iterator[tuple[Shelf, Loopback]]:
    """Models of an operator, who has asked the first one for something already."""
    with shelf_of(*names, api_keys=("k",)) as (shelf, running):
        running.client.headers.update(KEY)
        ask(running, names[0])
        yield shelf, running


@contextmanager
def busy_shelf(*names: str, **body: object) -> Iterator[tuple[Shelf, Loopback, Future[dict]]]:
    """The same, with an answer of the first one that stands until its engine goes on."""
    with keyed_shelf(*names) as (shelf, running), ThreadPoolExecutor(1) as pool:
        shelf.engine(names[0]).go.clear()
        going = pool.submit(ask, running, names[0], **body)
        wait_until(lambda: shelf.engine(names[0]).num_running == 1)
        yield shelf, running, going


def test_sleeping_is_refused_while_nothing_ends() -> None:
    with keyed_shelf("a") as (_, running):
        running.client.post("/pause")
        reply = running.client.post("/sleep?level=2")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "paused")
        assert running.client.post("/sleep?level=2&mode=abort").is_success


def test_unloading_is_refused_while_what_waits_does_not_end() -> None:
    with busy_shelf("a", "b") as (_, running, going):
        running.client.post("/pause", params={"mode": "keep"})
        reply = running.client.post("/models/unload", json={"model": "a"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "paused")
        running.client.post("/resume")
        assert going.result()
        running.client.post("/pause")
        assert running.client.post("/models/unload", json={"model": "a"}).is_success


@pytest.mark.parametrize("command", ["/resume", "/abort_requests"])
def test_a_model_that_leaves_is_reached(command: str) -> None:
    """Else what is paused would keep it, and all models that wait for its memory, for ever."""
    with busy_shelf("a", "b") as (shelf, running, going):
        assert running.client.post("/models/unload", json={"model": "a"}).is_success
        wait_until(lambda: status(running)["a"] == "unloaded")
        shelf.engine("a").pause(finishes=False)
        assert running.client.get("/is_paused").json() == {"is_paused": True}
        running.client.post(command)
        assert going.result()
        assert ask(running, "b")


def test_sleep_lets_what_runs_finish_and_refuses_what_comes() -> None:
    with busy_shelf("a", "b") as (shelf, running, going), ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(running.client.post, "/sleep", json={"level": 2})
        wait_until(lambda: status(running)["a"] == "sleeping")
        for name in ("a", "b", None):
            reply = running.client.post("/v1/completions", json={"prompt": "a", "model": name})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_asleep")
            assert reply.headers["retry-after"] == "10"
        assert running.client.post("/models/load", json={"model": "a"}).status_code == 503
        assert running.client.get("/health").is_success
        assert running.client.get("/ready").status_code == 503
        assert shelf.open_now == {"a"}
        shelf.engine("a").go.set()
        assert going.result()["choices"][0]["finish_reason"] == "length"
        assert sleeping.result().json() == {"is_sleeping": True}
        assert shelf.open_now == set()
        assert running.client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert running.client.post("/wake_up?tags=weights").json() == {"is_sleeping": False}
        assert shelf.open_now == {"a"}  # b was not in memory before
        assert running.client.get("/ready").is_success
        assert ask(running, "b")["model"] == "b"


def test_sleep_may_end_what_runs() -> None:
    with busy_shelf("a", max_tokens=400) as (shelf, running, going):
        assert running.client.post("/sleep?level=2&mode=abort").is_success
        assert going.result()["choices"][0]["finish_reason"] == "abort"
        assert shelf.open_now == set()


def test_one_of_several_sleeps() -> None:
    with keyed_shelf("a", "b") as (_, running):
        ask(running, "b")
        assert running.client.post("/sleep", json={"level": 2, "model": "b"}).is_success
        assert status(running) == {"a": "loaded", "b": "sleeping"}
        assert running.client.get("/is_sleeping").json() == {"is_sleeping": False}
        assert running.client.get("/is_sleeping?model=b").json() == {"is_sleeping": True}
        assert ask(running, "a")["model"] == "a"


def test_who_cannot_wake_sleeps_on() -> None:
    with keyed_shelf("a") as (shelf, running):
        running.client.post("/sleep?level=2")
        shelf.fails["a"] = ConfigError("the file has gone.")
        reply = running.client.post("/wake_up")
        assert (reply.status_code, "the file has gone" in reply.text) == (500, True)
        assert status(running) == {"a": "sleeping"}
        del shelf.fails["a"]
        assert running.client.post("/wake_up").is_success
        assert ask(running, "a")["model"] == "a"


def test_a_sleep_that_nobody_waits_for_comes_all_the_same() -> None:
    with busy_shelf("a") as (shelf, running, going):
        with pytest.raises(httpx2.TimeoutException):
            running.client.post("/sleep?level=2", timeout=0.1)
        shelf.engine("a").go.set()
        going.result()
        wait_until(lambda: not shelf.open_now)
        assert status(running) == {"a": "sleeping"}


@contextmanager
def watched(running: Loopback) -> Iterator[list[dict]]:
    """What is told of the models, until the server ends it."""
    told: list[dict] = []
    has_begun = threading.Event()

    def watch() -> None:
        with httpx2.stream("GET", f"{running.url}/models/sse", timeout=30) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            for line in reply.iter_lines():
                has_begun.set()
                told.extend([json.loads(line[6:])] if line.startswith("data: ") else [])

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        assert has_begun.wait(10)
        yield told
        running.server.should_exit = True
        watching.result(10)


def test_models_are_loaded_and_let_go_on_demand_and_it_is_told() -> None:
    with shelf_of("a", "b") as (shelf, running), watched(running) as told:
        post = running.client.post

        def is_told(**data: object) -> bool:
            return bool(told) and told[-1]["data"] == data

        shelf.go.clear()
        assert post("/models/load", json={"model": "b"}).json() == {"success": True}
        wait_until(lambda: is_told(status="loading") and status(running)["b"] == "loading")
        shelf.go.set()
        wait_until(lambda: is_told(status="loaded") and status(running)["b"] == "loaded")
        assert post("/models/load", json={"model": "b"}).json() == {"success": True}
        assert post("/models/unload", json={"model": "b"}).json() == {"success": True}
        wait_until(lambda: is_told(status="unloaded") and not shelf.open_now)
        shelf.fails["b"] = ConfigError("no.")
        assert post("/models/load", json={"model": "b"}).json() == {"success": True}
        wait_until(lambda: is_told(status="unloaded", exit_code=1))
        (card,) = [c for c in running.client.get("/models").json()["data"] if c["id"] == "b"]
        assert card["status"] == {"value": "unloaded", "failed": True}
        for path in ("/models/load", "/models/unload"):
            assert post(path, json={"model": "x"}).status_code == 404
    assert [each["data"]["status"] for each in told] == [
        *("loading", "loaded", "unloaded", "loading", "unloaded")
    ]
    assert {(each["model"], each["event"]) for each in told} == {("b", "model_status")}
    schema = describe(ROUTES.values())["components"]["schemas"]
    for each in told:
        jsonschema.validate(each, {"components": {"schemas": schema}, **schema["ModelNews"]})


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile", "/update_weights"])
def test_what_the_operator_has_not_prepared(keyed: Loopback, path: str) -> None:
    reply = keyed.client.post(path, json={"model_path": "x"})
    assert reply.status_code in {400, 409}
    wanted = {"/start_profile": "--profile-dir", "/update_weights": "--weights-dir"}
    assert wanted.get(path, "no profile") in reply.json()["error"]["message"]


@pytest.mark.parametrize(("name", "length"), [("", 0), ("é" * 201, 201), ("a" * 20_000, 20_000)])
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_names_of_adapters_have_a_length(
    keyed: Loopback, verb: str, name: str, length: int
) -> None:
    body = {"lora_name": name, "lora_path": "a"}
    reply = keyed.client.post(f"/v1/{verb}_lora_adapter", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "lora_name")
    assert (f"{length} characters" if length else "no name") in error["message"]


def test_folders_that_are_not_there() -> None:
    for name in ("adapter", "weights", "profile", "files"):
        with pytest.raises(ConfigError, match=f"the folder of --{name}-dir is missing"):
            ServerConfig(**{f"{name}_dir": Path("/nowhere/at/all")})


def test_a_limit_of_files_needs_their_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--files-disk limits the files in --files-dir,"):
        ServerConfig(files_disk_bytes=2**20)
    config = ServerConfig(files_disk_bytes=2**20, files_dir=tmp_path)
    # the process in front keeps the files of replicas
    assert _replica_config(config, tmp_path / "0.sock").files_dir is None
