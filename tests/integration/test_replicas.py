"""``blazr serve --replicas``: two processes behind one port, killed, restarted and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.loopback import free_port
from tests.support.scripted import wait_until

pytestmark = pytest.mark.timeout(240)

PATIENCE_S = 120.0
KEY = "secret"
BODY = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
LONG = {**BODY, "max_tokens": 6000, "stream": True}


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    client: httpx2.Client
    openai: openai.OpenAI
    log: Path
    url: str

    def pids(self) -> list[int]:
        """The processes of the replicas, by number."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = {}
        for pid in children.read_text().split():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if "--as-replica" in words:
                    path = Path(words[words.index("--as-replica") + 1])
                    found[int(path.stem)] = int(pid)
        return [pid for _, pid in sorted(found.items())]

    def sample(self, name: str) -> dict[str, float]:
        """The values of a metric, by replica."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        samples = [each for family in families for each in family.samples if each.name == name]
        return {each.labels["replica"]: each.value for each in samples}

    def are_ready(self) -> bool:
        """Whether both replicas take requests."""
        assert self.process.poll() is None, self.log.read_text()
        with suppress(httpx2.TransportError):
            states = self.client.get("/health").json().get("replicas", {})
            return list(states.values()) == ["ready", "ready"]
        return False

    def say(self, **changes: object) -> str:
        """What the prompt is answered with."""
        reply = self.client.post("/v1/completions", json={**BODY, **changes})
        assert reply.is_success, reply.text
        return reply.json()["choices"][0]["text"]


@contextmanager
def serving(log: Path, *words: str) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "blazr", "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu", "--memory", "24MiB", "--replicas", "2", "--api-key", KEY, *words]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    client = httpx2.Client(
        base_url=f"http://127.0.0.1:{port}",
        timeout=PATIENCE_S,
        headers={"Authorization": f"Bearer {KEY}"},
        limits=httpx2.Limits(max_connections=None),
    )
    url = f"http://127.0.0.1:{port}"
    theirs = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    server = Server(process, client, theirs, log, url)
    try:
        wait_until(server.are_ready, timeout_s=PATIENCE_S)
        yield server
    finally:
        client.close()
        theirs.close()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("replicas")
    with serving(folder / "log", "--files-dir", str(folder)) as running:
        yield running


def replica_of(reply: object) -> int:
    """Which replica has given an id."""
    assert isinstance(reply, dict)
    return int(reply["id"].partition("-")[2][:4], 16)


@contextmanager
def begun(server: Server) -> Iterator[tuple[int, Iterator[str]]]:
    """A long stream whose first event has come: the replica that it is from, and its lines."""
    with server.client.stream("POST", "/v1/completions", json=LONG) as response:
        assert response.is_success
        lines = (line for line in response.iter_lines() if line)
        yield replica_of(json.loads(next(lines).removeprefix("data: "))), lines


class Crowd:
    """Clients that ask one short question after the other, until they are told to stop."""

    def __init__(self, server: Server, size: int = 4) -> None:
        self.failures: list[httpx2.Response | httpx2.TransportError] = []
        self.num_answered = 0
        self._server = server
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(size)
        self._clients = [self._pool.submit(self._ask, number) for number in range(size)]

    def _ask(self, number: int) -> None:
        count = 0
        while not self._is_over.wait(0.02):  # what starts meanwhile needs the processor, too
            body = {**BODY, "prompt": f"Client {number} asks for the {count}th time"}
            try:
                reply = self._server.client.post("/v1/completions", json=body)
            except httpx2.TransportError as error:
                self.failures.append(error)
                continue
            if reply.is_success:
                self.num_answered += 1
            else:
                self.failures.append(reply)
            count += 1

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more were answered."""
        wanted = self.num_answered + count
        wait_until(lambda: self.num_answered >= wanted, timeout_s=PATIENCE_S)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        for each in self._clients:
            each.result()
        self._pool.shutdown()


def test_a_conversation_stays_where_its_beginning_is_known(server: Server) -> None:
    before = server.sample("blazr_engine_cached_tokens_total")
    used = set()
    text = "A cat and a dog went for a walk together. " * 12
    for turn in range(4):
        text += f"And then, for the {turn}th time, they met a bird who said hello. " * 4
        reply = server.client.post("/v1/completions", json={**BODY, "prompt": text}).json()
        used.add(replica_of(reply))
        if turn:
            assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert len(used) == 1
    after = server.sample("blazr_engine_cached_tokens_total")
    assert [after[x] > before[x] for x in ("0", "1")] == [x in used for x in (0, 1)]


def test_streams_and_answers_are_those_of_one_process(server: Server) -> None:
    whole = server.openai.completions.create(
        model="nano", prompt="The", max_tokens=20, temperature=0
    )
    stream = server.openai.completions.create(
        model="nano", prompt="The", max_tokens=20, temperature=0, stream=True
    )
    assert "".join(each.choices[0].text for each in stream) == whole.choices[0].text
    with pytest.raises(openai.BadRequestError, match="temperature"):
        server.openai.completions.create(model="nano", prompt="The", temperature=-1)
    with pytest.raises(openai.AuthenticationError):
        server.openai.with_options(api_key="wrong").models.list()
    assert [each.id for each in server.openai.models.list()] == ["nano"]


def test_a_response_is_found_again_and_gone_on_from(server: Server) -> None:
    for number in range(4):
        first = server.openai.responses.create(input=f"Hello {number}", max_output_tokens=8)
        assert server.openai.responses.retrieve(first.id).id == first.id
        second = server.openai.responses.create(
            input="And?", max_output_tokens=8, previous_response_id=first.id
        )
        assert second.previous_response_id == first.id
        (asked,) = server.openai.responses.input_items.list(first.id).data
        items = [{"type": "item_reference", "id": each.id} for each in (asked, first.output[0])]
        third = server.openai.responses.create(
            input=[*items, {"role": "user", "content": "And?"}], max_output_tokens=8
        )
        assert third.id.removeprefix("resp_")[:4] == first.id.removeprefix("resp_")[:4]
        server.openai.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            server.openai.responses.retrieve(first.id)


def begin_batch(server: Server, count: int) -> openai.types.Batch:
    """Upload so many short requests, and have them answered."""
    line = {"url": "/v1/completions"}
    lines = [
        line | {"custom_id": str(n), "body": {**BODY, "prompt": f"Batch {n}"}} for n in range(count)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = server.openai.files.create(file=("in.jsonl", content), purpose="batch")
    return server.openai.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )


def answers_of(server: Server, name: str) -> list[dict]:
    """The answers to a batch, of which every line has one."""

    def has_ended() -> bool:
        return server.openai.batches.retrieve(name).status not in {"validating", "in_progress"}

    wait_until(has_ended, timeout_s=PATIENCE_S)
    batch = server.openai.batches.retrieve(name)
    assert batch.status == "completed", batch
    assert batch.error_file_id is None
    lines = server.openai.files.content(batch.output_file_id or "").text.splitlines()
    found = [json.loads(line) for line in lines]
    assert batch.request_counts is not None
    assert len({each["custom_id"] for each in found}) == batch.request_counts.total == len(found)
    return [each["response"]["body"] for each in found]


def test_a_batch_is_answered_by_both(server: Server) -> None:
    batch = begin_batch(server, 40)
    assert set(map(replica_of, answers_of(server, batch.id))) == {0, 1}


def test_when_a_client_leaves_its_reply_ends(server: Server) -> None:
    def num_running() -> float:
        return sum(server.sample("blazr_engine_running").values())

    with begun(server):
        assert num_running() > 0
    wait_until(lambda: num_running() == 0, timeout_s=PATIENCE_S)
    wait_until(
        lambda: sum(server.sample("blazr_replica_requests").values()) == 0, timeout_s=PATIENCE_S
    )


def test_metrics_tell_of_both_and_the_front_counts_what_it_refused(server: Server) -> None:
    assert server.sample("blazr_replica_ready") == {"0": 1, "1": 1}
    assert server.sample("vllm:num_requests_running").keys() == {"0", "1"}
    before = server.client.get("/metrics").text.count('replica="front",status="401"')
    assert httpx2.get(f"{server.url}/v1/models").status_code == 401
    after = server.client.get("/metrics").text.count('replica="front",status="401"')
    assert (before, after) in {(0, 2), (2, 2)}  # the counter, and when it was made


def test_the_front_does_not_import_torch() -> None:
    code = "import sys, blazr.cli.serve, blazr.server.replicas.serve; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert found.stdout == b"False\n"


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "blazr", "serve", str(tmp_path / "missing.gguf")]
    command += ["--replicas", "2", "--port", "0", "--host", "127.0.0.1"]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert b"missing.gguf" in ended.stderr


def test_one_killed_under_load_fails_only_what_it_was_doing(server: Server) -> None:
    with Crowd(server) as crowd:
        right = server.say()
        crowd.wait_for_more(10)
        with begun(server) as (number, lines):
            num_running = server.sample("blazr_replica_requests")[str(number)]
            num_restarts = server.sample("blazr_replica_restarts_total")[str(number)]
            os.kill(server.pids()[number], signal.SIGKILL)
            crowd.wait_for_more(10)  # by the other
            assert server.say() == right
            *_, event, end = lines
        error = json.loads(event.removeprefix("data: "))["error"]
        assert (error["code"], error["type"], end) == (
            "replica_lost",
            "unavailable_error",
            "data: [DONE]",
        )
        assert len(crowd.failures) <= 4  # what each client had asked at that moment
        assert num_running >= 1
        for each in crowd.failures:
            assert isinstance(each, httpx2.Response)
            assert each.status_code == 503
            assert each.headers["retry-after"] == "1"
            assert each.json()["error"]["code"] == "replica_lost"
        wait_until(server.are_ready, timeout_s=PATIENCE_S)
        assert server.sample("blazr_replica_restarts_total")[str(number)] == num_restarts + 1
        num_failures = len(crowd.failures)
        crowd.wait_for_more(20)
        assert len(crowd.failures) == num_failures


@pytest.mark.slow
def test_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server, Crowd(server) as crowd:
        stored = [server.openai.responses.create(input="Hi", max_output_tokens=4) for _ in range(4)]
        before = server.pids()
        crowd.wait_for_more(5)
        with begun(server) as (_, lines):
            server.process.send_signal(signal.SIGUSR1)
            *_, end = lines  # it is waited for
        assert end == "data: [DONE]"
        wait_until(lambda: "all replicas were restarted" in server.log.read_text(), timeout_s=200)
        crowd.wait_for_more(10)
        assert crowd.failures == []
        assert not set(before) & set(server.pids())
        for each in stored:
            more = server.openai.responses.create(
                input="And?", max_output_tokens=4, previous_response_id=each.id
            )
            assert more.status in {"completed", "incomplete"}


@pytest.mark.slow
def test_a_rolling_restart_hands_conversations_over_in_a_folder(tmp_path: Path) -> None:
    """Nothing that was read before is in memory then: what is reused was on disk."""
    texts = [f"{number}. A cat and a dog went for a walk together. " * 12 for number in range(4)]
    with serving(tmp_path / "log", "--cache-dir", str(tmp_path / "kept")) as server:
        told = [server.say(prompt=text) for text in texts]
        server.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "all replicas were restarted" in server.log.read_text(), timeout_s=200)
        for text, before in zip(texts, told, strict=True):
            body = {**BODY, "prompt": text}
            reply = server.client.post("/v1/completions", json=body).json()
            assert reply["choices"][0]["text"] == before
            tokens = reply["usage"]["prompt_tokens"]
            cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == (tokens - 1) // 64 * 64


@pytest.mark.slow
def test_a_batch_loses_no_line_when_processes_are_killed(tmp_path: Path) -> None:
    def num_done(server: Server) -> int:
        counts = server.openai.batches.retrieve(batch.id).request_counts
        return counts.completed if counts is not None else 0

    words = ("--files-dir", str(tmp_path))
    with serving(tmp_path / "log", *words) as server:
        batch = begin_batch(server, 600)
        wait_until(lambda: num_done(server) > 50, timeout_s=PATIENCE_S)
        os.kill(server.pids()[0], signal.SIGKILL)
        wait_until(lambda: num_done(server) > 150, timeout_s=PATIENCE_S)
        server.process.kill()
    with serving(tmp_path / "log", *words) as server:
        assert num_done(server) > 0
        assert len(answers_of(server, batch.id)) == 600


@pytest.mark.slow
def test_commands_reach_all_and_those_who_come_later(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:
        server.say()
        assert server.client.post("/sleep").json() == {"is_sleeping": True}
        assert server.client.get("/ready").status_code == 503
        os.kill(server.pids()[0], signal.SIGKILL)
        wait_until(
            lambda: server.sample("blazr_replica_restarts_total")["0"] == 1, timeout_s=PATIENCE_S
        )
        wait_until(server.are_ready, timeout_s=PATIENCE_S)
        assert server.client.get("/ready").status_code == 503  # it would answer 200 if one were up
        assert server.client.post("/wake_up").json() == {"is_sleeping": False}
        assert server.client.get("/ready").is_success
        server.say()
        forgotten = server.client.post("/reset_prefix_cache").json()
        assert forgotten["success"] is True
        assert forgotten["num_blocks"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_it_drains_and_leaves_nothing_behind(tmp_path: Path, stop: int) -> None:
    with serving(tmp_path / "log") as server:
        pids = server.pids()
        with begun(server) as (_, lines):
            server.process.send_signal(stop)
            wait_until(lambda: not server.client.get("/ready").is_success)
            *_, end = lines
        assert end == "data: [DONE]"
        assert server.process.wait(PATIENCE_S) == 0
        assert not any(map(lives, pids))


@pytest.mark.slow
def test_replicas_end_when_the_front_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(tmp_path / "log") as server:
        pids = server.pids()
        assert list(tmp_path.glob("blazr-replicas-*"))
        server.process.kill()
        wait_until(lambda: not any(map(lives, pids)), timeout_s=PATIENCE_S)
        assert not list(tmp_path.glob("blazr-replicas-*"))


def lives(pid: int) -> bool:
    """Whether a process is there, and no zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
