"""The server over a real engine: its figures are true, and nothing stays behind."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from blazr.core.metrics import METRICS
from blazr.engine.cache.storage import ALIGNMENT
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.models.loading.plan import plan_model
from tests.support import tiny
from tests.support.loopback import Loopback, serving
from tests.support.scripted import wait_until

HEADER = "X-Blazr-Prefix-Cache"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid with a context that no test fills."""
    model = tiny.Tiny(vocab_size=100315, hidden_size=16, max_seq_len=16384)
    return tiny.save(model, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def server(path: Path, tmp_path: Path) -> Iterator[Loopback]:
    options = LoadOptions(
        str(path), device="cpu", memory="24MiB", max_running=4, cache_dir=str(tmp_path)
    )
    with serving(load_text_engine(options)) as running:
        yield running


def metric(server: Loopback, name: str) -> float:
    """A metric's value, summed over its labels."""
    text = server.client.get("/metrics").text
    values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert values, f"{name} is not shown"
    return sum(map(float, values))


def complete(server: Loopback, prompt: object, **body: object) -> str:
    """The header of a completion."""
    reply = server.client.post(
        "/v1/completions", json={"prompt": prompt, "max_tokens": 1, "ignore_eos": True, **body}
    )
    assert reply.is_success, reply.text
    return reply.headers[HEADER]


def test_the_header_says_why(server: Loopback) -> None:
    prompt = list(range(1000, 1200))
    assert complete(server, prompt) == "0/200; unknown"
    assert complete(server, prompt) == "192/200; whole; end"
    assert complete(server, prompt[:150] + [5] * 50) == "128/200; partial; geometric"
    assert complete(server, prompt[:40]) == "0/40; short"
    # its scores are not known yet; then they are
    assert complete(server, prompt, logprobs=1, echo=True) == "0/200; unknown"
    assert complete(server, prompt, logprobs=1, echo=True) == "192/200; whole; end"
    found = server.client.get("/debug/cache").json()
    assert [each["reason"] for each in found["recent"]][:3] == ["whole", "unknown", "short"]
    assert [each["state"] for each in found["recent"]][:3] == ["end", None, None]
    counted = {"unknown": 2, "whole": 2, "partial": 1, "short": 1}
    assert found["reasons"] == counted
    assert found["blocks"] > 0
    assert found["pages"]["used"] == found["pages"]["idle"] > 0
    assert found["states"]["used"] > 0
    assert found["pages"]["free"] > 0
    assert (found["prompt_tokens"], found["cached_tokens"]) == (1040, 512)


def test_the_size_of_a_state_is_what_it_takes(path: Path) -> None:
    sizes = {}
    for state_dtype in ("auto", "bfloat16"):
        options = LoadOptions(str(path), device="cpu", memory="8MiB", state_dtype=state_dtype)
        with serving(load_text_engine(options)) as running:
            found = running.client.get("/debug/cache").json()
        sizes[state_dtype] = found["states"]["bytes_each"]
        assert found["pages"]["bytes_each"] > 0
        specs = [
            layer.mixer.cache_spec(torch.float32).stored_as(state_dtype=state_dtype)
            for layer in plan_model(str(path)).derivation.config.layers
        ]
        taken = sum(spec.bytes_per_checkpoint for spec in specs)
        tensors = sum(len(spec.checkpoint) for spec in specs)
        assert taken <= sizes[state_dtype] < taken + ALIGNMENT * tensors
    assert sizes["bfloat16"] < sizes["auto"]


def test_a_state_is_kept_where_a_request_says_and_where_prompts_part(server: Loopback) -> None:
    prompt = list(range(1000, 1650))  # of 10 blocks: states after 5 (asked for), 7, 9 and 10
    assert complete(server, prompt, cache_anchors=[330]) == "0/650; unknown"
    assert complete(server, prompt[:330] + [5] * 100) == "320/430; partial; anchor"
    assert complete(server, prompt[:530] + [6] * 100) == "448/630; no-state; geometric"
    assert complete(server, prompt[:530] + [7] * 100) == "512/630; partial; parted"


def test_salts_keep_prefixes_apart(server: Loopback) -> None:
    prompt = list(range(200))
    assert complete(server, prompt, cache_salt="a") == "0/200; unknown"
    assert complete(server, prompt, cache_salt="b") == "0/200; unknown"
    assert complete(server, prompt) == "0/200; unknown"
    assert complete(server, prompt, cache_salt="a") == "192/200; whole; end"


def test_every_figure_of_the_engine_is_a_metric(server: Loopback) -> None:
    complete(server, list(range(100)), n=2)
    rows = [row for row in METRICS.values() if row.figure]
    for name in server.core.engine.stats():
        fitting = [r for r in rows if name == r.figure or (r.labels and name.startswith(r.figure))]
        assert len(fitting) == 1, name
    for name, row in METRICS.items():
        # requests, answers and tokens of the server are counted at their first
        metric(server, name + {"counter": "_total", "gauge": "", "histogram": "_count"}[row.kind])
    assert metric(server, "blazr_engine_prefixes_total") == 2
    assert metric(server, "blazr_engine_finished_total") == 2
    assert metric(server, "blazr_engine_generated_tokens_total") == 2
    assert metric(server, "blazr_requests_total") == 1
    assert metric(server, "blazr_time_to_first_token_seconds_count") == 2


def test_slots_tell_how_far_replies_are(server: Loopback) -> None:
    body = {"prompt": list(range(100)), "max_tokens": 16000, "ignore_eos": True, "n": 2}
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        lines = reply.iter_lines()
        for _ in range(20):
            next(lines)
        slots = server.client.get("/slots").json()
        assert [slot["is_processing"] for slot in slots] == [True, True, False, False]
        for slot in slots[:2]:
            assert slot["n_prompt_tokens"] == slot["n_prompt_tokens_processed"] == 100
            (token,) = slot["next_token"]
            assert token["n_decoded"] > 0
            assert token["n_decoded"] + token["n_remain"] == 16000
    wait_until(lambda: not any(s["is_processing"] for s in server.client.get("/slots").json()))


class Aborts:
    """What the engine holds at the first step boundary after it was told that a client has left."""

    def __init__(self, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
        self._engine = server.core.engine
        self._abort = self._engine.abort
        self._found: list[dict[str, float]] = []
        monkeypatch.setattr(self._engine, "abort", self._note)

    def _note(self, *arguments: int | None) -> None:
        steps = self._engine.stats()["steps"]
        self._abort(*arguments)
        found = self._engine.call(self._engine.stats)
        self._found.append(found | {"steps": found["steps"] - steps})

    def check(self, num_running: int) -> None:
        """Nobody waits within two steps, and the pages are free but for those that run."""
        wait_until(lambda: len(self._found) > 0)
        found = self._found.pop()
        assert found["steps"] <= 2
        assert (found["num_running"], found["num_waiting"]) == (num_running, 0)
        assert num_running or found["pages_used"] == found["pages_idle"] > 0


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_memory_within_two_steps(
    server: Loopback, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    aborts = Aborts(server, monkeypatch)
    body = {"prompt": list(range(300)), "max_tokens": 16000, "ignore_eos": True, "n": 2}
    body |= {"stream": streams, "temperature": 0}

    limit_s = 30 if streams else 0.5

    def ask() -> None:
        with server.client.stream("POST", "/v1/completions", json=body, timeout=limit_s) as reply:
            for _ in reply.iter_lines():
                if metric(server, "blazr_engine_generated_tokens_total") > 20:
                    break

    if streams:
        ask()
    else:
        with pytest.raises(Exception, match="timed out"):
            ask()
    aborts.check(num_running=0)
    text = server.client.get("/metrics").text
    assert 'blazr_requests_total{model="tiny",outcome="cancelled"} 1.0' in text
    assert 'blazr_engine_finished_total{model="tiny",reason="abort"} 2.0' in text


def leave_when(server: Loopback, condition: Callable[[], bool], **body: object) -> None:
    """Ask for a stream, and close the connection without having read a byte of it."""
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps({"ignore_eos": True, "stream": True, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(head.encode() + data)
        wait_until(condition)


def test_a_client_that_leaves_during_prefill_is_noticed(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborts = Aborts(server, monkeypatch)

    def has_begun() -> bool:
        return server.core.engine.stats()["prefix_blocks"] > 0

    leave_when(server, has_begun, prompt=[5] * 12000, max_tokens=4000)
    aborts.check(num_running=0)


def test_a_client_that_leaves_the_queue_is_noticed(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = {
        "prompt": list(range(70)),
        "max_tokens": 16000,
        "ignore_eos": True,
        "stream": True,
        "n": 4,
    }
    with server.client.stream("POST", "/v1/completions", json=endless) as reply:
        lines = reply.iter_lines()
        next(lines)
        aborts = Aborts(server, monkeypatch)
        is_queued = partial(metric, server, "blazr_engine_waiting")
        leave_when(server, lambda: is_queued() == 1, prompt=[4, 5], max_tokens=16000)
        aborts.check(num_running=4)
        next(lines)
    aborts.check(num_running=0)


def test_health_tells_of_a_dead_engine_until_it_is_back(server: Loopback) -> None:
    engine, may_restart = server.core.engine, threading.Event()
    build = engine._build

    def build_later():
        assert may_restart.wait(20)
        return build()

    def die(plan):
        raise SystemExit("the thread died")

    engine._build = build_later
    engine.call(lambda: setattr(engine._engine, "_execute", die))
    failed = server.client.post("/v1/completions", json={"prompt": [1, 2, 3]})
    assert failed.status_code == 500
    wait_until(lambda: server.client.get("/health").status_code == 503)
    for path in ("/health", "/ready"):
        reply = server.client.get(path)
        assert reply.status_code == 503
        assert "the thread died" in reply.json()["error"]["message"]
    may_restart.set()
    wait_until(lambda: server.client.get("/health").status_code == 200)
    assert complete(server, list(range(200))) == "0/200; unknown"
    assert metric(server, "blazr_engine_restarts_total") == 1
    assert server.client.get("/ready").status_code == 200
