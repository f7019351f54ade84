"""Products with a weight matrix in every packing: time, and bytes of the weight a second.

    python benchmarks/kernels.py [--rows 1 8 512] [--out 8192] [--columns 2048] [--rounds 7]
    python benchmarks/kernels.py --attention   attention of 512 tokens, and of one, to long contexts
    python benchmarks/kernels.py --peak        what the machine can do, with each instruction set

The memory's rate is measured between the rounds, by reading a buffer with as many threads, and the
arithmetic's before them, in registers: what few rows and what many are bound by. Packed weights are
compared with products of bytes. Figures are medians, with the spread of the rounds beside them: on
a machine that others use, too, trust the ratios of one table.
"""

import argparse
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

from blazr.bench.roofline import measure_bandwidth, measure_rates, packed_arithmetic_of
from blazr.nn.device import resolve_device
from blazr.nn.kernels.cpu import compiled
from blazr.nn.operands.attention import AttentionParams, Pages
from blazr.nn.operands.kv_dtype import KV_DTYPES
from blazr.nn.operands.packing import PACKINGS, Packed
from blazr.nn.operands.step import GRID, Span, StepTable
from blazr.nn.ops.attention import paged_attention
from blazr.nn.ops.matmul import linear
from blazr.nn.ops.packed import packed_linear
from blazr.nn.ops.peak import ARITHMETIC

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.op_samples import random_packed

# So many bytes of weights are gone through before one is read again: more than any cache.
COLD_BYTES = 192 << 20

AnyWeight = TypeVar("AnyWeight", torch.Tensor, Packed)

DTYPES = {str(each).removeprefix("torch."): each for each in (torch.bfloat16, torch.float32)}
FORMATS = (*DTYPES, *PACKINGS)


def random_weight(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, columns).to(dtype)


def products(
    names: Collection[str], out: int, columns: int
) -> dict[str, tuple[int, str, Callable[[torch.Tensor], object]]]:
    """Bytes of a weight, its arithmetic, and a call that takes the next of several, by format."""
    found: dict[str, tuple[int, str, Callable[[torch.Tensor], object]]] = {}

    def add(
        name: str,
        nbytes: int,
        kind: str,
        *,
        make: Callable[[], AnyWeight],
        op: Callable[[torch.Tensor, AnyWeight], torch.Tensor],
    ) -> None:
        weights = [make() for _ in range(max(2, COLD_BYTES // nbytes))]
        turn = iter(range(10**9))
        found[name] = (nbytes, kind, lambda x: op(x, weights[next(turn) % len(weights)]))

    for name in names:
        if (dtype := DTYPES.get(name)) is not None:
            size = out * columns * dtype.itemsize
            add(name, size, name, make=partial(random_weight, out, columns, dtype), op=linear)
        else:
            packing = PACKINGS[name]
            size = out * columns // (16 * packing.columns) * packing.nbytes
            make = partial(random_packed, packing, out, columns // packing.columns)
            add(name, size, packed_arithmetic_of(packing), make=make, op=packed_linear)
    return found


def measure(call: Callable[[torch.Tensor], object], x: torch.Tensor, seconds: float) -> float:
    """Seconds for a product."""
    call(x)
    count, started = 0, perf_counter()
    while (spent := perf_counter() - started) < seconds or count < 2:
        call(x)
        count += 1
    return spent / count


def attention(
    new: int, context: int, dtype: torch.dtype, kv_dtype: str
) -> tuple[int, Callable[[torch.Tensor], object]]:
    """Products and sums of the last tokens of a context, with Llama-3.2-1B's heads; the call."""
    heads, kv_heads, size, start = 32, 8, 64, context - new
    pages = [
        KV_DTYPES[kv_dtype]
        .encode(torch.randn(context // GRID, kv_heads, GRID, size).to(dtype))
        .movedim(-2, 1)
        for _ in range(2)
    ]
    span = Span(0, new, start, start % GRID, (), 0, 0)
    table = StepTable((span,), torch.arange(context // GRID)[None], int(new == 1))
    params = AttentionParams(scale=size**-0.5)
    attended = Pages(keys=pages[0], values=pages[1], params=params)
    q = torch.randn(new, heads, size).to(dtype)
    seen = new * start + new * (new + 1) // 2
    return 4 * heads * size * seen, lambda _: paged_attention(q, attended, table)


def print_attention(rounds: int) -> None:
    """Its rate, and of prompts the share of what float32 arithmetic reaches in registers."""
    cpu = resolve_device("cpu")
    peak = measure_rates(cpu)["float32"]
    cases = ((512, 512), (512, 4096), (512, 16384), (1, 16384))
    threads = torch.get_num_threads()
    print(f"{compiled.in_use()}, {threads} threads; GFLOP/s, of {peak / 1e9:.0f}:\n")
    print(f"| new tokens, context | {' | '.join(f'{new}, {of:,}' for new, of in cases)} |")
    print(f"|---|{'---:|' * len(cases)}")
    for dtype, kv_dtype in (
        *((each, "auto") for each in (torch.bfloat16, torch.float16, torch.float32)),
        (torch.bfloat16, "q8_0"),
    ):
        cells = []
        for new, context in cases:
            work, call = attention(new, context, dtype, kv_dtype)
            rate = work / median(measure(call, torch.empty(0), 0.2) for _ in range(rounds))
            cells.append(f"{rate / 1e9:.0f}" + (f", {rate / peak:.0%}" if new > 1 else ""))
        pages = "" if kv_dtype == "auto" else f", {kv_dtype} pages"
        print(f"| {str(dtype).removeprefix('torch.')}{pages} | {' | '.join(cells)} |")


def print_peaks() -> None:
    """What all threads reach with each instruction set, and the memory's rate."""
    compiled.kernels()  # which takes the instruction set that BLAZR_KERNELS names
    cpu = resolve_device("cpu")
    rate = measure_bandwidth(cpu)
    print(f"{torch.get_num_threads()} threads; memory {rate / 1e9:.1f} GB/s; GOP/s in registers:\n")
    print(f"| | {' | '.join(ARITHMETIC)} |\n|---|{'---:|' * len(ARITHMETIC)}")
    for isa in compiled.isas():
        compiled.use(isa)
        print(f"| {isa} | {' | '.join(f'{r / 1e9:.0f}' for r in measure_rates(cpu).values())} |")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 512])
    parser.add_argument("--out", type=int, default=8192)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, metavar="FORMAT")
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--peak", action="store_true")
    options = parser.parse_args()
    if options.attention:
        print_attention(options.rounds)
        return
    if options.peak:
        print_peaks()
        return
    cpu = resolve_device("cpu")
    print(
        f"{compiled.in_use()}, {torch.get_num_threads()} threads, {options.out} x {options.columns}"
    )
    formats = products(options.formats, options.out, options.columns)
    peaks = measure_rates(cpu)
    for rows in options.rows:
        times: dict[str, list[float]] = {name: [] for name in formats}
        rates = []
        for _ in range(options.rounds):
            rates.append(measure_bandwidth(cpu, nbytes=2**28, rounds=2))
            for name, (_, kind, call) in formats.items():
                x = torch.randn(rows, options.columns)
                dtype = torch.bfloat16 if kind.startswith("int") else getattr(torch, kind)
                times[name].append(measure(call, x.to(dtype), 0.02))
        rate = median(rates)
        print(f"\n{rows} rows; memory {rate / 1e9:.1f} GB/s, {min(rates) / 1e9:.1f} to", end=" ")
        print(f"{max(rates) / 1e9:.1f}\n")
        print("| format | us | spread | GB/s | of memory | GOP/s | of arithmetic |")
        for name, (nbytes, kind, _) in formats.items():
            middle, spread = median(times[name]), max(times[name]) / min(times[name])
            share = nbytes / middle / rate
            work = 2 * rows * options.out * options.columns / middle
            use = work / peaks[kind]
            cells = (f"{middle * 1e6:.0f}", f"{spread:.2f}", f"{nbytes / middle / 1e9:.1f}")
            print(f"| {name} | {' | '.join(cells)} | {share:.0%} | {work / 1e9:.0f} | {use:.0%} |")


if __name__ == "__main__":
    main()
