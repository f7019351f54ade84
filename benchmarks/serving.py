"""What prefix reuse saves, and what a long prompt costs those who are reading.

python -m benchmarks.serving --random hybrid-0.4b [--threads 2] [--history FILE]

Scenarios on random weights, in process, in token ids:

* reuse: time to the first token of 1,000-token prompts, asked for the first and the second time;
* interference: gaps between the tokens of seven replies before and while a prompt of 4,000 tokens
  is read;
* newcomers: time to the first token of prompts of at most 64 tokens, alone and beside two clients
  that ask for prompts of 8,000 tokens, one after the other;
* agents, with ``--agents N``: what N agents by turns read again, and the times to the first token.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median

import torch

from benchmarks.agents import replay, trace
from blazr.bench import RANDOM_SHAPES
from blazr.bench.load import Record, drive
from blazr.bench.offline import EngineTarget
from blazr.bench.report import origin, spread_of
from blazr.bench.shapes import random_network
from blazr.bench.workload import BenchRequest
from blazr.core.json_text import dump_json
from blazr.engine.build import build_engine
from blazr.engine.config import EngineConfig
from blazr.engine.scheduler import SHORT_PROMPT
from blazr.nn.device import resolve_device

READERS, LONG_PROMPT, PROMPT = 7, 4_000, 1_000
NEWCOMERS, SHORTEST, LONG_CLIENTS, STREAMED_PROMPT = 100, 5, 2, 8_000
WARM_GAPS, QUIET_GAPS = 10, 150  # of the first reader, before the long prompt comes


def random_request(target: EngineTarget, chance: Random, length: int, output: int) -> BenchRequest:
    """A prompt of so many random tokens, and how many to answer."""
    ids = (chance.randrange(100, target.vocab_size) for _ in range(length))
    return BenchRequest(prompt_ids=tuple(ids), output_tokens=output)


async def reuse(target: EngineTarget, chance: Random, rounds: int) -> dict[str, object]:
    """Milliseconds to the first token, of a new prompt and of the same again."""
    times: dict[str, list[float]] = {"miss": [], "hit": []}
    computed = []
    for _ in range(rounds):
        request = random_request(target, chance, PROMPT, 4)
        for kind in ("miss", "hit"):
            (record,) = await drive(target, [request])
            times[kind].append(1000 * record.ttft_s)
        computed.append(PROMPT - record.cached_tokens)
    medians = {f"ttft_{kind}_ms": median(values) for kind, values in times.items()}
    return {**medians, "prompt_tokens": PROMPT, "computed_again": max(computed)}


async def interference(target: EngineTarget, chance: Random) -> dict[str, object]:
    """Spreads of the readers' gaps, in milliseconds, before and during a long prefill."""

    readers = [Record(prompt_tokens=32) for _ in range(READERS)]
    tasks = [
        asyncio.create_task(
            target.run(random_request(target, chance, 32, 100_000), record, salt="")
        )
        for record in readers
    ]
    while min(len(record.token_s) for record in readers) < WARM_GAPS + QUIET_GAPS:
        await asyncio.sleep(0.01)
    (long,) = await drive(target, [random_request(target, chance, LONG_PROMPT, 1)])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    first_s, last_s = long.arrival_s, long.token_s[0]
    before, during = [], []
    for record in readers:
        for at, gap in zip(record.token_s[1:], record.gaps_s, strict=True):
            if at < first_s and at > record.token_s[WARM_GAPS]:
                before.append(1000 * gap)
            elif first_s <= at <= last_s:
                during.append(1000 * gap)
    quiet, busy = spread_of(before), spread_of(during)
    assert quiet is not None
    assert busy is not None
    return {
        "readers": READERS,
        "prefill_tokens": LONG_PROMPT,
        "prefill_s": last_s - first_s,
        "itl_quiet_ms": quiet,
        "itl_prefill_ms": busy,
        "p99_ratio": busy["p99"] / quiet["p99"],
        "p50_ratio": busy["p50"] / quiet["p50"],
    }


async def newcomers(target: EngineTarget, chance: Random) -> dict[str, object]:
    """Spreads of the time to a short prompt's first token, in milliseconds, alone and not."""

    async def ask_long() -> None:
        while True:
            await drive(target, [random_request(target, chance, STREAMED_PROMPT, 1)])

    async def ask_short() -> dict[str, float] | None:
        lengths = [chance.randint(SHORTEST, SHORT_PROMPT) for _ in range(NEWCOMERS)]
        requests = [random_request(target, chance, length, 1) for length in lengths]
        return spread_of([1000 * record.ttft_s for record in await drive(target, requests, 1)])

    quiet = await ask_short()
    stream = [asyncio.create_task(ask_long()) for _ in range(LONG_CLIENTS)]
    busy = await ask_short()
    for task in stream:
        task.cancel()
    await asyncio.gather(*stream, return_exceptions=True)
    return {
        "long_prompt_tokens": STREAMED_PROMPT,
        "long_clients": LONG_CLIENTS,
        "ttft_quiet_ms": quiet,
        "ttft_busy_ms": busy,
    }


def main() -> None:
    """Read the command line, run the scenarios, print and perhaps keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", required=True, choices=list(RANDOM_SHAPES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agents", type=int, default=0, metavar="N")
    parser.add_argument("--history", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device, chance = resolve_device("auto"), Random(arguments.seed)
    # the longest sessions of agents have 16,000 tokens
    shape = replace(RANDOM_SHAPES[arguments.random](), max_seq_len=32_768)
    network = random_network(shape, device=device, dtype=arguments.dtype)
    engine = build_engine(network, device, config=EngineConfig())
    try:
        target = EngineTarget(engine, vocab_size=network.config.vocab_size)
        report = {
            **origin(),
            "model": f"random {arguments.random}",
            "dtype": arguments.dtype,
            "threads": arguments.threads,
            "reuse": asyncio.run(reuse(target, chance, arguments.rounds)),
            "interference": asyncio.run(interference(target, chance)),
            "newcomers": asyncio.run(newcomers(target, chance)),
        }
        if arguments.agents:
            requests = trace(target.vocab_size, arguments.seed, arguments.agents)
            report["agents"] = asyncio.run(replay(target, requests))
    finally:
        engine.close()
    print(dump_json(report, indent=2))
    if arguments.history:
        with arguments.history.open("a", encoding="utf-8") as file:
            file.write(dump_json(report) + "\n")


if __name__ == "__main__":
    main()
