"""Measure what text and HTTP cost a token, beside what it costs the engine.

    python -m benchmarks.http_overhead [MODEL] [--concurrency 64]

The same requests are run three times, each in a process of its own: by the engine in token ids,
with text around it, and by a server for a client in another process. What is compared is the
processor time of the event loop's thread, on which all text and HTTP is done; the engine's thread
does the same in each.

Then single requests, by turns over HTTP and straight to the engine behind it, all in one process:
what the first token takes longer is the median difference of neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import torch

from blazr.bench.load import Record, Target, drive
from blazr.bench.offline import EngineTarget
from blazr.bench.online import connect
from blazr.bench.report import origin
from blazr.bench.workload import BenchRequest, Workload
from blazr.engine.outputs import TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.async_llm import AsyncLLM
from blazr.llm.generation import GenerationRequest
from blazr.llm.load import load_text_engine
from blazr.llm.options import LoadOptions
from blazr.llm.text_engine import TextEngine
from blazr.server.app import build_app
from blazr.server.config import ServerConfig
from blazr.server.models import Models
from blazr.server.serve import address_of, listen, make_server
from blazr.text.events import TextDelta

ROLES = ("engine", "text", "http")
PAIRED = "paired"
PAIRED_TOKENS = 8
_SINGLES = 40  # pairs of single requests
_MEMORY = "256MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run.

    Args:
        model: To serve.
        concurrency: Requests at once.
        requests: In all.
        prompt_tokens: Of each.
        output_tokens: Of each.
        rounds: Of everything; the best of each is kept.
        seed: Of the prompts.
    """

    model: str
    concurrency: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    rounds: int
    seed: int


class TextTarget:
    """A model to measure in process, text included."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.vocab_size = llm.core.info.vocab_size
        self._llm = llm

    async def run(self, request: BenchRequest, record: Record, *, salt: str) -> None:
        """Generate greedily, past any end of text."""
        params = SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
        generation = GenerationRequest(prompt=request.prompt_ids, params=params, cache_salt=salt)
        async for event in self._llm.events([generation]):
            if isinstance(event, TextDelta):
                record.token_s.append(perf_counter())
                record.output_tokens += len(event.token_ids)

    def stats(self) -> dict[str, float]:
        """None are needed."""
        return {}


async def measure(target: Target, settings: Settings, cpu: Callable[[], float]) -> dict[str, float]:
    """Processor time per token of many requests at once."""
    work = Workload(
        requests=[
            BenchRequest(prompt_tokens=settings.prompt_tokens, output_tokens=settings.output_tokens)
        ],
        seed=settings.seed,
    )

    async def run(count: int, at_once: int, salt: str) -> list[Record]:
        requests = work.draw(count, vocab_size=target.vocab_size, salt=salt)
        return await drive(target, requests, at_once, salt=salt)

    await run(settings.concurrency, settings.concurrency, "warmup")
    before_s = cpu()
    records = await run(settings.requests, settings.concurrency, "many")
    spent_s = cpu() - before_s
    tokens = sum(each.output_tokens for each in records)
    wall_s = max(each.end_s for each in records) - min(each.arrival_s for each in records)
    errors = [each.error for each in records if each.error]
    assert not errors, errors[0]
    return {
        "loop_us_per_token": 1e6 * spent_s / tokens,
        "tokens_per_s": tokens / wall_s,
    }


def open_core(settings: Settings) -> TextEngine:
    """The model, with one thread to compute."""
    torch.set_num_threads(1)
    options = LoadOptions(settings.model, max_running=settings.concurrency, memory=_MEMORY)
    return load_text_engine(options)


def in_process(settings: Settings, *, with_text: bool) -> None:
    """Print the figures of the engine, or of the text around it."""
    core = open_core(settings)
    target: Target = TextTarget(AsyncLLM.of(core))
    if not with_text:
        target = EngineTarget(core.engine, vocab_size=core.info.vocab_size)
    try:
        print(json.dumps(asyncio.run(measure(target, settings, thread_time))))
    finally:
        core.close()


def serve(settings: Settings) -> None:
    """Serve until nobody holds the other end of our input; print the address."""
    config = ServerConfig(host="127.0.0.1", port=0)
    sock = listen(config)
    models = Models.of(AsyncLLM.of(open_core(settings)), config)
    print(address_of(sock), flush=True)
    server = make_server(build_app(models), models)

    async def until_closed() -> None:
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving

    asyncio.run(until_closed())
    models.close()


def pair(settings: Settings) -> None:
    """Print by how much the first token comes later over HTTP, milliseconds."""
    config = ServerConfig(host="127.0.0.1", port=0)
    sock = listen(config)
    core = open_core(settings)
    models = Models.of(AsyncLLM.of(core), config)
    server = make_server(build_app(models), models)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    connection = HTTPConnection("127.0.0.1", sock.getsockname()[1])
    work = Workload(
        requests=[BenchRequest(prompt_tokens=settings.prompt_tokens)], seed=settings.seed
    )
    requests = work.draw(2 * _SINGLES, vocab_size=core.info.vocab_size, salt="paired")
    times = [
        (over_socket if i % 2 else straight)(request.prompt_ids, core, connection)
        for i, request in enumerate(requests)
    ]
    server.should_exit = True
    thread.join()
    models.close()
    late = [1000 * (http - own) for own, http in zip(times[0::2], times[1::2], strict=True)]
    print(json.dumps({"engine_ms": 1000 * median(times[0::2]), "http_later_ms": median(late[5:])}))


def straight(ids: tuple[int, ...], core: TextEngine, _: HTTPConnection) -> float:
    """Seconds to the first token that the engine puts out."""
    times: list[float] = []
    ended = threading.Event()

    def take(output: TokenOutput) -> None:
        times.append(perf_counter())
        if output.finish_reason is not None:
            ended.set()

    params = SamplingParams(temperature=0, max_tokens=PAIRED_TOKENS, ignore_eos=True)
    started_s = perf_counter()
    core.engine.submit(Request(prompt_ids=ids, params=params), take)
    ended.wait()
    return times[0] - started_s


def over_socket(ids: tuple[int, ...], _: TextEngine, connection: HTTPConnection) -> float:
    """Seconds to the first bytes of a streamed answer, which come with its first token."""
    body = {"prompt": ids, "max_tokens": PAIRED_TOKENS, "temperature": 0, "ignore_eos": True}
    data = json.dumps({**body, "stream": True})
    started_s = perf_counter()
    connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    took_s = perf_counter() - started_s
    assert answer.read().endswith(b"data: [DONE]\n\n")
    return took_s


def over_http(settings: Settings, line: list[str]) -> dict[str, float]:
    """The figures of a server in another process."""
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        # of the main thread: nanoseconds on a processor, then what is of no interest
        stat = Path(f"/proc/{child.pid}/task/{child.pid}/schedstat")

        def cpu() -> float:
            return int(stat.read_text("ascii").split()[0]) / 1e9

        async def run() -> dict[str, float]:
            async with connect(url, model=None, api_key="") as target:
                return await measure(target, settings, cpu)

        found = asyncio.run(run())
        assert child.stdin is not None
        child.stdin.close()
    return found


def run_child(line: list[str]) -> dict[str, float]:
    """What another process prints."""
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(settings: Settings) -> dict[str, object]:
    """Run everything, and say what it comes to: see `summary`."""
    paired = []
    found: dict[str, list[dict[str, float]]] = {role: [] for role in ROLES}
    for _ in range(settings.rounds):
        for role in ROLES:
            line = _child(role, settings)
            found[role].append(over_http(settings, line) if role == "http" else run_child(line))
        paired.append(run_child(_child(PAIRED, settings)))
    return {**asdict(settings), **summary(found, paired)}


def _child(role: str, settings: Settings) -> list[str]:
    return [sys.executable, "-m", "benchmarks.http_overhead", role, json.dumps(asdict(settings))]


def summary(
    found: Mapping[str, Sequence[Mapping[str, float]]], paired: Sequence[Mapping[str, float]]
) -> dict[str, object]:
    """The best of each figure's rounds, since other work on the machine only ever adds."""
    cpu = {
        role: min(each["loop_us_per_token"] for each in rounds) for role, rounds in found.items()
    }
    rates = {role: max(each["tokens_per_s"] for each in rounds) for role, rounds in found.items()}
    return {
        "loop_us_per_token": cpu,
        "tokens_per_s": rates,
        # a microsecond a token is a tenth of a percent of a core at 1,000 tokens a second
        "http_core_percent_per_1000_tokens_per_s": (cpu["http"] - cpu["text"]) / 10,
        "text_core_percent_per_1000_tokens_per_s": (cpu["text"] - cpu["engine"]) / 10,
        "engine_ttft_ms": min(each["engine_ms"] for each in paired),
        "http_ttft_later_ms": min(each["http_later_ms"] for each in paired),
    }


def main() -> None:
    """Compare as the command line says; the child processes are told a role and the settings."""
    if sys.argv[1:2] and sys.argv[1] in {*ROLES, PAIRED}:
        _run_role(sys.argv[1], Settings(**json.loads(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description="Measure what text and HTTP cost a token.")
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, help="default: 4 x concurrency")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    options["requests"] = options["requests"] or 4 * options["concurrency"]
    print(json.dumps({**origin(), **compare(Settings(**options))}, indent=2))


def _run_role(role: str, settings: Settings) -> None:
    if role == "http":
        serve(settings)
    elif role == PAIRED:
        pair(settings)
    else:
        in_process(settings, with_text=role == "text")


if __name__ == "__main__":
    main()
