"""Products with a weight matrix in every packing: time, and bytes of the weight a second.

    python benchmarks/kernels.py [--rows 1 8 512] [--out 8192] [--columns 2048] [--rounds 7]
    python benchmarks/kernels.py --peak     what the machine can do, with each instruction set

The memory's rate is measured between the rounds, by reading a buffer with as many threads, and the
arithmetic's before them, in registers: what few rows and what many are bound by. Packed weights are
compared with products of bytes. Figures are medians, with the spread of the rounds beside them: on
a machine that others use, too, trust the ratios of one table.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from blazr.bench.roofline import arithmetic_of, measure_bandwidth, measure_rates
from blazr.nn.device import resolve_device
from blazr.nn.kernels.cpu import compiled
from blazr.nn.operands.packing import PACKINGS
from blazr.nn.ops.matmul import linear
from blazr.nn.ops.packed import packed_linear
from blazr.nn.ops.peak import ARITHMETIC

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.op_samples import random_packed

# So many bytes of weights are gone through before one is read again: more than any cache.
COLD_BYTES = 192 << 20


def products(
    out: int, columns: int
) -> dict[str, tuple[int, str, Callable[[torch.Tensor], object]]]:
    """Bytes of a weight, its arithmetic, and a call that takes the next of several, by format."""
    found = {}

    def add(name: str, nbytes: int, make: Callable[[], object], op: Callable[..., object]) -> None:
        weights = [make() for _ in range(max(2, COLD_BYTES // nbytes))]
        turn = iter(range(10**9))
        kind = arithmetic_of(weights[0])
        found[name] = (nbytes, kind, lambda x: op(x, weights[next(turn) % len(weights)]))

    for dtype in (torch.bfloat16, torch.float32):
        size = out * columns * dtype.itemsize
        name = str(dtype).removeprefix("torch.")
        add(name, size, lambda d=dtype: torch.randn(out, columns).to(d), linear)
    for name, packing in PACKINGS.items():
        size = out * columns // (16 * packing.columns) * packing.nbytes
        add(
            name, size, lambda p=packing: random_packed(p, out, columns // p.columns), packed_linear
        )
    return found


def measure(call: Callable[[torch.Tensor], object], x: torch.Tensor, seconds: float) -> float:
    """Seconds for a product."""
    call(x)
    count, started = 0, perf_counter()
    while (spent := perf_counter() - started) < seconds or count < 2:
        call(x)
        count += 1
    return spent / count


def print_peaks() -> None:
    """What all threads reach with each instruction set, and the memory's rate."""
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
    parser.add_argument("--formats", nargs="+", default=None)
    parser.add_argument("--peak", action="store_true")
    options = parser.parse_args()
    if options.peak:
        print_peaks()
        return
    cpu, names = resolve_device("cpu"), options.formats
    print(
        f"{compiled.in_use()}, {torch.get_num_threads()} threads, {options.out} x {options.columns}"
    )
    formats = products(options.out, options.columns)
    formats = {name: formats[name] for name in names or formats}
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
