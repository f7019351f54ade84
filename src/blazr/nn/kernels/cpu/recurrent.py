"""Kernels of mixers that carry a state: ``csrc/convolution.hpp``, ``mamba1.hpp`` and others."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, Call
from blazr.nn.kernels.cpu.structures import Float32, Int64, Pointer, structure
from blazr.nn.kernels.kernel import limited_to
from blazr.nn.operands.recurrent import (
    DeltaRows,
    DeltaWeights,
    Filter,
    GatedNorm,
    Mamba1Rows,
    Mamba1Weights,
    Mamba2Memory,
    Mamba2Weights,
    Mamba3Memory,
    Mamba3Rows,
    Mamba3Weights,
    RgLruRows,
    RgLruWeights,
)
from blazr.nn.operands.step import Carried, StepTable, Window

# As kernels.hpp numbers them.
ORDERS = ("gate_first", "norm_first", "norm_sigmoid", "none", "ungated")


@structure
class _Carried(ctypes.Structure):
    """``Carried`` of kernels.hpp."""

    kept: Pointer = None
    working: Pointer = None
    kept_stride: Int64 = 0
    working_stride: Int64 = 0
    dtype: Int64 = 0


@structure
class _Window(ctypes.Structure):
    """``Window`` of kernels.hpp."""

    kept: Pointer
    log: Pointer
    kept_slot: Int64
    kept_row: Int64
    log_run: Int64
    log_row: Int64


@structure
class Sequences(ctypes.Structure):
    """``Sequences`` of kernels.hpp."""

    spans: Pointer
    checkpoints: Pointer
    num_spans: Int64
    num_tokens: Int64
    longest: Int64


@structure
class _Convolution(Call, entry="convolution"):
    """``Convolution`` of kernels.hpp."""

    x: Pointer
    in_gate: Pointer
    out_gate: Pointer
    out: Pointer
    weight: Pointer
    bias: Pointer
    window: _Window
    sequences: Sequences
    channels: Int64
    taps: Int64
    dtype: Int64
    silu: Int64
    x_stride: Int64
    out_stride: Int64


@structure
class _LogRows(Call, entry="log_rows"):
    """``LogRows`` of kernels.hpp."""

    x: Pointer
    log: Pointer
    sequences: Sequences
    bytes: Int64
    x_stride: Int64


@structure
class _Mamba1(Call, entry="mamba1"):
    """``Mamba1`` of kernels.hpp."""

    u: Pointer
    dt: Pointer
    b: Pointer
    c: Pointer
    gate: Pointer
    out: Pointer
    a: Pointer
    d: Pointer
    state: _Carried
    sequences: Sequences
    inner: Int64
    state_size: Int64
    dtype: Int64
    b_stride: Int64
    c_stride: Int64
    gate_stride: Int64
    limit: Float32


@structure
class _Mamba2(Call, entry="mamba2"):
    """``Mamba2`` of kernels.hpp."""

    proj: Pointer
    post: Pointer
    y: Pointer
    dt: Pointer
    out: Pointer
    conv_weight: Pointer
    conv_bias: Pointer
    dt_bias: Pointer
    a: Pointer
    d: Pointer
    norm_weight: Pointer
    multipliers: Pointer
    states: Pointer
    conv_states: Pointer
    log_raw: Pointer
    log_xb: Pointer
    log_dt: Pointer
    sequences: Sequences
    heads: Int64
    head_dim: Int64
    state_size: Int64
    groups: Int64
    taps: Int64
    state_stride: Int64
    conv_state_stride: Int64
    dtype: Int64
    state_dtype: Int64
    norm: Int64
    norm_groups: Int64
    dt_min: Float32
    dt_max: Float32
    eps: Float32


@structure
class _Mamba3(Call, entry="mamba3"):
    """``Mamba3`` of kernels.hpp."""

    x: Pointer
    b: Pointer
    c: Pointer
    dt: Pointer
    mix: Pointer
    theta: Pointer
    out: Pointer
    norm: Pointer
    b_bias: Pointer
    c_bias: Pointer
    dt_bias: Pointer
    a: Pointer
    d: Pointer
    state: _Carried
    x_before: _Carried
    b_before: _Carried
    angle: _Carried
    sequences: Sequences
    heads: Int64
    groups: Int64
    width: Int64
    state_size: Int64
    dtype: Int64
    silu: Int64
    x_stride: Int64
    map_stride: Int64
    dt_stride: Int64
    eps: Float32
    dt_min: Float32
    dt_max: Float32


@structure
class _GatedDelta(Call, entry="gated_delta"):
    """``GatedDelta`` of kernels.hpp."""

    q: Pointer
    k: Pointer
    v: Pointer
    decay: Pointer
    beta: Pointer
    gate: Pointer
    out: Pointer
    dt_bias: Pointer
    a: Pointer
    norm_weight: Pointer
    state: _Carried
    sequences: Sequences
    heads: Int64
    key_heads: Int64
    key_dim: Int64
    value_dim: Int64
    decays: Int64
    norm: Int64
    dtype: Int64
    qkv_stride: Int64
    decay_stride: Int64
    beta_stride: Int64
    gate_stride: Int64
    eps: Float32
    beta_scale: Float32
    least: Float32


@structure
class _RgLru(Call, entry="rg_lru"):
    """``RgLru`` of kernels.hpp."""

    x: Pointer
    input_gate: Pointer
    decay_gate: Pointer
    out: Pointer
    input_bias: Pointer
    decay_bias: Pointer
    a: Pointer
    state: _Carried
    sequences: Sequences
    width: Int64
    dtype: Int64


@structure
class _GatedRows(Call, entry="gated_rows"):
    """``GatedRows`` of kernels.hpp."""

    x: Pointer
    gate: Pointer
    weight: Pointer
    out: Pointer
    m: Int64
    n: Int64
    groups: Int64
    norm: Int64
    gate_stride: Int64
    dtype: Int64
    eps: Float32


@limited_to(lambda _, taps, *__, **___: len(taps.weight) <= 8)
def convolve(  # noqa: PLR0917  (what is convolved, how, and where its memory is)
    x: Tensor,
    taps: Filter,
    window: Window,
    table: StepTable,
    gates: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See ``blazr.nn.ops.convolution.convolve``."""
    tokens, channels = x.shape
    out = x.new_empty(tokens, channels) if out is None else out
    before, after = gates or (None, None)
    kept, log = window.kept, window.log
    _check_dtypes(x.dtype, kept, log)
    _Convolution(
        x.data_ptr(),
        None if before is None else before.data_ptr(),
        None if after is None else after.data_ptr(),
        out.data_ptr(),
        taps.weight.data_ptr(),
        taps.bias.data_ptr(),
        _Window(
            kept.data_ptr(),
            log.data_ptr(),
            kept.stride(0),
            kept.stride(1),
            log.stride(0),
            log.stride(1),
        ),
        sequences(table, tokens),
        channels,
        len(taps.weight),
        DTYPES[x.dtype],
        taps.silu and gates is None,
        x.stride(0),
        out.stride(0),
    ).run()
    return out


def log_rows(x: Tensor, log: Tensor, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.sequences.log_rows``."""
    _check_dtypes(x.dtype, log)
    size = x.element_size()
    _LogRows(
        x.data_ptr(),
        log.data_ptr(),
        sequences(table, len(x)),
        size * x.shape[1],
        size * x.stride(0),
    ).run()
    return log


@limited_to(lambda _, rows, *__: rows.b.shape[1] <= 256)
def mamba1(  # noqa: PLR0917  (what a step takes, and where its memory is)
    u: Tensor, rows: Mamba1Rows, weights: Mamba1Weights, state: Carried, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.mamba1.mamba1``."""
    out = torch.empty(u.shape, dtype=u.dtype)
    _Mamba1(
        u.data_ptr(),
        rows.dt.data_ptr(),
        rows.b.data_ptr(),
        rows.c.data_ptr(),
        rows.gate.data_ptr(),
        out.data_ptr(),
        weights.a.data_ptr(),
        weights.d.data_ptr(),
        _carried(state),
        sequences(table, len(out)),
        weights.a.shape[0],
        weights.a.shape[1],
        DTYPES[out.dtype],
        rows.b.stride(0),
        rows.c.stride(0),
        rows.gate.stride(0),
        weights.limit,
    ).run()
    return out


@limited_to(
    lambda _, weights, *__: (
        weights.head_dim <= 128
        and weights.state_size <= 256
        and (weights.conv is None or len(weights.conv.weight) <= 8)
    )
)
def mamba2(proj: Tensor, weights: Mamba2Weights, memory: Mamba2Memory, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.mamba2.mamba2``."""
    tokens = len(proj)
    heads = weights.heads
    norm = weights.norm
    inner = heads * weights.head_dim
    conv, before, raw = weights.conv, memory.conv_states, memory.log_raw
    post = proj.new_empty(tokens, proj.shape[1] - inner - heads)
    out = proj.new_empty(tokens, inner)
    y = torch.empty(tokens, inner + heads)  # the second part holds the step sizes
    _Mamba2(
        proj.data_ptr(),
        post.data_ptr(),
        y.data_ptr(),
        y.data_ptr() + 4 * tokens * inner,
        out.data_ptr(),
        None if conv is None else conv.weight.data_ptr(),
        None if conv is None else conv.bias.data_ptr(),
        weights.dt_bias.data_ptr(),
        weights.a.data_ptr(),
        weights.d.data_ptr(),
        None if norm.weight is None else norm.weight.data_ptr(),
        None if weights.multipliers is None else weights.multipliers.data_ptr(),
        memory.states.data_ptr(),
        None if before is None else before.data_ptr(),
        None if raw is None else raw.data_ptr(),
        memory.log_xb.data_ptr(),
        memory.log_dt.data_ptr(),
        sequences(table, tokens),
        heads,
        weights.head_dim,
        weights.state_size,
        weights.groups,
        0 if conv is None else len(conv.weight),
        memory.states.stride(0),
        0 if before is None else before.stride(0),
        DTYPES[proj.dtype],
        _number_of_kept(memory.states),
        ORDERS.index(norm.order),
        norm.groups,
        *weights.dt_limits,
        norm.eps,
    ).run()
    return out


@limited_to(
    lambda x, _, weights, *__: (
        weights.b_bias.shape[1] <= 256 and x.shape[1] <= 1024 * len(weights.b_bias)
    )
)
def mamba3(  # noqa: PLR0917  (what a step takes, and where its memory is)
    x: Tensor, rows: Mamba3Rows, weights: Mamba3Weights, memory: Mamba3Memory, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.mamba3.mamba3``."""
    heads, states = weights.b_bias.shape
    out = torch.empty(x.shape, dtype=x.dtype)
    _Mamba3(
        x.data_ptr(),
        rows.b.data_ptr(),
        rows.c.data_ptr(),
        rows.dt.data_ptr(),
        rows.mix.data_ptr(),
        None if rows.theta is None else rows.theta.data_ptr(),
        out.data_ptr(),
        weights.norm.data_ptr(),
        weights.b_bias.data_ptr(),
        weights.c_bias.data_ptr(),
        weights.dt_bias.data_ptr(),
        weights.a.data_ptr(),
        weights.d.data_ptr(),
        _carried(memory.state),
        _carried(memory.x),
        _carried(memory.b),
        _Carried() if memory.angle is None else _carried(memory.angle),
        sequences(table, len(x)),
        heads,
        weights.groups,
        x.shape[1] // heads,
        states,
        DTYPES[x.dtype],
        weights.silu,
        x.stride(0),
        rows.b.stride(0),
        rows.dt.stride(0),
        weights.eps,
        *weights.dt_limits,
    ).run()
    return out


@limited_to(
    lambda v, rows, weights, *_: (
        rows.k.shape[1] // weights.key_heads <= 256 and v.shape[1] // weights.heads <= 256
    )
)
def gated_delta(  # noqa: PLR0917  (what a step takes, and where its memory is)
    v: Tensor, rows: DeltaRows, weights: DeltaWeights, state: Carried, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.gated_delta.gated_delta``."""
    norm = weights.norm
    heads = weights.heads
    out = torch.empty(v.shape, dtype=v.dtype)
    assert norm.weight is not None
    _GatedDelta(
        rows.q.data_ptr(),
        rows.k.data_ptr(),
        v.data_ptr(),
        rows.decay.data_ptr(),
        rows.beta.data_ptr(),
        rows.gate.data_ptr(),
        out.data_ptr(),
        weights.dt_bias.data_ptr(),
        weights.a.data_ptr(),
        norm.weight.data_ptr(),
        _carried(state),
        sequences(table, len(out)),
        heads,
        weights.key_heads,
        rows.k.shape[1] // weights.key_heads,
        v.shape[1] // heads,
        len(weights.dt_bias) // heads,
        ORDERS.index(norm.order),
        DTYPES[out.dtype],
        rows.q.stride(0),
        rows.decay.stride(0),
        rows.beta.stride(0),
        rows.gate.stride(0),
        norm.eps,
        weights.beta_scale,
        weights.least,
    ).run()
    return out


def rg_lru(  # noqa: PLR0917  (what a step takes, and where its memory is)
    x: Tensor, rows: RgLruRows, weights: RgLruWeights, state: Carried, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.rg_lru.rg_lru``."""
    out = torch.empty(x.shape, dtype=x.dtype)
    _RgLru(
        x.data_ptr(),
        rows.input_gate.data_ptr(),
        rows.decay_gate.data_ptr(),
        out.data_ptr(),
        weights.input_bias.data_ptr(),
        weights.decay_bias.data_ptr(),
        weights.a.data_ptr(),
        _carried(state),
        sequences(table, len(x)),
        x.shape[1],
        DTYPES[x.dtype],
    ).run()
    return out


@limited_to(lambda x, *_: x.shape[1] <= 1 << 15)
def gated_norm(x: Tensor, gate: Tensor, norm: GatedNorm) -> Tensor:
    """See ``blazr.nn.ops.norm.gated_norm``."""
    out = torch.empty(x.shape, dtype=x.dtype)
    _GatedRows(
        x.data_ptr(),
        gate.data_ptr(),
        None if norm.weight is None else norm.weight.data_ptr(),
        out.data_ptr(),
        x.shape[0],
        x.shape[1],
        norm.groups,
        ORDERS.index(norm.order),
        gate.stride(0),
        DTYPES[x.dtype],
        norm.eps,
    ).run()
    return out


def _carried(memory: Carried) -> _Carried:
    kept, working = memory.kept, memory.working
    _check_dtypes(torch.float32, working)
    return _Carried(
        kept.data_ptr(),
        working.data_ptr(),
        kept.stride(0),
        working.stride(0),
        _number_of_kept(kept),
    )


def _number_of_kept(states: Tensor) -> int:
    """The number of the dtype that states are kept in."""
    if states.dtype != torch.bfloat16:
        _check_dtypes(torch.float32, states)
    return DTYPES[states.dtype]


def _check_dtypes(dtype: torch.dtype, *memory: Tensor) -> None:
    if any(each.dtype != dtype for each in memory):
        raise ShapeError(
            "what a mixer remembers does not fit what it computes.",
            found=", ".join(str(each.dtype) for each in memory),
            expected=str(dtype),
        )


def sequences(table: StepTable, tokens: int) -> Sequences:
    """What a step of so many tokens computes of each sequence."""
    numbers = table.numbers
    return Sequences(
        numbers.spans.data_ptr(),
        numbers.checkpoints.data_ptr(),
        len(numbers.spans),
        tokens,
        numbers.longest,
    )
