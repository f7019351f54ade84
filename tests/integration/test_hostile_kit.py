"""Hostile requests that were written by hand, at `blazr serve` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tests.support import (
    audio_models,
    diffusion_pipelines,
    encoder_models,
    mcp_servers,
    vision_models,
)
from tests.support.hostile_kit import KEY, KINDS, attacks
from tests.support.hostile_requests import Hostile, send
from tests.support.loopback import free_port
from tests.support.scripted import wait_until

pytest.importorskip("mcp")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CLIENTS = 4
LIMIT_S = 30.0
PROMPTS = ("once upon a time", "a b c d e f g", "x" * 60)
WORKING = ("blazr_engine_running", "blazr_engine_waiting")
PAGE = os.sysconf("SC_PAGE_SIZE")
FOLDERS = ("files", "weights", "adapter", "profile")
MODELS: dict[str, Callable[[Path], object]] = {
    "ears": audio_models.save_whisper,
    "voice": audio_models.save_vits,
    "eyes": lambda folder: vision_models.save("llava", folder),
    "drawing": diffusion_pipelines.save_stable_diffusion,
    "vectors": lambda folder: encoder_models.save_encoder(folder, "bert", pooling="mean_tokens"),
    "ranks": lambda folder: encoder_models.save_classifier(folder, "bert", num_labels=1),
    "labels": lambda folder: encoder_models.save_classifier(folder, "bert", num_labels=3),
}


class Server:
    """``blazr serve`` with all that it can switch on, and one key."""

    def __init__(self, folder: Path, models: Mapping[str, Path], tools: str) -> None:
        self.port = free_port()
        self.log = folder / "log"
        self.names = ("text", *models)
        words = ["serve", "--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"]
        words += ["--model", "text=nano"]
        words += [word for name, path in models.items() for word in ("--model", f"{name}={path}")]
        words += ["--memory", "48MiB", "--cache-dir", str(folder / "cache")]
        words += ["--api-key", KEY, "--body-timeout", "5", "--request-timeout", "20"]
        for name in FOLDERS:
            (folder / name).mkdir()
            words += [f"--{name}-dir", str(folder / name)]
        config = mcp_servers.write_config(folder, files={"url": tools, "policy": "auto"})
        words += ["--mcp-config", str(config), "--mcp", "--access-log", "off"]
        command = [sys.executable, "-m", "blazr", *words]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr)
        headers = {"Authorization": f"Bearer {KEY}"}
        url = f"http://127.0.0.1:{self.port}"
        self.client = httpx2.Client(base_url=url, headers=headers, timeout=300)
        wait_until(self._answers, timeout_s=120)
        for name in self.names:
            reply = self.client.post("/models/load", json={"model": name})
            assert reply.is_success, reply.text
        wait_until(self._has_loaded, timeout_s=300)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text("utf-8", "replace")
        with suppress(httpx2.TransportError):
            return self.client.get("/health").is_success
        return False

    def _has_loaded(self) -> bool:
        cards = self.client.get("/v1/models").json()["data"]
        found = {card["id"]: card["status"]["value"] for card in cards}
        return all(found[name] == "loaded" for name in self.names)

    def greedy(self) -> list[str]:
        """Some replies of the model that writes, with every bit that is told of them."""
        found = []
        for prompt in PROMPTS:
            body = {"model": "text", "prompt": prompt, "max_tokens": 12, "temperature": 0}
            reply = self.client.post("/v1/completions", json={**body, "logprobs": 1})
            assert reply.is_success, reply.text
            choice = reply.json()["choices"][0]
            found.append(repr((choice["text"], choice["logprobs"])))
        return found

    def resident_bytes(self) -> int:
        """Of its processes, the children's children left out."""
        pids = [str(self.process.pid)]
        for task in Path(f"/proc/{pids[0]}/task").iterdir():
            pids += (task / "children").read_text("ascii").split()
        found = 0
        for pid in pids:
            with suppress(OSError):  # it has ended meanwhile
                found += int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * PAGE
        return found

    def errors(self) -> list[str]:
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return [line for line in lines if "ERROR" in line or "Traceback" in line]

    def storm(self, requests: Iterable[tuple[str, Hostile]]) -> list[str]:
        """Send all of them, some at once; what was wrong with the answers."""

        def one(named: tuple[str, Hostile]) -> str:
            name, request = named
            status, took_s = send("127.0.0.1", self.port, request, timeout_s=LIMIT_S)
            # 501 is what this server says of endpoints that it does not have
            is_fine = took_s < LIMIT_S and (status < 500 or status in {501, 503})
            return "" if is_fine else f"{status} after {took_s:.1f} s: {name}"

        with ThreadPoolExecutor(CLIENTS) as clients:
            return [wrong for wrong in clients.map(one, requests) if wrong]

    def is_idle(self) -> bool:
        text = self.client.get("/metrics").text
        figures = [line.split() for line in text.splitlines() if line.startswith(WORKING)]
        assert figures, "there is no such figure"
        return all(float(value) == 0 for _, value in figures)


@contextmanager
def served(folder: Path, models: Mapping[str, Path]) -> Iterator[Server]:
    (folder / "marks").mkdir()
    with mcp_servers.on_http(folder / "marks") as tools:
        server = Server(folder, models, tools)
        try:
            yield server
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        finally:
            server.client.close()
            server.process.kill()
            server.process.wait()


def by_hand() -> list[tuple[str, Hostile]]:
    return [(each.name, each.request) for kind in KINDS for each in attacks(kind)]


def check(server: Server) -> None:
    """Two storms: nothing breaks, and the second leaves no more memory behind than the first."""
    before = server.greedy()
    resident: list[int] = []
    for _ in range(2):
        wrong = server.storm(by_hand())
        wait_until(server.is_idle, timeout_s=LIMIT_S)
        assert not wrong
        assert server.greedy() == before
        resident.append(server.resident_bytes())
    wait_until(lambda: server.resident_bytes() < 1.1 * resident[0], timeout_s=LIMIT_S)
    assert not server.errors()


def test_requests_by_hand(tmp_path: Path) -> None:
    with served(tmp_path, {}) as server:
        check(server)


@audio_models.NEEDS_AUDIO
@pytest.mark.filterwarnings("ignore")  # of the libraries that save the models
def test_requests_by_hand_at_models_of_every_kind(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    models = {name: tmp_path / name for name in MODELS}
    for name, save in MODELS.items():
        save(models[name])
    with served(tmp_path, models) as server:
        check(server)
