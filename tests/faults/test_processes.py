"""Faults that the system does to a whole server: killed, stopped, without descriptors or memory."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from blazr.core import env
from blazr.nn.kernels.cpu import compiled
from tests.support.loopback import free_port
from tests.support.scripted import wait_until
from tests.support.seeds import run_seed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
LIMIT = 64  # descriptors
LOGGER = logging.getLogger(__name__)


def blazr(*words: str, limit: str = "") -> list[str]:
    """A command, run within a limit of the shell's ``ulimit``."""
    command = [sys.executable, "-m", "blazr", *words]
    return ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *command] if limit else command


class Server:
    """``blazr serve`` with the built-in model, in a process of its own."""

    def __init__(self, port: int, log: Path, limit: str = "") -> None:
        words = ["serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        with log.open("wb") as stderr:
            command = blazr(*words, "--memory", "24MiB", limit=limit)
            self.process = subprocess.Popen(command, stderr=stderr, start_new_session=True)
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        wait_until(self._is_ready, timeout_s=120)

    def say(self, **changes: object) -> str:
        """What the prompt is answered with."""
        reply = self.client.post("/v1/completions", json={**BODY, **changes})
        assert reply.is_success, reply.text
        return reply.json()["choices"][0]["text"]

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, "it has ended"
        try:
            return self.client.get("/ready").is_success
        except httpx2.ConnectError:
            return False


@contextmanager
def served(port: int, log: Path, limit: str = "") -> Iterator[Server]:
    server = Server(port, log, limit)
    try:
        yield server
    finally:
        server.client.close()
        server.process.kill()
        server.process.wait()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_after_kill_9_under_load_the_next_server_answers_as_before(log: Path) -> None:
    port = free_port()
    said = set()
    for _ in range(20):
        with served(port, log) as server:
            said.add(server.say())

            def ask(server: Server = server) -> None:
                with suppress(httpx2.HTTPError):
                    server.client.post("/v1/completions", json={**BODY, "max_tokens": 2000})

            clients = [threading.Thread(target=ask) for _ in range(4)]
            for each in clients:
                each.start()
            wait_until(lambda: "blazr_engine_running" in server.client.get("/metrics").text)
            server.process.send_signal(signal.SIGKILL)
            for each in clients:
                each.join(60)
                assert not each.is_alive(), "a client waits for a server that is gone"
    assert len(said) == 1


@pytest.mark.timeout(1800)
def test_a_hundred_times_sigterm_cuts_no_reply(log: Path) -> None:
    port, chance = free_port(), random.Random(run_seed(17))
    outcomes: Counter[str] = Counter()
    right = ""

    def ask(server: Server, max_tokens: int, stream: bool) -> str:
        body = {**BODY, "max_tokens": max_tokens, "stream": stream}
        try:
            reply = server.client.post("/v1/completions", json=body)
        except httpx2.ConnectError:
            return "refused"
        if reply.status_code == 503:
            return "refused"
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
        if stream:
            assert lines.pop() == "[DONE]"
        choices = [json.loads(line)["choices"][0] for line in lines]
        assert choices[-1]["finish_reason"] == "length"
        text = "".join(each["text"] for each in choices)
        assert text
        assert right.startswith(text)
        return "whole"

    for _ in range(100):
        with served(port, log) as server, ThreadPoolExecutor(6) as pool:
            right = right or server.say(max_tokens=300)
            asked = [
                pool.submit(ask, server, chance.randint(1, 300), stream=each % 2 == 0)
                for each in range(6)
            ]
            time.sleep(chance.random() * 0.3)
            server.process.send_signal(signal.SIGTERM)
            outcomes += Counter(each.result(120) for each in asked)
            assert server.process.wait(60) == 0
            with pytest.raises(ProcessLookupError):
                os.killpg(server.process.pid, 0)  # no child is left of its group
    LOGGER.info("%s", outcomes)
    assert outcomes["whole"] > 0


def test_a_server_that_was_stopped_goes_on_where_it_was(log: Path) -> None:
    with served(free_port(), log) as server:
        right = server.say(max_tokens=400)
        texts = []
        for text in stream(server.client, {**BODY, "max_tokens": 400, "stream": True}):
            texts.append(text)
            if len(texts) == 20:
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(3)
                server.process.send_signal(signal.SIGCONT)
        assert "".join(texts) == right
        assert server.client.get("/health").is_success
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


def stream(client: httpx2.Client, body: dict[str, object]) -> Iterator[str]:
    """The pieces of a reply."""
    with client.stream("POST", "/v1/completions", json=body) as reply:
        for line in reply.iter_lines():
            if line and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]


def test_a_server_without_descriptors_is_idle_and_comes_back(log: Path) -> None:
    port = free_port()
    with served(port, log, f"-n {LIMIT}") as server:
        right = server.say()
        waiting = []
        for _ in range(3 * LIMIT):
            client = socket.socket()
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(("127.0.0.1", port))
            waiting.append(client)
        wait_until(lambda: "ulimit" in log.read_text())
        before = processor_s(server.process.pid)
        time.sleep(3)
        assert processor_s(server.process.pid) - before < 0.2 * 3
        assert server.say() == right  # on a connection that was there before
        for client in waiting:
            client.close()
        with httpx2.Client(base_url=server.client.base_url, timeout=120) as fresh:
            reply = fresh.post("/v1/completions", json=BODY)
            assert reply.json()["choices"][0]["text"] == right
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    text = log.read_text()
    assert "Traceback" not in text
    assert len(text.splitlines()) < 100


def processor_s(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.skipif(
    bool(compiled.missing()) or env.get("BLAZR_KERNELS") == "reference",
    reason="torch's threads end the process where they find no memory",
)
def test_too_little_memory_is_told_in_a_line_or_two() -> None:
    whole = run_within("")
    assert whole.returncode == 0, whole.stderr
    ends = []
    for num_mib in (650, 700, 800, 900, 1100, 1400, 2000):
        run = run_within(f"-v {num_mib * 1024}")
        ends.append(run.returncode)
        assert "Traceback" not in run.stderr
        if run.returncode:
            assert "error: " in run.stderr, run.stderr
            assert "MemoryError" not in run.stderr
            assert not run.stdout
        else:
            assert run.stdout == whole.stdout
    assert set(ends) <= {0, 1}, ends
    assert ends == sorted(ends, reverse=True), "with more memory it does not fail"


def run_within(limit: str) -> subprocess.CompletedProcess[str]:
    """Generate a little within a limit."""
    words = ["generate", "--device", "cpu", "--max-tokens", "8", "--temperature", "0", "Once upon"]
    command = blazr(*words, limit=limit)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_port_in_use_is_told_before_a_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["serve", "--host", "127.0.0.1", "--port", port, "--device", "cpu"]
        run = subprocess.run(blazr(*words), capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("error: cannot listen")
    assert "Traceback" not in run.stderr
