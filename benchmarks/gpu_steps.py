"""Steps of released models, as the kernels for GPUs are compiled for: their arguments, and costs.

Tensors are on torch's ``meta`` device and take no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.nn.operands.attention import Pages
from blazr.nn.operands.recurrent import Filter, GatedNorm, Mamba2Memory, Mamba2Weights
from blazr.nn.operands.step import GRID, Span, StepTable, Window

_BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Step:
    """What an operation computes at once.

    Args:
        name: For people.
        arguments: Makes what it takes.
        nbytes: Of all that is read and written, each once.
        flops: Of products.
        most_stack: Bytes of local memory that a thread may use.
        has_large_products: Whether they are to be wgmma's on GPUs that have it.
    """

    name: str
    arguments: Callable[[], tuple[object, ...]]
    nbytes: float
    flops: float
    most_stack: int = 0
    has_large_products: bool = False


def _empty(*shape: int, dtype: torch.dtype = _BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def step_of(count: int, length: int, start: int) -> StepTable:
    """``count`` sequences that compute ``length`` tokens each, behind ``start`` in memory."""
    pages = -(-(start + length) // GRID)
    spans = tuple(
        Span(index * length, length, start, start % GRID, (), index, index)
        for index in range(count)
    )
    tables = torch.zeros(count, pages, dtype=torch.int64)
    return StepTable(spans, tables, count if length == 1 else 0)


def _attention(
    name: str,
    heads: tuple[int, int],
    size: int,
    step: tuple[int, int, int],
    *,
    more: int = 0,
    dtype: torch.dtype = _BF16,
    has_large_products: bool = True,
    most_stack: int = 0,
) -> Step:
    """Heads of queries and of keys; sequences, tokens of each, and tokens before them."""
    (queries, kv_heads), (count, length, start) = heads, step

    def pages(width: int) -> Tensor:
        return _empty(100, kv_heads, GRID, width, dtype=dtype).movedim(-2, 1)

    def arguments() -> tuple[object, ...]:
        keys = pages(size)
        attended = Pages(
            keys=keys,
            more_keys=pages(more) if more else None,
            values=keys if more else pages(size),
            scale=0.1,
        )
        q = _empty(count * length, queries, size + more, dtype=dtype)
        return q, attended, step_of(*step)

    seen = count * length * (start + (length + 1) / 2)  # of all queries
    width = size + more if more else 2 * size
    nbytes = count * (start + length) * kv_heads * width + count * length * queries * (
        2 * size + more
    )
    flops = 2 * seen * queries * (2 * size + more)
    return Step(name, arguments, nbytes * dtype.itemsize, flops, most_stack, has_large_products)


# A hybrid of 1.5 billion parameters: heads, their width, state, taps.
_HEADS, _WIDTH, _STATE, _TAPS = 64, 64, 128, 4
_INNER = _HEADS * _WIDTH
_CONV = _INNER + 2 * _STATE


def _numbers(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.float32)


def _mamba2(name: str, count: int, length: int, start: int) -> Step:
    weights = Mamba2Weights(
        heads=_HEADS,
        head_dim=_WIDTH,
        state_size=_STATE,
        groups=1,
        conv=Filter(_numbers(_TAPS, _CONV), _numbers(_CONV)),
        dt_bias=_numbers(_HEADS),
        a=_numbers(_HEADS),
        d=_numbers(_HEADS),
        norm=GatedNorm("gate_first", _numbers(_INNER), 1e-5),
        dt_limits=(0.001, 0.1),
        multipliers=None,
    )

    def arguments() -> tuple[object, ...]:
        memory = Mamba2Memory(
            states=_numbers(count + 1, _HEADS, _WIDTH, _STATE),
            conv_states=_empty(count + 1, _TAPS - 1, _CONV),
            log_raw=_empty(count, GRID, _CONV),
            log_xb=_empty(count, GRID, _INNER + _STATE),
            log_dt=_numbers(count, GRID, _HEADS),
        )
        projected = _empty(count * length, _INNER + _CONV + _HEADS)
        return projected, weights, memory, step_of(count, length, start)

    tokens, logged = count * length, start % GRID
    state = 4 * _INNER * _STATE
    rows = 2 * (2 * _INNER + _CONV + _HEADS) * tokens
    logs = (2 * (_INNER + _STATE) + 4 * _HEADS) * count * logged
    seen = (logged + 1) if length == 1 else GRID / 2  # rows of an interval that a token sees
    flops = 2 * tokens * (seen * (_STATE * _HEADS + _INNER) + 2 * _INNER * _STATE)
    return Step(name, arguments, count * state + rows + logs, flops, 320, length > 1)


def _convolution(name: str, tokens: int, op: str) -> Step:
    """Or only its log."""

    def arguments() -> tuple[object, ...]:
        x, log, table = _empty(tokens, _CONV), _empty(1, GRID, _CONV), step_of(1, tokens, 0)
        if op == "log_rows":
            return x, log, table
        window = Window(_empty(2, _TAPS - 1, _CONV), log)
        return x, Filter(_numbers(_TAPS, _CONV), _numbers(_CONV)), window, table

    return Step(name, arguments, 2 * 2 * tokens * _CONV, 0)


def _gated_norm(name: str, tokens: int) -> Step:
    def arguments() -> tuple[object, ...]:
        norm = GatedNorm("gate_first", _numbers(_INNER), 1e-5)
        return _empty(tokens, _INNER), _empty(tokens, _INNER), norm

    return Step(name, arguments, 3 * 2 * tokens * _INNER, 0)


STEPS: dict[str, tuple[Step, ...]] = {
    "paged_attention": (
        _attention("Llama-3.2-1B, 1 reply after 1,024", (32, 8), 64, (1, 1, 1023)),
        _attention("Llama-3.2-1B, 256 replies after 1,024", (32, 8), 64, (256, 1, 1023)),
        _attention("Llama-3.2-1B, prompt of 4,096", (32, 8), 64, (1, 4096, 0), most_stack=32),
        _attention("Llama-3-8B, prompt of 4,096", (32, 8), 128, (1, 4096, 0), most_stack=32),
        _attention("heads of 256, prompt of 4,096", (16, 8), 256, (1, 4096, 0), most_stack=128),
        _attention(
            "DeepSeek-V2-Lite, 32 replies after 1,024", (16, 1), 512, (32, 1, 1023), more=64
        ),
        _attention(
            "DeepSeek-V2-Lite, prompt of 4,096",
            (16, 1),
            512,
            (1, 4096, 0),
            more=64,
            most_stack=320,
        ),
        _attention(
            "heads of 64 in float32",
            (32, 8),
            64,
            (1, 4096, 0),
            dtype=torch.float32,
            has_large_products=False,
        ),
    ),
    "mamba2": (
        _mamba2("hybrid of 1.5B, 1 reply", 1, 1, 1055),
        _mamba2("hybrid of 1.5B, 256 replies", 256, 1, 1055),
        _mamba2("hybrid of 1.5B, prompt of 4,096", 1, 4096, 0),
    ),
    "convolve": (_convolution("hybrid of 1.5B, prompt of 4,096", 4096, "convolve"),),
    "log_rows": (_convolution("hybrid of 1.5B, prompt of 63", 63, "log_rows"),),
    "gated_norm": (_gated_norm("hybrid of 1.5B, prompt of 4,096", 4096),),
}
