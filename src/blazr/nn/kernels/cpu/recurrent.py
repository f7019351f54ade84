"""Kernels of mixers that carry a state: ``csrc/convolution.hpp``, ``mamba1.hpp`` and others."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, fields, run
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
)
from blazr.nn.operands.step import Carried, StepTable

_POINTER, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float

# As kernels.hpp numbers them.
ORDERS = ("gate_first", "norm_first", "norm_sigmoid", "none")


class _Carried(ctypes.Structure):
    """``Carried`` of kernels.hpp."""

    _fields_ = (*fields(_POINTER, "kept working"), *fields(_INT64, "kept_stride working_stride"))


class Sequences(ctypes.Structure):
    """``Sequences`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "spans checkpoints"),
        *fields(_INT64, "num_spans num_tokens longest"),
    )


class _Convolution(ctypes.Structure):
    """``Convolution`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "x in_gate out_gate out weight bias"),
        ("window", _Carried),
        ("sequences", Sequences),
        *fields(_INT64, "channels taps dtype silu x_stride out_stride window_stride"),
    )


class _Mamba1(ctypes.Structure):
    """``Mamba1`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "u dt b c gate out a d"),
        ("state", _Carried),
        ("sequences", Sequences),
        *fields(_INT64, "inner state_size dtype b_stride c_stride gate_stride"),
        ("limit", _FLOAT),
    )


class _Mamba2(ctypes.Structure):
    """``Mamba2`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "proj post y dt out"),
        *fields(_POINTER, "conv_weight conv_bias dt_bias a d norm_weight multipliers"),
        *fields(_POINTER, "states conv_states log_raw log_xb log_dt"),
        ("sequences", Sequences),
        *fields(_INT64, "heads head_dim state_size groups taps"),
        *fields(_INT64, "state_stride conv_state_stride dtype norm norm_groups"),
        *fields(_FLOAT, "dt_min dt_max eps"),
    )


class _Mamba3(ctypes.Structure):
    """``Mamba3`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "x b c dt mix theta out norm b_bias c_bias dt_bias a d"),
        *((name, _Carried) for name in ("state", "x_before", "b_before", "angle")),
        ("sequences", Sequences),
        *fields(_INT64, "heads groups width state_size dtype silu x_stride map_stride dt_stride"),
        *fields(_FLOAT, "eps dt_min dt_max"),
    )


class _GatedDelta(ctypes.Structure):
    """``GatedDelta`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "q k v decay beta gate out dt_bias a norm_weight"),
        ("state", _Carried),
        ("sequences", Sequences),
        *fields(_INT64, "heads key_heads key_dim value_dim decays tiled norm dtype"),
        *fields(_INT64, "qkv_stride decay_stride beta_stride gate_stride"),
        ("eps", _FLOAT),
    )


class _GatedRows(ctypes.Structure):
    """``GatedRows`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "x gate weight out"),
        *fields(_INT64, "m n groups norm gate_stride dtype"),
        ("eps", _FLOAT),
    )


def _fits_convolution(_: Tensor, taps: Filter, *__: object, **___: object) -> bool:
    return len(taps.weight) <= 8


@limited_to(_fits_convolution)
def convolve(  # noqa: PLR0917  (what is convolved, how, and where its memory is)
    x: Tensor,
    taps: Filter,
    window: Carried,
    table: StepTable,
    gates: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See the operation."""
    tokens, channels = x.shape
    out = x.new_empty(tokens, channels) if out is None else out
    before, after = gates or (None, None)
    call = _Convolution(
        x.data_ptr(),
        None if before is None else before.data_ptr(),
        None if after is None else after.data_ptr(),
        out.data_ptr(),
        taps.weight.data_ptr(),
        taps.bias.data_ptr(),
        _carried(window, x.dtype),
        sequences(table, tokens),
        channels,
        len(taps.weight),
        DTYPES[x.dtype],
        gates is None,
        x.stride(0),
        out.stride(0),
        window.kept.stride(1),
    )
    run("convolution", call)
    return out


def _fits_mamba1(_: Tensor, rows: Mamba1Rows, *__: object) -> bool:
    return rows.b.shape[1] <= 256


@limited_to(_fits_mamba1)
def mamba1(  # noqa: PLR0917  (what a step takes, and where its memory is)
    u: Tensor, rows: Mamba1Rows, weights: Mamba1Weights, state: Carried, table: StepTable
) -> Tensor:
    """See the operation."""
    out = torch.empty(u.shape, dtype=u.dtype)
    call = _Mamba1(
        *(each.data_ptr() for each in (u, rows.dt, rows.b, rows.c, rows.gate, out)),
        weights.a.data_ptr(),
        weights.d.data_ptr(),
        _carried(state, torch.float32),
        sequences(table, len(out)),
        *weights.a.shape,
        DTYPES[out.dtype],
        rows.b.stride(0),
        rows.c.stride(0),
        rows.gate.stride(0),
        weights.limit,
    )
    run("mamba1", call)
    return out


def _fits_mamba2(_: Tensor, weights: Mamba2Weights, *__: object) -> bool:
    has_room = weights.head_dim <= 128 and weights.state_size <= 256
    return has_room and len(weights.conv.weight) <= 8


@limited_to(_fits_mamba2)
def mamba2(proj: Tensor, weights: Mamba2Weights, memory: Mamba2Memory, table: StepTable) -> Tensor:
    """See the operation."""
    tokens, heads, norm = len(proj), weights.heads, weights.norm
    conv, inner = weights.conv.bias.shape[0], heads * weights.head_dim
    post, out = proj.new_empty(tokens, conv), proj.new_empty(tokens, inner)
    y = torch.empty(tokens, inner + heads)  # the second part holds the step sizes
    call = _Mamba2(
        proj.data_ptr(),
        post.data_ptr(),
        y.data_ptr(),
        y.data_ptr() + 4 * tokens * inner,
        out.data_ptr(),
        weights.conv.weight.data_ptr(),
        weights.conv.bias.data_ptr(),
        weights.dt_bias.data_ptr(),
        weights.a.data_ptr(),
        weights.d.data_ptr(),
        None if norm.weight is None else norm.weight.data_ptr(),
        None if weights.multipliers is None else weights.multipliers.data_ptr(),
        memory.states.data_ptr(),
        memory.conv_states.data_ptr(),
        memory.log_raw.data_ptr(),
        memory.log_xb.data_ptr(),
        memory.log_dt.data_ptr(),
        sequences(table, tokens),
        heads,
        weights.head_dim,
        weights.state_size,
        weights.groups,
        len(weights.conv.weight),
        memory.states.stride(0),
        memory.conv_states.stride(0),
        DTYPES[proj.dtype],
        ORDERS.index(norm.order),
        norm.groups,
        weights.dt_min,
        weights.dt_max,
        norm.eps,
    )
    run("mamba2", call)
    return out


def _fits_mamba3(x: Tensor, _: Mamba3Rows, weights: Mamba3Weights, *__: object) -> bool:
    heads, states = weights.b_bias.shape
    return states <= 256 and x.shape[1] <= 1024 * heads


@limited_to(_fits_mamba3)
def mamba3(  # noqa: PLR0917  (what a step takes, and where its memory is)
    x: Tensor, rows: Mamba3Rows, weights: Mamba3Weights, memory: Mamba3Memory, table: StepTable
) -> Tensor:
    """See the operation."""
    (heads, states), wide = weights.b_bias.shape, torch.float32
    out = torch.empty(x.shape, dtype=x.dtype)
    call = _Mamba3(
        *(each.data_ptr() for each in (x, rows.b, rows.c, rows.dt, rows.mix)),
        None if rows.theta is None else rows.theta.data_ptr(),
        out.data_ptr(),
        *(each.data_ptr() for each in (weights.norm, weights.b_bias, weights.c_bias)),
        *(each.data_ptr() for each in (weights.dt_bias, weights.a, weights.d)),
        *(_carried(each, wide) for each in (memory.state, memory.x, memory.b)),
        _Carried() if memory.angle is None else _carried(memory.angle, wide),
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
    )
    run("mamba3", call)
    return out


def _fits_gated_delta(v: Tensor, rows: DeltaRows, weights: DeltaWeights, *_: object) -> bool:
    key_dim = rows.k.shape[1] // weights.key_heads
    return max(key_dim, v.shape[1] // weights.heads) <= 256


@limited_to(_fits_gated_delta)
def gated_delta(  # noqa: PLR0917  (what a step takes, and where its memory is)
    v: Tensor, rows: DeltaRows, weights: DeltaWeights, state: Carried, table: StepTable
) -> Tensor:
    """See the operation."""
    norm, heads = weights.norm, weights.heads
    out = torch.empty(v.shape, dtype=v.dtype)
    assert norm.weight is not None
    call = _GatedDelta(
        *(each.data_ptr() for each in (rows.q, rows.k, v, rows.decay, rows.beta)),
        *(each.data_ptr() for each in (rows.gate, out, weights.dt_bias, weights.a, norm.weight)),
        _carried(state, torch.float32),
        sequences(table, len(out)),
        heads,
        weights.key_heads,
        rows.k.shape[1] // weights.key_heads,
        v.shape[1] // heads,
        len(weights.dt_bias) // heads,
        weights.tiled,
        ORDERS.index(norm.order),
        DTYPES[out.dtype],
        rows.q.stride(0),
        rows.decay.stride(0),
        rows.beta.stride(0),
        rows.gate.stride(0),
        norm.eps,
    )
    run("gated_delta", call)
    return out


def _fits_gated_norm(x: Tensor, *_: object) -> bool:
    return x.shape[1] <= 1 << 15


@limited_to(_fits_gated_norm)
def gated_norm(x: Tensor, gate: Tensor, norm: GatedNorm) -> Tensor:
    """See the operation."""
    out = torch.empty(x.shape, dtype=x.dtype)
    call = _GatedRows(
        x.data_ptr(),
        gate.data_ptr(),
        None if norm.weight is None else norm.weight.data_ptr(),
        out.data_ptr(),
        *x.shape,
        norm.groups,
        ORDERS.index(norm.order),
        gate.stride(0),
        DTYPES[x.dtype],
        norm.eps,
    )
    run("gated_rows", call)
    return out


def _carried(memory: Carried, dtype: torch.dtype) -> _Carried:
    kept, working = memory.kept, memory.working
    if kept.dtype != dtype or working.dtype != dtype:
        raise ShapeError(
            "what a mixer remembers does not fit what it computes.",
            found=f"{kept.dtype}, {working.dtype}",
            expected=str(dtype),
        )
    return _Carried(kept.data_ptr(), working.data_ptr(), kept.stride(0), working.stride(0))


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
