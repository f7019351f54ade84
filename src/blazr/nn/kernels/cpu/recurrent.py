"""Kernels of mixers that carry a state: ``csrc/convolution.hpp``, ``csrc/mamba1.hpp``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, fields, run
from blazr.nn.kernels.steps import Carried, Filter, Mamba1Rows, Mamba1Weights, StepTable

_POINTER, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float

# As kernels.hpp numbers them.
ORDERS = ("gate_first", "norm_first", "norm_sigmoid", "none")


class _Carried(ctypes.Structure):
    """``Carried`` of kernels.hpp."""

    _fields_ = (*fields(_POINTER, "kept working"), *fields(_INT64, "kept_stride working_stride"))


class _Sequences(ctypes.Structure):
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
        ("sequences", _Sequences),
        *fields(_INT64, "channels taps dtype silu x_stride out_stride window_stride"),
    )


class _Mamba1(ctypes.Structure):
    """``Mamba1`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "u dt b c gate out a d"),
        ("state", _Carried),
        ("sequences", _Sequences),
        *fields(_INT64, "inner state_size dtype b_stride c_stride gate_stride"),
        ("limit", _FLOAT),
    )


def convolve(  # noqa: PLR0917  (what is convolved, how, and where its memory is)
    x: Tensor,
    how: Filter,
    window: Carried,
    table: StepTable,
    gates: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See ``blazr.nn.ops.sequence.Recurrences``."""
    tokens, channels = x.shape
    out = x.new_empty(tokens, channels) if out is None else out
    before, after = gates or (None, None)
    call = _Convolution(
        x.data_ptr(),
        None if before is None else before.data_ptr(),
        None if after is None else after.data_ptr(),
        out.data_ptr(),
        how.weight.data_ptr(),
        how.bias.data_ptr(),
        _carried(window, x.dtype),
        _sequences(table, tokens),
        channels,
        len(how.weight),
        DTYPES[x.dtype],
        gates is None,
        x.stride(0),
        out.stride(0),
        window.kept.stride(1),
    )
    run("convolution", call)
    return out


def mamba1(rows: Mamba1Rows, weights: Mamba1Weights, state: Carried, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.sequence.Recurrences``."""
    out = torch.empty(rows.u.shape, dtype=rows.u.dtype)
    call = _Mamba1(
        *(each.data_ptr() for each in (rows.u, rows.dt, rows.b, rows.c, rows.gate, out)),
        weights.a.data_ptr(),
        weights.d.data_ptr(),
        _carried(state, torch.float32),
        _sequences(table, len(out)),
        *weights.a.shape,
        DTYPES[out.dtype],
        rows.b.stride(0),
        rows.c.stride(0),
        rows.gate.stride(0),
        weights.limit,
    )
    run("mamba1", call)
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


def _sequences(table: StepTable, tokens: int) -> _Sequences:
    spans = table.spans
    return _Sequences(
        spans.data_ptr(), table.checkpoints.data_ptr(), len(spans), tokens, table.longest
    )
