"""Bytes that move between two servers when one reads a prompt and the other continues it.

    python -m benchmarks.moved_state --shapes granite-4.0-h-1b,llama-3.2-1b --tokens 4000

For each shape two engines, each with its memory and a cache on disk. The first one's scheduler and
caches run as ever on a prompt, but its network is left out: what is in memory does not change how
many bytes it has. What the second one needs is then sent as ``POST /kv_cache/export`` sends it,
checked and kept; and the second one resumes from there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from time import perf_counter

import torch

from blazr.bench import RANDOM_SHAPES
from blazr.engine.cache.budget import plan_caches
from blazr.engine.cache.disk import DiskCache
from blazr.engine.cache.manager import CacheManager
from blazr.engine.cache.storage import Storage, plan_layout
from blazr.engine.cache.transfer import Incoming, export
from blazr.engine.config import EngineConfig
from blazr.engine.engine import Engine
from blazr.engine.outputs import TokenOutput
from blazr.engine.request import Request
from blazr.engine.runner import StepResult
from blazr.engine.sampling.sampler import Sampled
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.nn.device import resolve_device

MEMORY = "1GiB"


def start(shape: str, folder: Path, state_dtype: str) -> tuple[Engine, DiskCache]:
    """An engine without a network, and its files."""
    network = RANDOM_SHAPES[shape]()
    device = resolve_device("cpu")
    specs = [spec.stored_as("auto", state_dtype) for spec in network.cache_specs(torch.bfloat16)]
    layout = plan_layout(specs)
    config = EngineConfig(max_running=1, memory=MEMORY)
    (found,) = plan_caches([layout], config, device=device, max_seq_len=network.max_seq_len)
    storage = Storage(layout, found, device.torch_device)
    files = DiskCache(
        folder,
        limit=2**40,
        fingerprint=shape.encode(),
        sizes=storage.item_bytes,
        read=storage.read,
        write=storage.write,
    )

    def execute(plan: StepPlan) -> StepResult:
        return StepResult([Sampled(0) for row in plan.rows if row.samples])

    engine = Engine(
        Scheduler(CacheManager(found, disk=files), token_budget=config.token_budget),
        execute,
        vocab_size=network.vocab_size,
        max_seq_len=network.max_seq_len,
    )
    return engine, files


def draw_token(engine: Engine, request: Request) -> TokenOutput:
    """The first token of a reply."""
    engine.add(request, request_id=1, now=0.0, seed=0)
    outputs: list[TokenOutput] = []
    while not outputs:
        outputs = engine.step(0.0)
    return outputs[0]


def measure(shape: str, num_tokens: int, state_dtype: str, folder: Path) -> dict[str, object]:
    """Move a prompt of a shape."""
    first, sent = start(shape, folder / "reads", state_dtype)
    second, received = start(shape, folder / "continues", state_dtype)
    ids = Random(0).choices(range(first.vocab_size), k=num_tokens)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    request = Request(prompt_ids=tuple(ids), params=params)
    with closing(sent), closing(received):
        draw_token(first, request)
        first.keep_prompt(request)
        sent.flush()
        names = second.block_names(request)
        started_s = perf_counter()
        incoming = Incoming(received, names, 0)
        num_bytes = 0
        for frame in export(sent, names, 0):
            num_bytes += len(frame)
            incoming.feed(frame)
        incoming.end()
        moved_s = perf_counter() - started_s
        resumed = draw_token(second, request)
    stats = first.stats()
    return {
        "shape": shape,
        "state_dtype": state_dtype,
        "prompt_tokens": num_tokens,
        "computed_again": num_tokens - resumed.num_cached_tokens,
        "moved_bytes": num_bytes,
        "page_bytes": int(stats["page_bytes"]),
        "state_bytes": int(stats["state_bytes"]),
        "moved_s": round(moved_s, 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of JSON for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="granite-4.0-h-1b,llama-3.2-1b", help="with commas")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--state-dtype", default="auto", choices=("auto", "bfloat16"))
    options = parser.parse_args(arguments)
    for shape in options.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(shape, options.tokens, options.state_dtype, Path(folder))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
