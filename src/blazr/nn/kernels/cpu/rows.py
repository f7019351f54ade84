"""What is done to each row alone: ``csrc/rows.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.nn.kernels.cpu.compiled import DTYPES, Call, kv_dtype_number, shape_error
from blazr.nn.kernels.cpu.structures import Float32, Int32, Int64, Pointer, structure
from blazr.nn.kernels.kernel import limited_to
from blazr.nn.operands.attention import Rotation
from blazr.nn.operands.kv_dtype import stored_size

# What attention.hpp has room for.
MAX_KEY, MAX_VALUE = 576, 512


@structure
class _Norm(Call, entry="norm"):
    """``Norm`` of kernels.hpp."""

    x: Pointer
    weight: Pointer
    bias: Pointer
    out: Pointer
    dtype: Int64
    m: Int64
    inner: Int64
    size: Int64
    stride: Int64
    eps: Float32
    unit_offset: Int32


@structure
class _Angles(Call, entry="angles"):
    """``Angles`` of kernels.hpp."""

    frequencies: Pointer
    positions: Pointer
    out: Pointer
    tokens: Int64
    pairs: Int64
    factor: Float32


@structure
class PagedRows(ctypes.Structure):
    """``PagedRows`` of kernels.hpp."""

    first: Pointer
    page: Int64
    row: Int64
    head: Int64
    size: Int64


def paged_rows(stored: Tensor | None) -> PagedRows:
    """Of a tensor (pages, GRID, K, what ``size`` numbers take), or of none."""
    if stored is None:
        return PagedRows(None, 0, 0, 0, 0)
    page, row, head, _ = stored.stride()
    return PagedRows(stored.data_ptr(), page, row, head, stored_size(stored))


@structure
class _Rotary(Call, entry="rotate"):
    """``Rotary`` of kernels.hpp."""

    q: Pointer
    k: Pointer
    v: Pointer
    cos: Pointer
    sin: Pointer
    slots: Pointer
    out: Pointer
    keys: PagedRows
    values: PagedRows
    tokens: Int64
    heads: Int64
    kv_heads: Int64
    pairs: Int64
    q_stride: Int64
    q_head: Int64
    k_stride: Int64
    v_stride: Int64
    out_stride: Int64
    out_head: Int64
    interleaved: Int64
    dtype: Int64
    stored: Int64


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
        expected = f"(..., {size}) {weight.dtype}"
        raise shape_error("a norm does not fit what it is applied to.", x, expected)
    inner = 1 if len(shape) == 2 else shape[1] if len(shape) == 3 else 0
    # heads side by side, tokens perhaps apart, as in a part of a fused product
    if not inner or x.stride(-1) != 1 or (inner > 1 and x.stride(1) != size):
        x = x.reshape(-1, size).contiguous()
        inner = 1
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    out = torch.empty(shape, dtype=x.dtype)
    _Norm(
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        DTYPES[x.dtype],
        len(x) * inner,
        inner,
        size,
        x.stride(0),
        eps,
        unit_offset,
    ).run()
    return out


def rotary_tables(frequencies: Tensor, positions: Tensor, factor: float = 1.0) -> Tensor:
    """See ``blazr.nn.ops.rope.rotary_tables``."""
    frequencies, positions = frequencies.contiguous(), positions.contiguous()
    tokens, pairs = len(positions), len(frequencies)
    out = torch.empty(2, tokens, pairs)
    _Angles(
        frequencies.data_ptr(), positions.data_ptr(), out.data_ptr(), tokens, pairs, factor
    ).run()
    return out


@limited_to(
    lambda _q, k, _v, _rotation, keys, *_: not kv_dtype_number(keys) or k.shape[2] <= MAX_KEY
)
def rotate_and_store(  # noqa: PLR0917  (what is rotated and stored, how, and where to)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    keys: Tensor,
    values: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """See ``blazr.nn.ops.rope.rotate_and_store``."""
    q = q if q.stride(2) == 1 else q.contiguous()
    k, v = _with_dense_heads(k), _with_dense_heads(v)
    out = torch.empty(q.shape, dtype=q.dtype) if out is None else out
    _Rotary(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        rotation.cos.data_ptr(),
        rotation.sin.data_ptr(),
        rotation.slots.data_ptr(),
        out.data_ptr(),
        paged_rows(keys),
        paged_rows(values),
        len(q),
        q.shape[1],
        k.shape[1],
        rotation.cos.shape[1],
        q.stride(0),
        q.stride(1),
        k.stride(0),
        v.stride(0),
        out.stride(0),
        out.stride(1),
        rotation.interleaved,
        DTYPES[q.dtype],
        kv_dtype_number(keys),
    ).run()
    return out


def _with_dense_heads(x: Tensor) -> Tensor:
    """The heads of a token side by side; tokens may lie apart, as in a part of a fused product."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
