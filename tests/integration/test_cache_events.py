"""``/cache_events``: a router that follows it knows what a prompt will find in memory."""

from __future__ import annotations

import json
import socket
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from blazr.engine.cache.known import Listener, block_name, root_name
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support import tiny
from tests.support.loopback import Loopback, serving
from tests.support.scripted import wait_until

GRID = 64


@pytest.fixture(params=["nano", "attention"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Loopback]:
    name = request.param
    if name == "attention":
        model = tiny.Tiny(
            layers=("StandardTransformer",), vocab_size=100315, hidden_size=16, max_seq_len=2048
        )
        name = str(tiny.save(model, tmp_path / "tiny"))
    options = LoadOptions(name, device="cpu", memory="24MiB", max_running=4)
    with serving(load_text_engine(options), keep_alive_s=0.05) as running:
        yield running


class Router:
    """Follows the events of a server, and says what a prompt will find there."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.numbers: list[int] = []
        self.num_removed = 0
        self.is_over = False

    def follow(self, response: httpx2.Response) -> None:
        for line in response.iter_lines():
            if self.is_over:
                return
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            self.numbers.append(event["number"])
            if event["type"] == "stored":
                assert event["block_size"] == GRID
                parent = event["parent_block_hash"]
                assert parent is None or parent in self.known
                self.known.update(event["block_hashes"])
            else:
                self.num_removed += 1
                assert event["type"] == "removed"
                self.known.difference_update(event["block_hashes"])

    def expect(self, prompt: list[int]) -> int:
        """How many tokens of a prompt are in memory; never all of it."""
        name = root_name(b"")
        for start in range(0, len(prompt) - GRID, GRID):
            name = block_name(name, array("i", prompt[start : start + GRID]).tobytes())
            if name.hex() not in self.known:
                return start
        return (len(prompt) - 1) // GRID * GRID


@contextmanager
def following(server: Loopback) -> Iterator[Router]:
    router = Router()
    with server.client.stream("GET", "/cache_events") as response:
        assert response.is_success
        thread = threading.Thread(target=router.follow, args=(response,))
        thread.start()
        yield router
        router.is_over = True  # which it notices at the next comment
        thread.join()


def ask(server: Loopback, prompt: list[int]) -> int:
    """How many tokens of a prompt were in memory."""
    body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True}
    usage = server.client.post("/v1/completions", json=body).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_a_router_knows_what_a_prompt_will_find(server: Loopback) -> None:
    text = [3 + n % 250 for n in range(700)]
    parted = [*text[:500], *text[100:300]]
    with following(server) as router:
        for prompt in (text[:300], text, text[:300], parted, parted):
            expected = router.expect(prompt)
            # where a prompt parts from all others, the state may lie before that
            found = ask(server, prompt)
            assert found <= expected if prompt is parted else found == expected
            edge = (len(prompt) - 1) // GRID * GRID
            wait_until(lambda prompt=prompt, edge=edge: router.expect(prompt) == edge)
        assert ask(server, parted) == router.expect(parted)
        with following(server) as late:
            wait_until(lambda: late.known == router.known)
            server.engine.forget_prefixes()
            wait_until(lambda: not router.known and not late.known)
            assert router.num_removed
    assert router.numbers == list(range(len(router.numbers)))


def test_who_leaves_while_the_engine_is_busy_is_told_nothing_more(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.core.engine
    may_go_on, has_joined = threading.Event(), threading.Event()
    watch = engine.watch_prefixes

    def watch_and_tell(listener: Listener) -> None:
        watch(listener)
        has_joined.set()

    monkeypatch.setattr(engine, "watch_prefixes", watch_and_tell)
    step = threading.Thread(target=engine.call, args=(may_go_on.wait,))
    step.start()
    url = httpx2.URL(server.url)
    with socket.create_connection((url.host, url.port)) as client:
        client.sendall(b"GET /cache_events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(engine._inbox.qsize)
    wait_until(lambda: b'status="none"' in server.state.metrics.render())
    may_go_on.set()
    step.join()
    assert has_joined.wait(10)
    wait_until(lambda: not engine._listeners)
