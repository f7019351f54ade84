"""What moves between two servers when one reads a prompt and the other continues it.

    python -m benchmarks.moved_state --shapes granite-4.0-h-1b,llama-3.2-1b --tokens 4000

For each shape, with random weights, two engines with a cache on disk each: the first reads a prompt
and draws a token; what the second needs is moved as `POST /kv_cache/export` sends it, checked and
kept; then the second draws a token of the same prompt. Bytes do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from random import Random
from time import perf_counter

import torch

from blazr.bench import RANDOM_SHAPES
from blazr.bench.report import origin
from blazr.bench.shapes import random_network
from blazr.engine.async_engine import AsyncEngine
from blazr.engine.build import build_engine
from blazr.engine.cache.transfer import Incoming, export
from blazr.engine.config import EngineConfig
from blazr.engine.outputs import TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.nn.device import resolve_device


def draw_token(engine: AsyncEngine, request: Request) -> tuple[TokenOutput, float]:
    """The first token of a reply, and the seconds until it came."""
    outputs: SimpleQueue[TokenOutput] = SimpleQueue()
    started_s = perf_counter()
    engine.submit(request, outputs.put)
    return outputs.get(), perf_counter() - started_s


def measure(shape: str, num_tokens: int, state_dtype: str, folder: Path) -> dict[str, object]:
    """Move a prompt of a shape."""
    device = resolve_device("cpu")
    network = random_network(RANDOM_SHAPES[shape](), device=device, dtype="bfloat16")
    ids = Random(0).choices(range(network.config.vocab_size), k=num_tokens)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    request = Request(prompt_ids=tuple(ids), params=params)

    def start(name: str) -> AsyncEngine:
        directory = str(folder / shape / name)
        config = EngineConfig(
            max_running=2, memory="2GiB", cache_dir=directory, state_dtype=state_dtype
        )
        return build_engine(network, device, config=config)

    with closing(start("reads")) as first, closing(start("continues")) as second:
        told, read_s = draw_token(first, request)
        first.keep_prompts([request])
        assert first.files is not None
        assert second.files is not None
        names = second.block_names(request)
        started_s = perf_counter()
        incoming = Incoming(second.files, names, 0)
        num_bytes = 0
        for frame in export(first.files, names, 0):
            num_bytes += len(frame)
            incoming.feed(frame)
        incoming.end()
        moved_s = perf_counter() - started_s
        found, continued_s = draw_token(second, request)
        assert found.token_ids == told.token_ids
        stats = first.stats()
    return {
        "shape": shape,
        "state_dtype": state_dtype,
        "prompt_tokens": num_tokens,
        "computed_again": num_tokens - found.num_cached_tokens,
        "moved_bytes": num_bytes,
        "page_bytes": int(stats["page_bytes"]),
        "state_bytes": int(stats["state_bytes"]),
        "read_s": read_s,
        "moved_s": moved_s,
        "continued_s": continued_s,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of JSON for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="granite-4.0-h-1b,llama-3.2-1b", help="with commas")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--state-dtype", default="auto", choices=("auto", "bfloat16"))
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    for shape in options.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(shape, options.tokens, options.state_dtype, Path(folder))
        print(json.dumps(found | {"machine": origin()["machine"]}), flush=True)


if __name__ == "__main__":
    main()
