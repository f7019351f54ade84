"""Hostile requests by the hundred, at a real engine: nothing breaks, and nothing changes."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from blazr.cli.model_plans import plan_models
from blazr.cli.options import ServeFlags
from blazr.cli.serve import open_models
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.server.config import ServerConfig
from tests.support import audio_models, tiny, vision_models
from tests.support.hostile_requests import Hostile, hostile_request, send
from tests.support.leaks import resident_bytes
from tests.support.loopback import Loopback, serving, serving_models
from tests.support.scripted import wait_until
from tests.support.seeds import run_seed

CLIENTS = 6
LIMIT_S = 30.0
MODELS = ("model", "ears", "voice", "eyes")
PROBES = ("once upon a time", "a b c d e f g", "x" * 60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    model = tiny.Tiny(vocab_size=100315, hidden_size=16, max_seq_len=128)
    path = tiny.save(model, tmp_path_factory.mktemp("models") / "model")
    options = LoadOptions(str(path), device="cpu", memory="24MiB", max_running=4)
    with serving(load_text_engine(options), body_timeout_s=1.0, request_timeout_s=20.0) as running:
        yield running


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Models that write, hear, speak and see, in one server."""
    root = tmp_path_factory.mktemp("many")
    audio_models.save_whisper(root / "ears")
    audio_models.save_vits(root / "voice")
    vision_models.save("llava", root / "eyes")
    flags = ServeFlags(device="cpu", memory="64MiB")
    named = [f"{name}={root / name}" for name in MODELS[1:]]
    plans = plan_models(["model=nano", *named], None, flags, default="nano")
    config = ServerConfig(host="127.0.0.1", port=0, body_timeout_s=1.0, request_timeout_s=20.0)
    with serving_models(open_models(plans, config)) as running:
        for name in MODELS:
            running.client.post("/models/load", json={"model": name})
        wait_until(lambda: all(slot.model is not None for slot in running.models.slots))
        yield running


def greedy(server: Loopback) -> list[str]:
    found = []
    for prompt in PROBES:
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 1}
        choice = server.client.post("/v1/completions", json=body).json()["choices"][0]
        found.append(repr((choice["text"], choice["logprobs"])))
    return found


def storm(
    server: Loopback, *, seed: int, count: int, models: Sequence[str] = MODELS[:1]
) -> Counter[int]:
    """Send requests from several clients at once; how often each status came."""
    chance = random.Random(run_seed(seed))
    requests = [hostile_request(chance, models) for _ in range(count)]
    host, port = server.url.removeprefix("http://").split(":")

    def one(request: Hostile) -> int:
        status, took_s = send(host, int(port), request, timeout_s=LIMIT_S)
        assert took_s < LIMIT_S, request
        # 501 is what this server says of endpoints that it does not have
        assert status < 500 or status in {501, 503}, (status, request)
        return status

    with ThreadPoolExecutor(CLIENTS) as clients:
        return Counter(clients.map(one, requests))


def check_as_before(server: Loopback, before: list[str]) -> None:
    wait_until(lambda: server.state.num_working == 0)
    assert greedy(server) == before
    assert server.client.get("/health").status_code == 200


def test_some(server: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    before = greedy(server)
    with caplog.at_level(logging.ERROR):
        statuses = storm(server, seed=1, count=50)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    check_as_before(server, before)
    assert {200, 400, 404} <= set(statuses)


@pytest.mark.parametrize(
    "asked",
    [
        {"allowed_token_ids": [5], "regex": "[0-9]+"},
        {"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 2},
        {"allowed_token_ids": [2**31]},
        {"repetition_penalty": 1e-38},
        {"regex": "a{1000000}"},
        {"grammar": 'root ::= "a"{1000000}'},
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_the_request_s_fault(
    server: Loopback, asked: dict[str, object]
) -> None:
    """Whatever finds it out, and when."""
    body = {"prompt": PROBES[0], "max_tokens": 6, **asked}
    whole = server.client.post("/v1/completions", json=body)
    streamed = server.client.post("/v1/completions", json={**body, "stream": True})
    assert whole.status_code == 400, whole.text
    error = whole.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
    if streamed.status_code == 200:
        (line,) = [each for each in streamed.text.split("\n") if '"error"' in each]
        assert json.loads(line.removeprefix("data: "))["error"] == error
    assert server.state.num_working == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_and_memory_comes_back(server: Loopback) -> None:
    before = greedy(server)
    storm(server, seed=2, count=2000)  # caches fill, and threads start
    wait_until(lambda: server.state.num_working == 0)
    baseline = resident_bytes()
    storm(server, seed=3, count=2000)
    check_as_before(server, before)
    assert resident_bytes() < 1.1 * baseline


@pytest.mark.slow
@pytest.mark.timeout(1800)
@audio_models.NEEDS_AUDIO
@pytest.mark.filterwarnings("ignore")  # of libraries, at what they are given
def test_sounds_and_images(many: Loopback) -> None:
    before = greedy(many)
    storm(many, seed=4, count=400, models=MODELS)
    wait_until(lambda: many.state.num_working == 0)
    baseline = resident_bytes()
    statuses = storm(many, seed=5, count=400, models=MODELS)
    check_as_before(many, before)
    assert {200, 400, 404} <= set(statuses)
    assert resident_bytes() < 1.1 * baseline
