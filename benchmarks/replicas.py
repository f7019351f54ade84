"""What choosing a replica by its prefixes saves, and what the loss of one costs.

    python -m benchmarks.replicas [--agents 4] [--seed 0] [--history FILE]

Agents (`agents.py`), each a client that asks again when it was answered, are served by two replicas
of nano, one core each:

* by prefix, and by turns (round robin): the tokens that were read again, and the times of replies;
* a replica is killed in the middle: which requests fail, and when the others are answered;
* the replicas are restarted one by one meanwhile: whether a request fails.

A client of short prompts asks besides in the last two. An agent whose request fails sends it again,
as the error says. The longest sessions have 16,000 tokens: the model is nano with its context set
to 32,768, where what it says means nothing, and what it reads is the same work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import httpx2
import msgspec
import numpy as np

import blazr
from benchmarks.agents import known_tokens, sessions
from blazr.bench.report import origin, spread_of
from blazr.bench.workload import BenchRequest
from blazr.core import log
from blazr.core.json_text import dump_json
from blazr.server.config import ServerConfig
from blazr.server.replica_ids import number_in
from blazr.server.replicas.pool import Choose, cheapest
from blazr.server.replicas.replica import Replica
from blazr.server.replicas.serve import serve_replicas
from blazr.server.serve import listen

REPLICAS = 2
READY = ["ready"] * REPLICAS
VOCAB_SIZE, CONTEXT = 2048, 32_768
MEMORY = "512MiB"  # of each replica: all that the agents say fits in
PROBE_TOKENS = 40
_POLL_S = 0.02
_START_S = 120.0


def by_turns() -> Choose:
    """Round robin."""
    numbers = count()

    def choose(replicas: Sequence[Replica], names: Sequence[bytes]) -> Replica:  # noqa: ARG001
        return replicas[next(numbers) % len(replicas)]

    return choose


CHOICES: dict[str, Callable[[], Choose]] = {"prefix": lambda: cheapest, "turns": by_turns}


@dataclass(slots=True, kw_only=True)
class Asked:
    """A request as its client saw it; times are seconds of one clock.

    Args:
        prompt_ids: What was to be read.
        sent_s: When it was sent.
        ended_s: When it was answered, or had failed.
        cached_tokens: Of the prompt, what was not computed.
        replica: Which one has answered.
        error: The code of its error; empty where it was answered.
        says_retry: Whether the error says when to try again.
    """

    prompt_ids: tuple[int, ...]
    sent_s: float
    ended_s: float = 0.0
    cached_tokens: int = 0
    replica: int | None = None
    error: str = ""
    says_retry: bool = False


@dataclass(slots=True)
class Load:
    """Agents, and a client of short prompts, that ask a server.

    Args:
        client: Connected to it.
        agents: Their requests.
        asked: What they have asked, in the order in which it was sent.
        probes: The short prompts.
    """

    client: httpx2.AsyncClient
    agents: Sequence[Iterator[BenchRequest]]
    asked: list[Asked] = field(default_factory=list)
    probes: list[Asked] = field(default_factory=list)

    async def run(self) -> None:
        """Play the agents to their end."""
        await asyncio.gather(*map(self._play, self.agents))

    async def _play(self, requests: Iterator[BenchRequest]) -> None:
        for request in requests:
            while (await self._ask(request, self.asked)).error:
                await asyncio.sleep(1)

    async def probe(self) -> None:
        """Ask short prompts, one after the other, until cancelled."""
        for number in count():
            ids = np.random.default_rng(number).integers(100, VOCAB_SIZE, PROBE_TOKENS)
            request = BenchRequest(prompt_ids=tuple(ids.tolist()), output_tokens=4)
            await self._ask(request, self.probes)

    async def _ask(self, request: BenchRequest, into: list[Asked]) -> Asked:
        asked = Asked(prompt_ids=request.prompt_ids, sent_s=perf_counter())
        into.append(asked)
        body = {
            "prompt": request.prompt_ids,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_anchors": request.cache_anchors,
        }
        try:
            reply = await self.client.post("/v1/completions", json=body)
        except httpx2.TransportError as error:
            asked.error = type(error).__name__
        else:
            found = reply.json()
            if reply.is_success:
                asked.replica = number_in(found["id"].partition("-")[2])
                details = found["usage"]["prompt_tokens_details"]
                asked.cached_tokens = details["cached_tokens"]
            else:
                asked.error = found["error"]["code"]
                asked.says_retry = "retry-after" in reply.headers
        asked.ended_s = perf_counter()
        return asked


@dataclass(frozen=True, slots=True)
class Server:
    """Replicas behind a port, in processes of their own."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def pid_of(self, number: int) -> int:
        """The process of a replica."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in children.split():
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--as-replica" in words and words[-2].endswith(f"/{number}.sock"):
                return int(pid)
        raise RuntimeError(f"replica {number} has no process")


@contextmanager
def longer_nano() -> Iterator[Path]:
    """The built-in model with a context that the longest session fits into."""
    with TemporaryDirectory(prefix="blazr-nano-") as name:
        folder = Path(name) / "nano"
        shutil.copytree(Path(blazr.__file__).parent / "data/nano", folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"max_seq_len": CONTEXT}))
        yield folder


@asynccontextmanager
async def serving(model: Path, choice: str) -> AsyncIterator[Server]:
    """Two replicas, each ready."""
    path = model.parent / "log"
    line = [sys.executable, "-m", "benchmarks.replicas", "--serve", choice, str(model)]
    with path.open("wb") as stderr:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=stderr)
    try:
        assert process.stdout is not None
        url = (await asyncio.to_thread(process.stdout.readline)).decode().strip()
        server = Server(process, url, path)
        async with asyncio.timeout(_START_S), httpx2.AsyncClient(base_url=url) as client:
            await wait_for_all(client)
        yield server
    finally:
        process.terminate()
        process.wait()


async def states(client: httpx2.AsyncClient) -> list[str]:
    """What the process in front says of the replicas."""
    return list((await client.get("/health")).json().get("replicas", {}).values())


async def wait_for_all(client: httpx2.AsyncClient) -> None:
    """Wait until every replica takes requests."""
    while await states(client) != READY:
        await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def loading(
    model: Path, choice: str, agents: int, seed: int
) -> AsyncIterator[tuple[Server, Load]]:
    """A server and the clients that will ask it."""
    async with (
        serving(model, choice) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=None) as client,
    ):
        yield server, Load(client, sessions(VOCAB_SIZE, seed, agents))


async def reread(model: Path, choice: str, agents: int, seed: int) -> dict[str, object]:
    """What agents read again, that is, what an earlier prompt began with and was computed anew."""
    async with loading(model, choice, agents, seed) as (_, load):
        started_s = perf_counter()
        await load.run()
        took_s = perf_counter() - started_s
    earlier: list[np.ndarray] = []
    num_again = 0
    for each in load.asked:
        prompt = np.array(each.prompt_ids)
        num_again += max(known_tokens(prompt, earlier) - each.cached_tokens, 0)
        earlier.append(prompt)
    num_tokens = sum(len(each.prompt_ids) for each in load.asked)
    return {
        "requests": len(load.asked),
        "failed": sum(bool(each.error) for each in load.asked),
        "by_replica": [sum(x.replica == n for x in load.asked) for n in range(REPLICAS)],
        "prompt_tokens": num_tokens,
        "computed_tokens": num_tokens - sum(each.cached_tokens for each in load.asked),
        "read_again_tokens": num_again,
        "read_again": num_again / num_tokens,
        "reply_ms": spread_of([1000 * (each.ended_s - each.sent_s) for each in load.asked]),
        "took_s": took_s,
    }


async def kill(model: Path, agents: int, seed: int) -> dict[str, object]:
    """Kill the replica that works on something, when a third of everything is answered."""
    async with loading(model, "prefix", agents, seed) as (server, load):
        playing = asyncio.gather(load.run(), return_exceptions=False)
        probing = asyncio.create_task(load.probe())
        num_requests = sum(1 for each in sessions(VOCAB_SIZE, seed, agents) for _ in each)
        while sum(bool(each.ended_s) for each in load.asked) < num_requests // 3:
            await asyncio.sleep(_POLL_S)
        # the one that has answered the last is the one that has something to do
        number = next(x.replica for x in reversed(load.asked) if x.replica is not None)
        os.kill(server.pid_of(number), signal.SIGKILL)
        killed_s = perf_counter()
        while await states(load.client) == READY:  # until the process in front has noticed
            await asyncio.sleep(_POLL_S)
        await wait_for_all(load.client)
        back_s = perf_counter() - killed_s
        await playing
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
    both = load.asked + load.probes
    failed = [each for each in both if each.error]
    running = [each for each in both if each.sent_s < killed_s < each.ended_s]
    later = [x for x in both if killed_s < x.sent_s < killed_s + back_s and x.ended_s]
    probes = [each for each in load.probes if each in later]
    return {
        "running": len(running),
        "failed": len(failed),
        "failed_that_were_sent_later": sum(each.sent_s > killed_s for each in failed),
        "errors": sorted({each.error for each in failed}),
        "say_retry": all(each.says_retry for each in failed),
        "answered_until_it_was_back": len(later),
        "first_answer_s": min(each.ended_s for each in later) - killed_s,
        "longest_short_prompt_s": max(each.ended_s - each.sent_s for each in probes),
        "longest_of_all_s": max(each.ended_s - each.sent_s for each in later),
        "back_s": back_s,
    }


async def restart(model: Path, agents: int, seed: int) -> dict[str, object]:
    """Restart the replicas one by one while agents work."""
    async with loading(model, "prefix", agents, seed) as (server, load):
        before = [server.pid_of(number) for number in range(REPLICAS)]
        playing = asyncio.create_task(load.run())
        probing = asyncio.create_task(load.probe())
        while not any(each.ended_s for each in load.asked):
            await asyncio.sleep(_POLL_S)
        started_s = perf_counter()
        server.process.send_signal(signal.SIGUSR1)
        while "all replicas were restarted" not in server.log.read_text():
            await asyncio.sleep(_POLL_S)
        took_s = perf_counter() - started_s
        meanwhile = sum(started_s < each.ended_s for each in load.asked + load.probes)
        await playing
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        after = [server.pid_of(number) for number in range(REPLICAS)]
    both = [each for each in load.asked + load.probes if each.ended_s]
    return {
        "restarted": sum(old != new for old, new in zip(before, after, strict=True)),
        "took_s": took_s,
        "answered_meanwhile": meanwhile,
        "answered": len(both),
        "failed": sum(bool(each.error) for each in both),
    }


def serve(choice: str, model: str) -> None:
    """Serve until SIGTERM; print the address."""
    log.setup("info")
    config = ServerConfig(host="127.0.0.1", port=0, replicas=REPLICAS, access_log="off")
    sock = listen(config)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    arguments = ["serve", model, "--threads", "1", "--memory", MEMORY, "--access-log", "off"]
    serve_replicas(arguments, config, sock, choose=CHOICES[choice]())


async def compare(agents: int, seed: int) -> dict[str, object]:
    """Everything, one after the other."""
    with longer_nano() as model:
        found = {choice: await reread(model, choice, agents, seed) for choice in CHOICES}
        again = [msgspec.convert(found[x]["read_again_tokens"], int) for x in ("turns", "prefix")]
        return {
            "agents": agents,
            **found,
            "read_again_ratio": again[0] / max(again[1], 1),
            "killed": await kill(model, agents, seed),
            "restarted": await restart(model, agents, seed),
        }


def main() -> None:
    """Read the command line, run, print and perhaps keep the figures."""
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--history", type=Path)
    arguments = parser.parse_args()
    report = {**origin(), **asyncio.run(compare(arguments.agents, arguments.seed))}
    print(dump_json(report, indent=2))
    if arguments.history:
        with arguments.history.open("a", encoding="utf-8") as file:
            file.write(dump_json(report) + "\n")


if __name__ == "__main__":
    main()
