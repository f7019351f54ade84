"""What keys and values in eight bits cost or save: decode steps of random networks, by turns.

    python benchmarks/kv_dtypes.py --shape qwen2-0.5b --dtype bfloat16 --threads 1

Streams of one length decode a token each, from pages filled with anything. Milliseconds, of
processor time on one thread and of wall-clock time on several: the least of the rounds, and
their median.
"""

import argparse
from statistics import median
from time import perf_counter, process_time

import torch

from blazr.bench import RANDOM_SHAPES
from blazr.bench.shapes import random_network
from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import Storage, plan_layout
from blazr.models.causal_lm import CausalLM
from blazr.nn.device import resolve_device
from blazr.nn.layers.batch import ForwardBatch
from blazr.nn.operands.kv_dtype import KV_DTYPES, kv_dtype_of
from blazr.nn.operands.step import GRID, Span, StepTable


def memory_of(model: CausalLM, kv_dtype: str, streams: int, blocks: int) -> Storage:
    specs = [each.mixer.cache_spec(model.dtype).stored_as(kv_dtype) for each in model.config.layers]
    layout = plan_layout(specs)
    shape = CacheShape(
        grid=GRID,
        num_superpages=-(-streams * blocks // layout.pages_per_superpage),
        pages_per_superpage=layout.pages_per_superpage,
        states_per_superpage=0,
        max_running=streams,
        max_blocks=blocks,
    )
    storage = Storage(layout, shape, model.device)
    for cache in storage.layers:
        for stored in cache.paged.values():
            kind = kv_dtype_of(stored)
            one = kind.encode(torch.randn(GRID, *stored.shape[2:-1], kind.size(stored.shape[-1])))
            stored[:] = one
    print(f"{kv_dtype:9} {layout.page_bytes / GRID:,.0f} bytes a token")
    return storage


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen2-0.5b", help=", ".join(RANDOM_SHAPES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--context", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = process_time if options.threads == 1 else perf_counter
    config = RANDOM_SHAPES[options.shape]()
    model = random_network(config, device=resolve_device("cpu"), dtype=options.dtype)
    streams, last = options.streams, options.context - 1
    blocks = last // GRID + 1
    # pages as streams take them that grow by turns
    tables = torch.arange(streams * blocks).view(blocks, streams).t().contiguous()
    numbers = torch.arange(streams)
    spans = tuple(Span(row, 1, last, 0) for row in range(streams))
    times: dict[str, list[float]] = {name: [] for name in KV_DTYPES if name != "fp8"}
    memories = {name: memory_of(model, name, streams, blocks) for name in times}
    for turn in range(options.rounds + 1):
        for name, memory in memories.items():
            batch = ForwardBatch(
                token_ids=numbers,
                positions=torch.full((streams,), last),
                slot_mapping=tables[:, -1] * GRID + last % GRID,
                logits_indices=numbers,
                table=StepTable(spans, tables, num_decodes=streams),
            )
            start = clock()
            model.logits(model(batch, memory.layers))
            if turn:  # the first finds memory untouched
                times[name].append(1000 * (clock() - start))
    for name, found in times.items():
        print(f"{name:9} {min(found):8.1f} {median(found):8.1f} ms")


if __name__ == "__main__":
    main()
