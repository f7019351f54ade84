"""Products with plain weights: ``csrc/matmul.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, fields, run


class Linear(ctypes.Structure):
    """``Linear`` of kernels.hpp."""

    _fields_ = (
        *fields(ctypes.c_void_p, "x w w2 bias y"),
        *fields(ctypes.c_int64, "dtype m n k ldw wide"),
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.matmul.linear``; a row's result depends on that row alone."""
    _check_bias(weight, bias)
    return _call(x, weight, None, bias)


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.matmul.wide_linear``; a row's result depends on that row alone."""
    _check_bias(weight, bias)
    return _call(x, weight, None, bias, wide=True)


def gated_linear(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """See ``blazr.nn.ops.matmul.gated_linear``; rounds once, at the end."""
    if gate.shape != up.shape or gate.dtype != up.dtype or gate.stride() != up.stride():
        raise _misfit(gate, up)
    return _call(x, gate, up, None)


def _check_bias(weight: Tensor, bias: Tensor | None) -> None:
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        raise _misfit(weight, bias)


def _call(
    x: Tensor, weight: Tensor, second: Tensor | None, bias: Tensor | None, *, wide: bool = False
) -> Tensor:
    n, k = weight.shape
    shape, dtype = x.shape, x.dtype
    if shape[-1] != k or dtype != weight.dtype:
        raise _misfit(weight, x)
    row, column = weight.stride()
    if column != 1 or row < k:  # transposed or broadcast: copied at every call, but right
        weight = weight.contiguous()
        second = None if second is None else second.contiguous()
        row = k
    x = x.contiguous()
    m = shape[0] if len(shape) == 2 else shape[:-1].numel()
    y = torch.empty(m, n, dtype=torch.float32 if wide else dtype)
    call = Linear(
        x.data_ptr(),
        weight.data_ptr(),
        None if second is None else second.data_ptr(),
        None if bias is None else bias.contiguous().data_ptr(),
        y.data_ptr(),
        DTYPES[dtype],
        m,
        n,
        k,
        row,
        wide,
    )
    run("linear", call)
    return y if len(shape) == 2 else y.view(*shape[:-1], n)


def _misfit(weight: Tensor, other: Tensor) -> ShapeError:
    return ShapeError(
        "a matrix does not fit what it is multiplied with.",
        found=f"{tuple(other.shape)} {other.dtype}",
        expected=f"to go with a weight {tuple(weight.shape)} {weight.dtype}",
    )
