"""What adapters cost: eight streams with none, one, or one each, by turns.

All run on one engine over a network of random weights, with adapters of one rank on every
projection but the head, experts' too, or on those that are named. Rounds of all cases alternate,
so that they meet the same machine; the first rounds, in which steps are recorded, do not count.

Run: python -m benchmarks.adapters [SHAPE] [--rank 16] [--targets q_proj,v_proj] [--streams 8]

OMP_NUM_THREADS chooses the number of threads.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import product

import torch
from torch import nn

from blazr.bench import RANDOM_SHAPES
from blazr.bench.shapes import random_network
from blazr.engine.adapters import Adapter
from blazr.engine.async_engine import AsyncEngine
from blazr.engine.build import build_engine
from blazr.engine.config import EngineConfig
from blazr.engine.outputs import TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.models.causal_lm import CausalLM
from blazr.nn.device import resolve_device
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.moe import Experts
from blazr.nn.operands.lora import LoraFactors

WARM_UP = 2  # rounds
TOKENS = 48


def random_adapter(
    network: CausalLM, rank: int, targets: Collection[str] = ()
) -> dict[str, LoraFactors]:
    """Small random changes of modules of these names, or of every one but the head."""
    found = {}
    for name, part in network.named_modules():
        is_target = name.rpartition(".")[2] in targets if targets else name != "lm_head"
        for matrix, (rows, columns), dtype in _matrices(part) if is_target else ():
            a = torch.randn(rank, columns) * columns**-0.5
            b = torch.randn(rank, rows) * 0.01
            found[name + matrix] = LoraFactors.of(a.to(dtype), b.to(dtype))
    return found


def _matrices(part: nn.Module) -> Iterator[tuple[str, torch.Size, torch.dtype]]:
    """What adapters change in a module: names behind its own, shapes, dtypes of the factors."""
    if isinstance(part, Linear):
        yield "", part.weight.shape, part.adapter_dtype
    elif isinstance(part, Experts):
        stacks = {name: each for name, each in part.named_parameters() if name.endswith("_proj")}
        for name, stack in stacks.items():
            for expert in range(len(stack)):
                yield f".{name}.{expert}", stack.shape[1:], stack.dtype


def decode_speed(engine: AsyncEngine, adapters: Sequence[Adapter | None]) -> float:
    """Tokens a second of streams that decode together, one for each adapter."""
    ends: list[float] = []
    firsts: dict[int, float] = {}
    done = threading.Event()

    def take(output: TokenOutput) -> None:
        now = time.perf_counter()
        if output.token_ids:
            firsts.setdefault(output.request_id, now)
        if output.finish_reason is not None:
            ends.append(now)
            if len(ends) == len(adapters):
                done.set()

    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    for number, adapter in enumerate(adapters):
        salt = f"{time.perf_counter()}"
        request = Request(
            prompt_ids=tuple(range(7 + number, 39 + number)),
            params=params,
            adapter=adapter,
            cache_salt=salt,
        )
        engine.submit(request, take)
    done.wait()
    # between the last first token and the last token nearly all steps decode all streams
    return len(adapters) * (TOKENS - 1) / (max(ends) - max(firsts.values()))


def measure(engine: AsyncEngine, adapters: Sequence[Adapter], *, rounds: int) -> dict[str, float]:
    """The median speed of each case, in tokens a second."""
    count = len(adapters)
    nobody: list[Adapter | None] = [None] * count
    cases: dict[str, list[Adapter | None]] = {
        "no adapter": nobody,
        "one stream with one": [adapters[0], *nobody[1:]],
        "half of the streams, one each": [*adapters[: count // 2], *nobody[count // 2 :]],
        "all streams with the same": [adapters[0]] * count,
        "all streams, one each": [*adapters],
    }
    speeds: dict[str, list[float]] = {name: [] for name in cases}
    for number, name in product(range(WARM_UP + rounds), cases):
        speed = decode_speed(engine, cases[name])
        if number >= WARM_UP:
            speeds[name].append(speed)
    return {name: statistics.median(found) for name, found in speeds.items()}


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", nargs="?", default="qwen2-0.5b")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument(
        "--targets", default="", help="names of projections or experts, with commas between"
    )
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    device = resolve_device("cpu")
    network = random_network(RANDOM_SHAPES[args.shape](), device=device, dtype=args.dtype)
    engine = build_engine(network, device, config=EngineConfig(max_running=args.streams))
    try:
        targets = [*filter(None, args.targets.split(","))]
        adapters = [
            engine.load_adapter(
                random_adapter(network, args.rank, targets), fingerprint=f"{number:02x}"
            )
            for number in range(args.streams)
        ]
        speeds = measure(engine, adapters, rounds=args.rounds)
    finally:
        engine.close()
    print(f"{args.shape}, rank {args.rank}, {args.streams} streams | tokens/s | of those without")
    for name, speed in speeds.items():
        print(f"{name} | {speed:.1f} | {speed / speeds['no adapter']:.2f}")


if __name__ == "__main__":
    main()
