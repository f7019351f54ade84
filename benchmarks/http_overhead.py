"""What a token costs in text and over HTTP, beside what it costs the engine.

python benchmarks/http_overhead.py [--model nano] [--concurrency 64] [--history FILE]

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
from collections.abc import Callable, Iterable
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

import torch

from blazr.bench.load import Record, Target, drive
from blazr.bench.offline import EngineTarget
from blazr.bench.online import connect
from blazr.bench.report import origin
from blazr.bench.workload import Ask, Workload
from blazr.engine.config import EngineConfig
from blazr.engine.outputs import TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.async_llm import AsyncLLM
from blazr.llm.generation import GenerationRequest
from blazr.llm.open import open_model
from blazr.llm.text_engine import TextEngine
from blazr.server.app import build_app
from blazr.server.config import ServerConfig
from blazr.server.models import Models
from blazr.server.serve import address_of, listen, make_server
from blazr.text.events import TextDelta

ROLES = ("engine", "text", "http")
PAIRED = "paired"
PAIRED_TOKENS = 8


class TextTarget:
    """A model to measure in process, text included."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.vocab_size = llm.core.info.vocab_size
        self._llm = llm

    async def run(self, ask: Ask, record: Record, *, salt: str) -> None:
        """Generate greedily, past any end of text."""
        params = SamplingParams(temperature=0, max_tokens=ask.output_tokens, ignore_eos=True)
        request = GenerationRequest(prompt=ask.prompt_ids, params=params, cache_salt=salt)
        async for event in self._llm.events([request]):
            if isinstance(event, TextDelta):
                record.token_s.append(perf_counter())
                record.output_tokens += len(event.token_ids)

    def stats(self) -> dict[str, float]:
        """None are needed."""
        return {}


async def measure(
    target: Target, args: argparse.Namespace, cpu: Callable[[], float]
) -> dict[str, float]:
    """Processor time per token of many requests at once."""
    work = Workload(
        asks=[Ask(prompt_tokens=args.prompt_tokens, output_tokens=args.output_tokens)],
        seed=args.seed,
    )

    async def run(count: int, at_once: int, salt: str) -> list[Record]:
        asks = work.draw(count, vocab_size=target.vocab_size, salt=salt)
        return await drive(target, asks, at_once, salt=salt)

    await run(args.concurrency, args.concurrency, "warmup")
    before_s = cpu()
    records = await run(args.requests, args.concurrency, "many")
    spent_s = cpu() - before_s
    tokens = sum(each.output_tokens for each in records)
    wall_s = max(each.end_s for each in records) - min(each.arrival_s for each in records)
    errors = [each.error for each in records if each.error]
    assert not errors, errors[0]
    return {
        # 1,000 tokens a second at this price are a tenth of a percent of a core a microsecond
        "loop_us_per_token": 1e6 * spent_s / tokens,
        "tokens_per_s": tokens / wall_s,
    }


def open_core(args: argparse.Namespace) -> TextEngine:
    torch.set_num_threads(1)
    config = EngineConfig(max_running=args.concurrency, memory=args.memory)
    return open_model(args.model, engine=config)


def in_process(args: argparse.Namespace) -> None:
    """Print the figures of the engine, or of the text around it."""
    core = open_core(args)
    target: Target = TextTarget(AsyncLLM(core))
    if args.role == "engine":
        target = EngineTarget(core.engine, vocab_size=core.info.vocab_size)
    try:
        print(json.dumps(asyncio.run(measure(target, args, thread_time))))
    finally:
        core.close()


def serve(args: argparse.Namespace) -> None:
    """Serve until nobody holds the other end of our input; print the address."""
    config = ServerConfig(host="127.0.0.1", port=0)
    sock = listen(config)
    models = Models.of(AsyncLLM(open_core(args)), config)
    print(address_of(sock), flush=True)
    server = make_server(build_app(models), models)

    async def until_closed() -> None:
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving

    asyncio.run(until_closed())
    models.close()


def pair(args: argparse.Namespace) -> None:
    """Print by how much the first token comes later over HTTP, milliseconds."""
    config = ServerConfig(host="127.0.0.1", port=0)
    sock = listen(config)
    core = open_core(args)
    models = Models.of(AsyncLLM(core), config)
    server = make_server(build_app(models), models)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    connection = HTTPConnection("127.0.0.1", sock.getsockname()[1])
    work = Workload(asks=[Ask(prompt_tokens=args.prompt_tokens)], seed=args.seed)
    asks = work.draw(2 * args.singles, vocab_size=core.info.vocab_size, salt="paired")
    times = [
        (over_socket if i % 2 else straight)(ask.prompt_ids, core, connection)
        for i, ask in enumerate(asks)
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


def over_http(args: argparse.Namespace, line: list[str]) -> dict[str, float]:
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
                return await measure(target, args, cpu)

        found = asyncio.run(run())
        assert child.stdin is not None
        child.stdin.close()
    return found


def run_child(line: list[str]) -> dict[str, float]:
    """What another process prints."""
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _best(key: str) -> Callable[[Iterable[float]], float]:
    return max if key == "tokens_per_s" else min


def main() -> None:
    """Read the command line, run everything, print and perhaps keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=(*ROLES, PAIRED), help=argparse.SUPPRESS)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--singles", type=int, default=40)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--history", type=Path)
    args = parser.parse_args()
    if args.role is not None:
        {"http": serve, PAIRED: pair}.get(args.role, in_process)(args)
        return
    paired = []
    found: dict[str, list[dict[str, float]]] = {role: [] for role in ROLES}
    for _ in range(args.rounds):
        for role in ROLES:
            line = [sys.executable, __file__, *sys.argv[1:], "--role", role]
            if role == "http":
                found[role].append(over_http(args, line))
            else:
                found[role].append(run_child(line))
        paired.append(run_child([sys.executable, __file__, *sys.argv[1:], "--role", PAIRED]))
    figures = {
        # other work on the machine only ever adds
        role: {key: _best(key)(each[key] for each in rounds) for key in rounds[0]}
        for role, rounds in found.items()
    }
    cpu = {role: figures[role]["loop_us_per_token"] / 10 for role in ROLES}
    report = {
        **origin(),
        "model": args.model,
        "concurrency": args.concurrency,
        "figures": figures,
        "http_core_percent_per_1000_tokens_per_s": cpu["http"] - cpu["text"],
        "text_core_percent_per_1000_tokens_per_s": cpu["text"] - cpu["engine"],
        "engine_ttft_ms": min(each["engine_ms"] for each in paired),
        "http_ttft_later_ms": min(each["http_later_ms"] for each in paired),
    }
    print(json.dumps(report, indent=2))
    if args.history:
        with args.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
