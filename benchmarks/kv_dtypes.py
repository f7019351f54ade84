"""What keys and values in eight bits cost or save, and states in 16: decode steps, by turns.

    python benchmarks/kv_dtypes.py --shape qwen2-0.5b --dtype bfloat16 --threads 1
    python benchmarks/kv_dtypes.py --shape hybrid-0.4b --kv-dtype auto --state-dtype auto bfloat16

Streams of one length decode a token each, in random networks, from pages and states filled with
anything. Milliseconds, of
processor time on one thread and of wall-clock time on several: the least of the rounds, and
their median.
"""

import argparse
from itertools import product
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
from blazr.nn.operands.kv_dtype import kv_dtype_of
from blazr.nn.operands.step import GRID, Span, StepTable


def memory_of(
    model: CausalLM, stored: tuple[str, str], streams: int, blocks: int
) -> tuple[Storage, int]:
    """Memory in these dtypes, and the first of the states behind its pages."""
    mixers = [each.mixer for each in model.config.layers]
    layout = plan_layout([each.cache_spec(model.dtype).stored_as(*stored) for each in mixers])
    pages, states = layout.pages_per_superpage, layout.states_per_superpage
    for_pages = -(-streams * blocks // pages) if pages else 0
    shape = CacheShape(
        grid=GRID,
        num_superpages=for_pages + (-(-streams // states) if states else 0),
        pages_per_superpage=pages,
        states_per_superpage=states,
        max_running=streams,
        max_blocks=blocks,
    )
    storage = Storage(layout, shape, model.device)
    for cache in storage.layers:
        for state in cache.checkpoint.values():
            state[for_pages * states :].normal_(0, 0.1)
        for paged in cache.paged.values():
            kind = kv_dtype_of(paged)
            one = kind.encode(torch.randn(GRID, *paged.shape[2:-1], kind.size(paged.shape[-1])))
            paged[: streams * blocks] = one
    of_page, of_state = layout.page_bytes / GRID, layout.state_bytes
    print(f"{'/'.join(stored):18} {of_page:,.0f} bytes a token, {of_state:,} bytes a state")
    return storage, for_pages * states


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen2-0.5b", help=", ".join(RANDOM_SHAPES))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-dtype", nargs="+", default=["auto", "q8_0", "fp8_e4m3"])
    parser.add_argument("--state-dtype", nargs="+", default=["auto"])
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
    kinds = list(product(options.kv_dtype, options.state_dtype))
    times: dict[tuple[str, str], list[float]] = {kind: [] for kind in kinds}
    memories = {kind: memory_of(model, kind, streams, blocks) for kind in kinds}
    for turn in range(options.rounds + 1):
        for kind, (memory, first) in memories.items():
            spans = tuple(
                Span(row, 1, last, last % GRID, state_slot=first + row, run_slot=row)
                for row in range(streams)
            )
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
                times[kind].append(1000 * (clock() - start))
    for kind, found in times.items():
        print(f"{'/'.join(kind):18} {min(found):8.2f} {median(found):8.2f} ms")


if __name__ == "__main__":
    main()
