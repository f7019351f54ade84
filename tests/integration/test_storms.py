"""Clients that leave by the thousand, that do not read, and more than can be served; dead engines.

Each is told, and none stays.

``--log-cli-level=info`` shows how many of each kind there were.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from blazr.engine import async_engine
from blazr.engine.async_engine import AsyncEngine
from blazr.engine.engine import Engine
from blazr.engine.outputs import TokenOutput
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from tests.support import tiny
from tests.support.leaks import check_memory_is_back, resident_bytes
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until
from tests.support.seeds import run_seed

MODEL = tiny.Tiny(layers=("Mamba2", "StandardTransformer", "MlaWithMoe"), vocab_size=100315)
PROBE = {"prompt": "once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 1}
SHARED = "the beginning that many prompts share, so that they share its pages as well: "
LEAVERS = 32  # at once
RETRIED = {429, 503}
LOGGER = logging.getLogger(__name__)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Loopback]:
    path = tiny.save(MODEL, tmp_path / "model")
    options = LoadOptions(str(path), device="cpu", memory="8MiB", max_running=8, max_seq_len=256)
    with serving(load_text_engine(options)) as running:
        yield running


def probe(server: Loopback) -> str:
    reply = server.client.post("/v1/completions", json=PROBE)
    choice = reply.json()["choices"][0]
    return repr((choice["text"], choice["logprobs"]))


def request_bytes(body: dict[str, object], *, keeps: bool = False) -> bytes:
    data = json.dumps(body).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data)}", f"Connection: {'keep-alive' if keeps else 'close'}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def a_body(chance: random.Random) -> dict[str, object]:
    prompt = chance.choice((SHARED, "")) + f"number {chance.randrange(10**6)} " * chance.randint(
        1, 9
    )
    return {
        "prompt": prompt,
        "max_tokens": chance.randint(1, 60),
        "n": chance.choice((1, 1, 1, 3)),
        "stream": chance.random() < 0.7,
        "ignore_eos": True,
    }


def leave(server: Loopback, seed: str) -> str:
    """Ask for something and hang up at a random moment; which one it was."""
    chance = random.Random(seed)
    host, port = server.url.removeprefix("http://").split(":")
    raw = request_bytes(a_body(chance))
    moment = chance.choice(("inside the request", "at once", "after a moment", "inside the reply"))
    with (
        socket.create_connection((host, int(port)), timeout=60) as client,
        suppress(ConnectionError),
    ):
        if chance.random() < 0.5:  # closed with what was not read yet, it is reset and not ended
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        if moment == "inside the request":
            raw = raw[: chance.randrange(len(raw))]
        client.sendall(raw)
        if moment == "after a moment":
            time.sleep(chance.random() * 0.05)
        if moment == "inside the reply":
            client.recv(chance.choice((1, 200, 2000)), socket.MSG_WAITALL)
    return moment


def num_connections(server: Loopback) -> int:
    return len(server.server.server_state.connections)


def disconnects(server: Loopback, count: int) -> Counter[str]:
    before = probe(server)
    with ThreadPoolExecutor(LEAVERS) as pool:
        seeds = [f"{run_seed(12)} {number}" for number in range(count)]
        moments = Counter(pool.map(lambda seed: leave(server, seed), seeds))
    started_s = time.monotonic()
    wait_until(lambda: server.state.num_working == 0)
    wait_until(lambda: not server.core.engine.stats()["num_running"])
    idle_s = time.monotonic() - started_s
    LOGGER.info("idle %.2f s after the last of %d has left: %s", idle_s, count, moments)
    assert probe(server) == before
    server.client.close()
    wait_until(lambda: num_connections(server) == 0)
    stats = server.core.engine.stats()
    assert stats["restarts"] == 0
    assert stats["num_waiting"] == 0
    engine = server.core.engine
    engine.call(lambda: check_memory_is_back(engine._engine))
    return moments


def test_clients_that_leave_at_any_moment_leave_nothing(server: Loopback) -> None:
    assert len(disconnects(server, 120)) == 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thousands_that_leave_leave_nothing(server: Loopback) -> None:
    disconnects(server, 2000)


async def ask(server: Loopback, number: int, times: int) -> list[tuple[int, bool]]:
    """The statuses of so many requests on one connection, and whether each says when to retry."""
    chance = random.Random(f"{run_seed(13)} {number}")
    host, port = server.url.removeprefix("http://").split(":")
    found = []
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(times):
        body = {**a_body(chance), "max_tokens": 4, "n": 1}
        writer.write(request_bytes(body, keeps=True))
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if length := re.search(r"content-length: (\d+)", head, re.IGNORECASE):
            said = await reader.readexactly(int(length[1]))
        else:
            assert "transfer-encoding: chunked" in head.lower(), head
            said = await reader.readuntil(b"0\r\n\r\n")
        status = int(head.split()[1])
        if status == 200:
            assert b'"finish_reason":"length"' in said
            assert b'"error"' not in said
        found.append((status, "retry-after:" in head.lower()))
    writer.close()
    await writer.wait_closed()
    return found


def overload(server: Loopback, clients: int, times: int) -> Counter[int]:
    before = probe(server)

    async def everybody() -> list[list[tuple[int, bool]]]:
        return await asyncio.gather(*(ask(server, number, times) for number in range(clients)))

    answers = [each for found in asyncio.run(everybody()) for each in found]
    assert len(answers) == clients * times, "each request is answered once"
    assert all(says_when for status, says_when in answers if status in RETRIED)
    statuses = Counter(status for status, _ in answers)
    LOGGER.info("%d connections x %d: %s", clients, times, statuses)
    assert set(statuses) <= {200, *RETRIED}
    wait_until(lambda: server.state.num_working == 0)
    assert probe(server) == before
    engine = server.core.engine
    engine.call(lambda: check_memory_is_back(engine._engine))
    return statuses


def test_under_overload_each_request_has_one_outcome(server: Loopback) -> None:
    assert overload(server, clients=150, times=2)[200] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_under_heavy_overload_each_request_has_one_outcome(server: Loopback) -> None:
    statuses = overload(server, clients=500, times=10)
    assert statuses[200] > 0
    assert statuses[429] > 0, "nobody was refused, so it was no overload"


def plant_death(engine: AsyncEngine, num_waiting: int) -> threading.Event:
    """End the engine's thread when so many wait; the event lets a new engine come."""
    may_come = threading.Event()
    build = engine._build

    def wait_and_build() -> Engine:
        engine._build = build
        may_come.wait()
        return build()

    def step(*_: object) -> list[TokenOutput]:
        if engine.stats()["num_waiting"] < num_waiting:
            time.sleep(0.001)
            return []
        raise SystemExit("dead")

    def plant() -> None:
        engine._build = wait_and_build
        engine._engine.step = step  # type: ignore[method-assign]

    engine.call(plant)
    return may_come


def deaths(server: Loopback, count: int) -> None:
    """Let the engine's thread die under four requests, again and again."""
    before = probe(server)
    engine = server.core.engine
    told_s, back_s = [], []

    def is_told(stream: bool) -> bool:
        reply = server.client.post("/v1/completions", json={**PROBE, "stream": stream})
        return reply.status_code in {200, 500} and "the engine failed" in reply.text

    for number in range(count):
        may_come = plant_death(engine, num_waiting=4)
        with ThreadPoolExecutor(4) as pool:
            asked_s = time.monotonic()
            waiting = [pool.submit(is_told, stream=each % 2 == 0) for each in range(4)]
            wait_until(lambda: server.client.get("/health").status_code == 503)
            told_s.append(time.monotonic() - asked_s)
            assert all(each.result(60) for each in waiting)
        came_s = time.monotonic()
        may_come.set()
        wait_until(lambda: server.client.get("/health").is_success, timeout_s=60)
        back_s.append(time.monotonic() - came_s)
        assert engine.stats()["restarts"] == number + 1
    LOGGER.info("%d deaths: told after %.2f s, back after %.2f", count, max(told_s), max(back_s))
    assert probe(server) == before
    engine.call(lambda: check_memory_is_back(engine._engine))


def test_whoever_waits_for_an_engine_that_dies_is_told(server: Loopback) -> None:
    deaths(server, 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whoever_waits_for_fifty_engines_that_die_is_told(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_engine, "RESTART_WINDOW_S", 0.0)  # else it is given up soon
    deaths(server, 50)


def read_all(url: str, words: int) -> None:
    """Read a stream to its end."""
    body = {"prompt": "a", "max_tokens": words, "stream": True, "ignore_eos": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as reply:
        assert list(reply.iter_lines())[-2:] == ["data: [DONE]", ""]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_that_do_not_read_slow_down_nobody() -> None:
    """What is kept for each is bounded, whatever is said to it."""
    words, crowd = 20_000, 100
    core = scripted_core(text=" word" * words, max_seq_len=2 * words)
    body = {"prompt": "a", "max_tokens": words, "stream": True, "ignore_eos": True}
    with serving(core) as running, ExitStack() as stalled:

        def seconds_of_readers() -> float:
            started_s = time.monotonic()
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(lambda _: read_all(running.url, 3000), range(16)))
            return time.monotonic() - started_s

        def stand_still() -> bool:
            before = core.engine.num_steps
            time.sleep(1)
            return core.engine.num_steps == before

        alone_s = seconds_of_readers()
        before = resident_bytes()
        host, port = running.url.removeprefix("http://").split(":")
        for _ in range(crowd):
            client = stalled.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect((host, int(port)))
            client.sendall(request_bytes(body))
        wait_until(lambda: running.state.num_working == crowd, timeout_s=60)
        wait_until(stand_still, timeout_s=120)
        kept = (resident_bytes() - before) / crowd
        beside_s = seconds_of_readers()
        LOGGER.info("alone %.2f s, beside %.2f s, %d bytes for each", alone_s, beside_s, kept)
        assert kept < 1e6
