"""blazr on Ray Serve: prompts sent to where they are known, an engine killed, scaled by load.

Needs the extra ``ray``, and some minutes: Ray starts a dozen processes.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx2
import openai
import pytest

from tests.support.loopback import free_port
from tests.support.scripted import wait_until

pytest.importorskip("ray")

_log = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
]

PATIENCE_S = 240.0
ROOT = Path(__file__).resolve().parents[2]
BODY = {"model": "nano", "max_tokens": 8, "temperature": 0}
REPLICA = "x-blazr-replica"


@contextmanager
def running(command: list[str], log: Path, environment: list[str]) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["env", *environment, sys.executable, *command], stdout=file, stderr=file
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


@dataclass
class Fleet:
    client: httpx2.Client
    openai: openai.OpenAI
    metrics_url: str
    mark: bytes

    def engines(self) -> list[int]:
        """The processes of the engines."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                title = (path / "cmdline").read_bytes()
                if b"ServeReplica" in title and b"Engine" in title:
                    found += [int(path.name)] * (self.mark in (path / "environ").read_bytes())
        return found

    def ask(self, prompt: str, **changes: object) -> httpx2.Response:
        return self.client.post("/v1/completions", json=BODY | {"prompt": prompt} | changes)

    def cached_tokens(self) -> dict[str, float]:
        """Of each engine, the tokens of prompts that it did not compute, in Ray's own metrics."""
        text = httpx2.get(self.metrics_url).text
        lines = re.findall(r"^ray_blazr_engine_cached_tokens{(.*)} (\S+)$", text, re.MULTILINE)
        return {re.search(r'replica="([^"]*)"', labels)[1]: float(x) for labels, x in lines}


@contextmanager
def serving(folder: Path, **settings: object) -> Iterator[Fleet]:
    mark = uuid4().hex
    environment = [f"BLAZR_TEST_MARK={mark}", f"PYTHONPATH={ROOT / 'src'}"]
    port, gcs, metrics = free_port(), free_port(), free_port()
    config = folder / "serve.json"  # which is YAML, too
    application = {"name": "blazr", "import_path": "blazr.ray:app", "route_prefix": "/"}
    application["args"] = {"model": "nano", "memory": "24MiB", **settings}
    http = {"host": "127.0.0.1", "port": port}
    config.write_text(json.dumps({"http_options": http, "applications": [application]}))
    start = ["-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=4"]
    start += [f"--port={gcs}", f"--metrics-export-port={metrics}", "--include-dashboard=false"]
    start += ["--disable-usage-stats", "--node-ip-address=127.0.0.1"]
    serve = ["-m", "ray.serve.scripts", "run", f"--address=127.0.0.1:{gcs}", str(config)]
    with ExitStack() as stack:
        stack.enter_context(running(start, folder / "ray.log", environment))
        wait_until(
            lambda: "Ray runtime started" in (folder / "ray.log").read_text(), timeout_s=PATIENCE_S
        )
        stack.enter_context(running(serve, folder / "serve.log", environment))
        url = f"http://127.0.0.1:{port}"
        client = stack.enter_context(httpx2.Client(base_url=url, timeout=PATIENCE_S))
        theirs = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        fleet = Fleet(client, theirs, f"http://127.0.0.1:{metrics}/metrics", mark.encode())

        def is_ready() -> bool:
            with suppress(httpx2.TransportError):
                return client.get("/ready").is_success
            return False

        wait_until(is_ready, timeout_s=PATIENCE_S)
        yield fleet


def test_the_manifest_has_settings_that_there_are() -> None:
    from blazr.core.errors import ConfigError
    from blazr.ray import app

    yaml = pytest.importorskip("yaml")
    manifest = yaml.safe_load((ROOT / "packaging" / "kuberay.yaml").read_text("utf-8"))
    (application,) = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == "blazr.ray:app"
    app(application["args"])
    app({"model": "nano", "max_replicas": "2", "api_keys": ["one"]})
    for wrong in ({"modle_path": "nano"}, {"max_replicas": "many"}, {"port": 1}):
        with pytest.raises(ConfigError):
            app(wrong)


def test_two_engines_know_their_prompts_and_one_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, min_replicas=2) as fleet:
        wait_until(lambda: len(fleet.engines()) == 2, timeout_s=PATIENCE_S)
        texts = [
            f"Story {n}. " + f"The {n}th cat met a dog and said hello. " * 20 for n in range(6)
        ]
        homes = {}
        for turn in range(4):
            for number, text in enumerate(texts):
                reply = fleet.ask(text + "And then they walked on. " * 8 * turn)
                assert reply.is_success, reply.text
                assert homes.setdefault(number, reply.headers[REPLICA]) == reply.headers[REPLICA]
                cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert (cached > 0) == (turn > 0)
        assert len(set(homes.values())) == 2  # both have something to do
        wait_until(lambda: all(fleet.cached_tokens().values()), timeout_s=PATIENCE_S)
        _log.info("tokens from the cache, by engine: %s", fleet.cached_tokens())

        whole = fleet.openai.completions.create(prompt="The", **BODY)
        stream = fleet.openai.completions.create(prompt="The", stream=True, **BODY)
        parts = [each.choices[0].text for each in stream]
        assert "".join(parts) == whole.choices[0].text
        assert len(parts) > 1
        with pytest.raises(openai.BadRequestError, match="temperature"):
            fleet.openai.completions.create(prompt="The", **BODY | {"temperature": -1})
        with pytest.raises(openai.NotFoundError):
            fleet.openai.completions.create(prompt="The", **BODY | {"model": "other"})

        before = fleet.engines()
        long = BODY | {"prompt": "Once", "max_tokens": 6000, "ignore_eos": True, "stream": True}
        with fleet.client.stream("POST", "/v1/completions", json=long) as response:
            lines = (line for line in response.iter_lines() if line)
            assert "choices" in next(lines)
            # of the two, that which works on it is the one that has just been given time
            busy = max(before, key=cpu_time)
            os.kill(busy, signal.SIGKILL)
            *_, event, end = lines
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == "replica_lost"
        assert end == "data: [DONE]"
        assert fleet.ask("Hello").is_success  # by the other
        wait_until(
            lambda: len(fleet.engines()) == 2 and busy not in fleet.engines(), timeout_s=PATIENCE_S
        )
        _log.info("killed %d of %s, and now there are %s", busy, before, fleet.engines())


def cpu_time(pid: int) -> int:
    """How long a process has computed, in the kernel's units, while we look."""

    def now() -> int:
        return sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        )

    first = now()
    threading.Event().wait(0.3)
    return now() - first


def test_engines_are_added_under_load_and_go_again(tmp_path: Path) -> None:
    scaling = {"max_replicas": 2, "target_requests": 1, "upscale_s": 1, "downscale_s": 3}
    with serving(tmp_path, **scaling) as fleet:
        assert len(fleet.engines()) == 1
        is_over = threading.Event()
        failures = []

        def load(number: int) -> None:
            while not is_over.is_set():
                reply = fleet.ask(f"Client {number}", max_tokens=400, ignore_eos=True)
                failures.extend([] if reply.is_success else [reply.text])

        clients = [threading.Thread(target=load, args=(number,)) for number in range(6)]
        for each in clients:
            each.start()
        try:
            wait_until(lambda: len(fleet.engines()) == 2, timeout_s=PATIENCE_S)

            def replicas() -> set[str]:
                return {fleet.ask(f"Who is there? {n}").headers[REPLICA] for n in range(8)}

            wait_until(lambda: len(replicas()) == 2, timeout_s=PATIENCE_S)
        finally:
            is_over.set()
            for each in clients:
                each.join()
        assert failures == []
        wait_until(lambda: len(fleet.engines()) == 1, timeout_s=PATIENCE_S)
        assert fleet.ask("Hello").is_success
        _log.info("scaled from 1 to 2 and back")
