"""Load a server with all kinds of requests for an hour, and tell whether its memory grows.

Run: python tools/soak.py [--minutes 60] [--clients 6] [--seed 0] [--out build/soak.jsonl]
     python tools/soak.py --read build/soak.jsonl     the table again, of a run that was written

`blazr serve` runs in a process of its own with the built-in model and little memory for its
cache. Clients send completions, chats, tools, schemas, embeddings, answers that are stored, and
hostile requests; some leave in the middle. Every ten seconds the server's memory, threads and
open files are written down. When all clients have gone, its pages must be free or the prefix
cache's, and a greedy reply what it was at the beginning.

The slope is that of a straight line through the means of two minutes each, after a third of the
time: before that caches fill. Means, because samples that follow each other are alike; the
interval is Student's, of 95 %.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.hostile_requests import hostile_request, send

SAMPLE_S = 10.0
BLOCK_S = 120.0
WARM_UP = 1 / 3  # of the run
PROBE = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
WORDS = ["a", "girl", "saw", "the", "big", "blue", "bird", "was", "happy", "with", "her", "mom"]
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}
# of Student's distribution, two-sided 95 %, by degrees of freedom
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)


@dataclass
class Sample:
    """The server at one moment.

    Args:
        at_s: Since the run began.
        resident_bytes: Memory that it holds.
        num_threads: Its threads.
        num_files: Its open files, connections among them.
        requests: Answered until now.
    """

    at_s: float
    resident_bytes: int
    num_threads: int
    num_files: int
    requests: int


@dataclass
class Load:
    """Clients of a server, from one seed.

    Args:
        url: The server's.
        seed: Of the requests.
        counts: Answers by status; 0 where a client left, or none came.
    """

    url: str
    seed: int
    counts: Counter[int] = field(default_factory=Counter)
    ends: threading.Event = field(default_factory=threading.Event)
    faults: list[str] = field(default_factory=list)

    def client(self, number: int) -> None:
        """Send requests until the run ends."""
        chance = random.Random(f"{self.seed} {number}")
        host, port = self.url.removeprefix("http://").split(":")
        with httpx2.Client(base_url=self.url, timeout=120) as http:
            while not self.ends.is_set():
                if chance.random() < 0.2:
                    status, _ = send(host, int(port), hostile_request(chance), timeout_s=60)
                else:
                    status = one_request(http, chance)
                self.counts[status] += 1
                if status >= 500 and status not in {501, 503}:
                    self.faults.append(f"client {number} was answered {status}")


def text(chance: random.Random) -> str:
    """Some words; half of the time such as begin like others'."""
    start = WORDS * 3 if chance.random() < 0.5 else []
    return " ".join(start + chance.choices(WORDS, k=chance.choice((2, 10, 60, 150))))


def one_request(http: httpx2.Client, chance: random.Random) -> int:
    """Send one request of the sound ones; its status, or 0 where the client left."""
    path, body = _request(chance)
    if body is None:
        return http.get(path).status_code
    if "stream" not in body:
        return http.post(path, json=body).status_code
    leaves = chance.choice((None, None, 1, 4))
    with http.stream("POST", path, json=body) as reply:
        for number, _line in enumerate(reply.iter_lines()):
            if number == leaves:
                return 0
    return reply.status_code


def _request(chance: random.Random) -> tuple[str, dict[str, object] | None]:
    chat = [{"role": "user", "content": text(chance)}]
    sampling: dict[str, object] = {
        "max_tokens": chance.randint(1, 30),
        "temperature": chance.choice((0, 0.7, 1.0)),
    }
    if chance.random() < 0.4:
        sampling["stream"] = True
    tool = {"type": "function", "function": {"name": f"f{chance.randrange(500)}"}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": _schema(chance)}}
    requests: list[tuple[str, dict[str, object] | None]] = [
        (
            "/v1/completions",
            {"prompt": text(chance), "n": chance.choice((1, 1, 3)), **sampling},
        ),
        ("/v1/completions", {"prompt": text(chance), "logprobs": 3, **sampling}),
        ("/v1/chat/completions", {"messages": chat, **sampling}),
        ("/v1/chat/completions", {"messages": chat, "tools": [tool], **sampling}),
        ("/v1/chat/completions", {"messages": chat, "response_format": form, **sampling}),
        ("/v1/messages", {"messages": chat, "model": "nano", **sampling}),
        ("/v1/responses", {"input": text(chance), "max_output_tokens": 16, "store": True}),
        ("/v1/embeddings", {"input": [text(chance) for _ in range(4)]}),
        ("/tokenize", {"prompt": text(chance)}),
        ("/metrics", None),
        ("/v1/models", None),
    ]
    return chance.choice(requests)


def _schema(chance: random.Random) -> dict[str, object]:
    """One that nobody has sent before, half of the time."""
    if chance.random() < 0.5:
        return SCHEMA
    name = f"a{chance.randrange(10**9)}"
    return {"type": "object", "properties": {name: {"type": "string", "maxLength": 9}}}


@contextmanager
def server(memory: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server with the built-in model, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    words += ["--memory", memory, "--access-log", "off"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-m", "blazr", *words], stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            while not _is_ready(url):
                assert process.poll() is None, "the server has ended"
                time.sleep(0.2)
            yield process, url
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, "the server did not end well"
        finally:
            process.kill()
            log.seek(0)
            problems = [line for line in log if b"ERROR" in line or b"Traceback" in line]
            print(f"errors in its log: {len(problems)}", *problems[:5], sep="\n")


def _is_ready(url: str) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(f"{url}/ready").is_success
    return False


def sample(process: subprocess.Popen[bytes], started_s: float, requests: int) -> Sample:
    """What the system says of the server."""
    home = Path(f"/proc/{process.pid}")
    return Sample(
        round(time.monotonic() - started_s, 1),
        int((home / "statm").read_text("ascii").split()[1]) * 4096,
        len(list((home / "task").iterdir())),
        len(list((home / "fd").iterdir())),
        requests,
    )


def greedy(url: str) -> str:
    """A reply that must never change."""
    reply = httpx2.post(f"{url}/v1/completions", json=PROBE, timeout=120)
    return str(reply.json()["choices"][0]["text"])


def pages_lost(url: str) -> float:
    """Pages that neither a request nor the prefix cache holds, once the server is idle."""
    for _ in range(100):
        lines = (line.split() for line in httpx2.get(f"{url}/metrics").text.splitlines())
        figures = {line[0].partition("{")[0]: float(line[-1]) for line in lines if line[0] != "#"}
        running = figures["blazr_engine_running"] + figures["blazr_engine_waiting"]
        if not running:
            return figures["blazr_engine_pages_used"] - figures["blazr_engine_pages_idle"]
        time.sleep(0.2)
    raise AssertionError("the server is not idle though all clients have gone")


def soak(*, minutes: float, clients: int, seed: int, memory: str, out: Path) -> list[str]:
    """Run the load and write samples down; what went wrong."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with server(memory) as (process, url), out.open("w") as file:
        before, load = greedy(url), Load(url, seed)
        threads = [threading.Thread(target=load.client, args=(n,)) for n in range(clients)]
        started_s = time.monotonic()
        for each in threads:
            each.start()
        while (elapsed_s := time.monotonic() - started_s) < 60 * minutes:
            time.sleep(SAMPLE_S - elapsed_s % SAMPLE_S)
            found = sample(process, started_s, load.counts.total())
            file.write(json.dumps(asdict(found)) + "\n")
            file.flush()
            if greedy(url) != before:
                load.faults.append(f"the greedy reply differs after {found.at_s} s")
        load.ends.set()
        for each in threads:
            each.join(120)
        lost = pages_lost(url)
        if lost:
            load.faults.append(f"{lost:.0f} pages are lost")
    print("answers by status:", dict(sorted(load.counts.items())), "(0: the client left)")
    return load.faults


@dataclass(frozen=True)
class Slope:
    """How fast something grows, per hour, and half of the interval of 95 %."""

    per_hour: float
    half_width: float


def slope(times_s: Sequence[float], values: Sequence[float]) -> Slope:
    """Of a line through the means of blocks of two minutes.

    Raises:
        ValueError: There are fewer than three blocks.
    """
    blocks: dict[int, list[tuple[float, float]]] = {}
    for at_s, value in zip(times_s, values, strict=True):
        blocks.setdefault(int((at_s - times_s[0]) // BLOCK_S), []).append((at_s / 3600, value))
    whole = list(blocks.values())
    if len(whole) < 3:
        raise ValueError(f"{len(whole)} blocks of two minutes are too few for a slope")
    hours = [statistics.fmean(at for at, _ in each) for each in whole]
    means = [statistics.fmean(value for _, value in each) for each in whole]
    line = statistics.linear_regression(hours, means)
    centre, freedom = statistics.fmean(hours), len(hours) - 2
    rest = sum(
        (y - line.slope * x - line.intercept) ** 2 for x, y in zip(hours, means, strict=True)
    )
    error = (rest / freedom / sum((x - centre) ** 2 for x in hours)) ** 0.5
    factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 2.1
    return Slope(line.slope, factor * error)


def report(samples: Sequence[Sample]) -> None:
    """Print memory, threads and open files as the run went on, and their slopes."""
    last = samples[-1]
    print(f"{last.requests:,} requests in {last.at_s / 60:.0f} minutes")
    print("| minute | requests | MB | threads | open files |\n|---:|---:|---:|---:|---:|")
    for each in samples[:: max(1, len(samples) // 12)]:
        mb = each.resident_bytes / 1e6
        cells = f"{each.requests:,} | {mb:.1f} | {each.num_threads} | {each.num_files}"
        print(f"| {each.at_s / 60:.0f} | {cells} |")
    late = [each for each in samples if each.at_s > WARM_UP * last.at_s]
    times_s = [each.at_s for each in late]
    middle = statistics.fmean(each.resident_bytes for each in late)
    for name, unit, values in (
        ("memory", "MB", [each.resident_bytes / 1e6 for each in late]),
        ("memory", "%", [each.resident_bytes / middle * 100 for each in late]),
        ("threads", "", [each.num_threads for each in late]),
        ("open files", "", [each.num_files for each in late]),
    ):
        try:
            found = slope(times_s, values)
        except ValueError as error:
            print(f"no slope: {error}")
            return
        print(f"{name}: {found.per_hour:+.3f} ± {found.half_width:.3f} {unit} per hour")


def main() -> int:
    """Run the load, or read what a run has written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory", default="24MiB", help="of the prefix cache")
    parser.add_argument("--out", type=Path, default=Path("build/soak.jsonl"))
    parser.add_argument("--read", type=Path, help="print the table of a run that was written")
    options = vars(parser.parse_args())
    written = options.pop("read")
    faults = [] if written else soak(**options)
    lines = (written or options["out"]).read_text("utf-8").splitlines()
    report([Sample(**json.loads(line)) for line in lines])
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
