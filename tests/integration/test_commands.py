"""What operators command, with a real engine: memory is freed, weights change, nothing is lost."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from blazr.llm.async_llm import AsyncLLM
from blazr.server.config import ServerConfig
from blazr.server.models import Models, ModelSource
from blazr.server.native import profile
from tests.support import tiny
from tests.support.loopback import Loopback, serving_models
from tests.support.scripted import wait_until

SIZES = {"vocab_size": 1000, "hidden_size": 16, "max_seq_len": 4096}
IDS = list(range(200))
LONG = 600  # tokens of a reply that is not at its end when a command comes


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of one model, and one of another."""
    place = tmp_path_factory.mktemp("shelf")
    for name, seed, layers in (("old", 1, 2), ("new", 2, 2), ("other", 3, 3)):
        kinds = ("Mamba2", "MlaWithMoe", "Mamba2")[:layers]
        tiny.save(tiny.Tiny(layers=kinds, **SIZES), place / "weights" / name, seed=seed)
    (place / "secret").symlink_to(place / "weights" / "new")
    (place / "weights" / "way_out").symlink_to(place / "secret", target_is_directory=True)
    (place / "profiles").mkdir()
    model = tiny.Tiny(layers=("Mamba2", "MlaWithMoe"), **SIZES)
    for name, spoiled, value in (
        ("nan", "norm.weight", math.nan),
        ("infinite", "lm_head.weight", math.inf),
    ):
        directory = tiny.save(model, place / "weights" / name, seed=1)
        tensors = load_file(directory / "model.safetensors")
        tensors[spoiled][0] = value
        save_file(tensors, directory / "model.safetensors")
    return place


def open_it(shelf: Path) -> AsyncLLM:
    return AsyncLLM(str(shelf / "weights" / "old"), device="cpu", memory="24MiB", max_running=4)


@contextmanager
def commanded(shelf: Path, **more: object) -> Iterator[Loopback]:
    source = ModelSource(name="m", open=lambda: open_it(shelf))
    settings = {"api_keys": ("k",), "weights_dir": shelf / "weights" / "..", **more}
    models = Models([source], ServerConfig(host="127.0.0.1", port=0, **settings))
    with serving_models(models) as running:
        running.client.headers["Authorization"] = "Bearer k"
        yield running


@pytest.fixture
def running(shelf: Path) -> Iterator[Loopback]:
    with commanded(shelf) as running:
        yield running


def tokens(running: Loopback, ids: list[int] = IDS, count: int = 8, **more: object) -> dict:
    body = {"prompt": ids, "n_predict": count, "temperature": 0, "return_tokens": True, **more}
    reply = running.client.post("/completion", json={**body, "ignore_eos": True})
    assert reply.is_success, reply.text
    return reply.json()


def post(running: Loopback, route: str, /, **body: object) -> dict:
    reply = running.client.post(route, json=body)
    assert reply.is_success, reply.text
    return reply.json()


@pytest.mark.parametrize("level", [1, 2])
def test_a_model_sleeps_and_is_the_same_when_it_wakes(running: Loopback, level: int) -> None:
    told = tokens(running)
    weights = running.core.bundle.weights
    assert post(running, "/sleep", level=level) == {"is_sleeping": True}
    (slot,) = running.models.slots
    assert slot.model is None
    assert (slot.offloaded is not None) == (level == 1)
    assert running.client.get("/models").json()["data"][0]["status"] == {"value": "sleeping"}
    assert running.client.post("/completion", json={"prompt": "a"}).status_code == 503
    assert post(running, "/wake_up") == {"is_sleeping": False}
    assert (running.core.bundle.weights is weights) == (level == 1)
    again = tokens(running)
    assert again["tokens"] == told["tokens"]
    assert again["tokens_cached"] == 0
    assert tokens(running)["tokens_cached"] == 192


def test_deeper_sleep(running: Loopback) -> None:
    told = tokens(running)
    post(running, "/sleep", level=1)
    post(running, "/sleep", level=2)
    assert running.models.slots[0].offloaded is None
    post(running, "/wake_up")
    assert tokens(running)["tokens"] == told["tokens"]


def test_prefixes_are_forgotten(running: Loopback) -> None:
    told = tokens(running)
    assert tokens(running)["tokens_cached"] == 192
    assert post(running, "/flush_cache") == {"success": True, "num_blocks": 3}
    assert post(running, "/reset_prefix_cache") == {"success": True, "num_blocks": 0}
    assert tokens(running)["tokens_cached"] == 0
    assert tokens(running)["tokens"] == told["tokens"]


def test_frozen_replies_go_on_where_they_stood(running: Loopback) -> None:
    told = tokens(running, count=LONG)["tokens"]
    engine = running.core.engine
    with ThreadPoolExecutor(3) as pool:
        going = pool.submit(tokens, running, count=LONG)
        wait_until(lambda: engine.stats()["generated_tokens"] > LONG + 10)
        assert post(running, "/pause", mode="keep") == {"status": "paused"}
        steps = engine.stats()["steps"]
        late = pool.submit(tokens, running, ids=IDS[1:])
        wait_until(lambda: engine.stats()["num_waiting"] + engine.stats()["num_running"] == 2)
        assert engine.stats()["steps"] == steps
        assert engine.health().ok
        assert not going.done()
        forgot = post(running, "/reset_prefix_cache", reset_running_requests=True)
        assert forgot["num_blocks"] >= 3
        assert post(running, "/resume") == {"status": "resumed"}
        assert going.result()["tokens"] == told
        assert len(late.result()["tokens"]) == 8


def test_what_runs_is_finished_before_a_pause_and_what_comes_waits(running: Loopback) -> None:
    tokens(running)
    engine = running.core.engine
    with ThreadPoolExecutor(3) as pool:
        going = pool.submit(tokens, running, count=500)
        wait_until(lambda: engine.stats()["num_running"] == 1)
        pausing = pool.submit(post, running, "/pause", mode="wait")
        wait_until(lambda: engine._engine.scheduler.admit_until < 10)
        late = pool.submit(tokens, running)
        wait_until(lambda: engine.stats()["num_waiting"] == 1)
        assert len(going.result()["tokens"]) == 500
        assert pausing.result() == {"status": "paused"}
        assert running.client.get("/is_paused").json() == {"is_paused": True}
        assert engine.stats()["num_waiting"] == 1
        post(running, "/continue_generation")
        assert len(late.result()["tokens"]) == 8


def test_waiting_in_a_pause_may_take_too_long(running: Loopback) -> None:
    tokens(running)
    post(running, "/pause")
    body = {"prompt": IDS, "timeout": 0.05, "max_tokens": 2}
    assert running.client.post("/v1/completions", json=body).status_code == 408


def test_ends_where_it_stands(running: Loopback) -> None:
    tokens(running)
    engine = running.core.engine
    body = {"prompt": IDS, "max_tokens": 3000, "temperature": 0, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(running.client.post, "/v1/completions", json=body)
        wait_until(lambda: engine.stats()["generated_tokens"] > 20)
        assert post(running, "/abort_requests")["aborted"] == 1
        reply = going.result().json()
    assert reply["choices"][0]["finish_reason"] == "abort"
    assert 8 < reply["usage"]["completion_tokens"] < 3000
    assert engine.stats()["num_running"] == 0


def test_other_weights(running: Loopback, shelf: Path) -> None:
    old = tokens(running)["tokens"]
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(tokens, running, count=500)
        wait_until(lambda: running.core.engine.stats()["num_running"] == 1)
        done = {"success": True, "message": "Weights updated"}
        assert post(running, "/update_weights", model_path="weights/new") == done
        assert going.result()["tokens"][:8] == old  # it ended with what it began with
    told = tokens(running)
    assert told["tokens"] != old
    assert told["tokens_cached"] == 0
    with commanded(shelf) as other:
        post(other, "/update_weights_from_disk", path=str(shelf / "weights" / "new"))
        assert tokens(other)["tokens"] == told["tokens"]
    for level in (1, 2):  # they stay, however it sleeps
        post(running, "/sleep", level=level)
        post(running, "/wake_up")
        assert tokens(running)["tokens"] == told["tokens"]
    post(running, "/update_weights", path="weights/old")
    assert tokens(running)["tokens"] == old


def test_frozen_replies_go_on_with_other_weights(running: Loopback) -> None:
    tokens(running)
    engine = running.core.engine
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(tokens, running, count=LONG)
        wait_until(lambda: engine.stats()["generated_tokens"] > 20)
        post(running, "/pause", mode="keep")
        preempted = engine.stats()["preemptions"]
        post(running, "/update_weights", path="weights/new")
        assert engine.stats()["preemptions"] == preempted + 1
        assert engine.is_paused
        post(running, "/resume")
        assert len(going.result()["tokens"]) == LONG


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("weights/other", "of another model"),
        ("weights/missing", "no such checkpoint"),
        ("/etc", "no such checkpoint"),
        ("../..", "no such checkpoint"),
        ("weights/../../x", "no such checkpoint"),
        ("a\0b", "no such checkpoint"),
        ("x" * 5000, "no such checkpoint"),
        ("", "model_path is missing"),
        (".", "cannot be used"),
        ("weights/nan", "computes no numbers"),
        ("weights/infinite", "computes no numbers"),
    ],
)
def test_weights_that_are_refused(running: Loopback, path: str, reason: str) -> None:
    told = tokens(running)["tokens"]
    reply = running.client.post("/update_weights", json={"model_path": path})
    assert reply.status_code == 400
    assert reason in reply.json()["error"]["message"]
    assert len(reply.text) < 600
    assert not running.core.engine.is_paused
    assert tokens(running)["tokens"] == told


def test_a_link_leads_no_further_than_the_folder(shelf: Path) -> None:
    with commanded(shelf, weights_dir=shelf / "profiles") as running:
        (shelf / "profiles" / "out").symlink_to(shelf / "weights" / "new")
        reply = running.client.post("/update_weights", json={"model_path": "out"})
        assert (reply.status_code, "no such checkpoint" in reply.text) == (400, True)
        reply = running.client.post("/update_weights", json={"update_info": {}})
        assert reply.json()["error"]["param"] == "update_info"


def test_a_profile(shelf: Path) -> None:
    folder = shelf / "profiles"
    with commanded(shelf, profile_dir=folder) as running:
        assert running.client.post("/start_profile").status_code == 409  # nothing in memory
        tokens(running)
        assert post(running, "/start_profile") == {"status": "started"}
        assert running.client.post("/start_profile").status_code == 409
        tokens(running, ids=IDS[3:])
        stopped = post(running, "/stop_profile")
        assert running.client.post("/stop_profile").status_code == 409
        assert running.client.post("/start_profile?output_dir=/tmp").status_code == 400
    with gzip.open(folder / stopped["file"]) as file:
        events = json.load(file)["traceEvents"]
    names = {str(event.get("name")) for event in events}
    assert any("scheduler.py" in name for name in names), sorted(names)[:50]
    assert [each.name for each in folder.glob("*.gz")] == [stopped["file"]]


def test_a_profile_ends_by_itself_when_it_takes_too_much_memory(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "_MOST_BYTES", -1)
    with commanded(shelf, profile_dir=tmp_path) as running:
        tokens(running)
        post(running, "/start_profile")
        recording = running.state.recording
        assert recording is not None
        wait_until(recording.task.done)
        stopped = post(running, "/stop_profile")
    assert (tmp_path / stopped["file"]).stat().st_size > 0


def test_a_profile_that_cannot_be_written_is_lost(shelf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with commanded(shelf, profile_dir=folder) as running:
        tokens(running)
        post(running, "/start_profile")
        folder.rmdir()
        reply = running.client.post("/stop_profile")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "profile_lost")
        assert "retry-after" in reply.headers
        folder.mkdir()
        post(running, "/start_profile")
        assert post(running, "/stop_profile")["file"]


def test_memory_is_freed(running: Loopback) -> None:
    tokens(running)
    (slot,) = running.models.slots
    assert slot.held_bytes > 24 * 2**20 * 0.8
    weights = running.core.info.size_bytes
    post(running, "/sleep", level=1)
    assert slot.held_bytes == weights
    post(running, "/sleep", level=2)
    assert slot.held_bytes == 0
