"""A request of many inputs beside others: they are let in, served in turn, and it loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.server.config import ServerConfig
from blazr.server.state import ServerState
from tests.support.loopback import Loopback, serving
from tests.support.scripted import wait_until

NUM_NEIGHBOURS = 30
NUM_INPUTS = 400


@pytest.fixture(params=[(), ("first key", "second key")], ids=["no keys", "keys"])
def running(model_path: Path, request: pytest.FixtureRequest) -> Iterator[Loopback]:
    options = LoadOptions(model=str(model_path), device="cpu", max_running=8, memory="64MiB")
    with serving(load_text_engine(options), api_keys=request.param) as loopback:
        yield loopback


def ask(running: Loopback, path: str, body: dict[str, object], *, key: int = 0) -> httpx2.Response:
    keys = running.models.state.config.api_keys
    headers = {"x-api-key": keys[key]} if keys else {}
    with httpx2.Client(base_url=running.url, timeout=120) as client:
        return client.post(path, json=body, headers=headers)


def test_a_batch_shuts_nobody_out(running: Loopback) -> None:
    inputs = [f"text number {number}" for number in range(NUM_INPUTS)]
    engine = running.core.engine
    ended: dict[str, float] = {}

    def batch() -> httpx2.Response:
        reply = ask(running, "/v1/embeddings", {"input": inputs})
        ended["batch"] = time.monotonic()
        return reply

    def neighbour(number: int) -> httpx2.Response:
        body = {"prompt": f"neighbour {number}", "max_tokens": 2, "temperature": 0}
        reply = ask(running, "/v1/completions", body, key=1 if number % 2 else 0)
        ended[f"neighbour {number}"] = time.monotonic()
        return reply

    engine.pause(finishes=False).result()
    with ThreadPoolExecutor(NUM_NEIGHBOURS + 1) as pool:
        try:
            hog = pool.submit(batch)
            wait_until(lambda: engine.stats()["num_waiting"] >= 8)
            time.sleep(0.2)  # so that it holds all that it can get
            neighbours = [pool.submit(neighbour, number) for number in range(NUM_NEIGHBOURS)]
            wait_until(lambda: running.state.num_working == NUM_NEIGHBOURS + 1)
        finally:
            engine.resume()
        statuses = [each.result().status_code for each in neighbours]
        whole = hog.result()
    assert statuses == [200] * NUM_NEIGHBOURS
    # each of them had its turn while most of the batch waited
    assert max(ended, key=lambda name: ended[name]) == "batch"
    vectors = [each["embedding"] for each in whole.json()["data"]]
    for number in (0, NUM_INPUTS - 1):
        alone = ask(running, "/v1/embeddings", {"input": inputs[number]}).json()
        assert vectors[number] == pytest.approx(alone["data"][0]["embedding"], abs=1e-5)


@pytest.mark.parametrize(
    ("api_keys", "knows_clients"),
    [((), False), (("a",), False), (("a", "a"), False), (("a", "b"), True)],
)
def test_keys_are_groups_where_there_are_several(
    api_keys: tuple[str, ...], knows_clients: bool
) -> None:
    assert ServerState(ServerConfig(api_keys=api_keys)).knows_clients is knows_clients
