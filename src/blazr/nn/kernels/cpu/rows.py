"""What is done to each row alone: ``csrc/rows.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, fields, run
from blazr.nn.operands.attention import Rotation

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64


class _Norm(ctypes.Structure):
    """``Norm`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "x weight bias out"),
        *fields(_INT64, "dtype m inner size stride"),
        ("eps", ctypes.c_float),
        ("unit_offset", ctypes.c_int),
    )


class _Angles(ctypes.Structure):
    """``Angles`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "frequencies positions out"),
        *fields(_INT64, "tokens pairs"),
        ("factor", ctypes.c_float),
    )


class _Rotary(ctypes.Structure):
    """``Rotary`` of kernels.hpp."""

    _fields_ = (
        *fields(_POINTER, "q k v cos sin slots out keys values"),
        *fields(_INT64, "tokens heads kv_heads key_size value_size pairs"),
        *fields(_INT64, "q_stride q_head k_stride v_stride out_stride out_head"),
        *fields(_INT64, "key_page value_page interleaved dtype"),
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, unit_offset: bool = False) -> Tensor:
    """See ``blazr.nn.ops.norm.rms_norm``; a row's result depends on that row alone."""
    return _norm(x, weight, None, eps, unit_offset=unit_offset)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See ``blazr.nn.ops.norm.layer_norm``; a row's result depends on that row alone."""
    return _norm(x, weight, bias, eps)


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, unit_offset: bool = False
) -> Tensor:
    size, shape = weight.shape[0], x.shape
    if shape[-1] != size or x.dtype != weight.dtype:
        raise ShapeError(
            "a norm does not fit what it is applied to.",
            found=f"{tuple(shape)} {x.dtype}",
            expected=f"(..., {size}) {weight.dtype}",
        )
    inner = 1 if len(shape) == 2 else shape[1] if len(shape) == 3 else 0
    # heads side by side, tokens perhaps apart, as in a part of a fused product
    if not inner or x.stride(-1) != 1 or (inner > 1 and x.stride(1) != size):
        x, inner = x.reshape(-1, size).contiguous(), 1
    out = torch.empty(shape, dtype=x.dtype)
    call = _Norm(
        x.data_ptr(),
        weight.contiguous().data_ptr(),
        None if bias is None else bias.contiguous().data_ptr(),
        out.data_ptr(),
        DTYPES[x.dtype],
        len(x) * inner,
        inner,
        size,
        x.stride(0),
        eps,
        unit_offset,
    )
    run("norm", call)
    return out


def rotary_tables(frequencies: Tensor, positions: Tensor, factor: float = 1.0) -> Tensor:
    """See ``blazr.nn.ops.rope.rotary_tables``."""
    frequencies, positions = frequencies.contiguous(), positions.contiguous()
    tokens, pairs = len(positions), len(frequencies)
    out = torch.empty(2, tokens, pairs)
    pointers = (each.data_ptr() for each in (frequencies, positions, out))
    run("angles", _Angles(*pointers, tokens, pairs, factor))
    return out


def rotate_and_store(  # noqa: PLR0917  (what is rotated and stored, how, and where to)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    keys: Tensor,
    values: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """See the operation."""
    q, k, v = q if q.stride(2) == 1 else q.contiguous(), _with_dense_heads(k), _with_dense_heads(v)
    out = torch.empty(q.shape, dtype=q.dtype) if out is None else out
    call = _Rotary(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        rotation.cos.data_ptr(),
        rotation.sin.data_ptr(),
        rotation.slots.data_ptr(),
        out.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        len(q),
        q.shape[1],
        k.shape[1],
        k.shape[2],
        v.shape[2],
        rotation.cos.shape[1],
        q.stride(0),
        q.stride(1),
        k.stride(0),
        v.stride(0),
        out.stride(0),
        out.stride(1),
        keys.stride(0),
        values.stride(0),
        rotation.interleaved,
        DTYPES[q.dtype],
    )
    run("rotate", call)
    return out


def _with_dense_heads(x: Tensor) -> Tensor:
    """The heads of a token side by side; tokens may lie apart, as in a part of a fused product."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
