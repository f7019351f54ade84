"""What is done to each number alone: ``csrc/pointwise.hpp`` behind the ops' signatures."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, Call, are_in_range, shape_error
from blazr.nn.kernels.cpu.matmul import Linear
from blazr.nn.kernels.cpu.matmul_q import PackedLinear
from blazr.nn.kernels.cpu.structures import Float32, Int64, Pointer, structure
from blazr.nn.kernels.recording import recording

# As kernels.hpp numbers them.
_ADD, _SCALE, _WIDEN, _SIGMOID = 0, 1, 2, 8
ACTIVATIONS = {"silu": 3, "gelu": 4, "gelu_tanh": 5, "relu": 6, "relu2": 7}


@structure
class _Pointwise(Call, entry="pointwise"):
    """``Pointwise`` of kernels.hpp."""

    a: Pointer
    b: Pointer
    out: Pointer
    kind: Int64
    dtype: Int64
    m: Int64
    n: Int64
    a_stride: Int64
    b_stride: Int64
    b_step: Int64
    scale: Float32
    cap: Float32


@structure
class _Pieces(Call, entry="pieces"):
    """``Pieces`` of kernels.hpp."""

    x: Pointer
    order: Pointer
    out: Pointer
    m: Int64
    count: Int64
    bytes: Int64
    x_stride: Int64
    stride: Int64


def add(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """See ``blazr.nn.ops.pointwise.add``; in a recorded step the product that makes b adds."""
    here = recording()
    last = here.calls[-1] if here is not None and here.calls else None
    product = last[1] if isinstance(last, tuple) else None
    # one that adds something already cannot add more
    if not isinstance(product, Linear | PackedLinear) or product.residual:
        return _call(_ADD, a, b, scale=scale)
    is_alike = a.shape == b.shape and a.dtype == b.dtype
    is_dense = a.is_contiguous() and b.is_contiguous()
    is_all_of_b = product.y == b.data_ptr() and product.m * product.n == b.numel()
    if not (is_all_of_b and is_alike and is_dense):
        return _call(_ADD, a, b, scale=scale)
    out = torch.empty(a.shape, dtype=a.dtype)
    product.residual = a.data_ptr()
    product.scale = scale
    product.y = out.data_ptr()
    return out


def scale(a: Tensor, factor: float) -> Tensor:
    """See ``blazr.nn.ops.pointwise.scale``."""
    return _call(_SCALE, a, scale=factor)


def widen(a: Tensor, divisor: float = 1.0, cap: float | None = None) -> Tensor:
    """See ``blazr.nn.ops.pointwise.widen``."""
    out = torch.empty(a.shape, dtype=torch.float32)
    return _call(_WIDEN, a, out=out, scale=divisor, cap=cap or 0.0)


def activate(a: Tensor, kind: str, b: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.pointwise.activate``."""
    return _call(ACTIVATIONS[kind], a, b)


def sigmoid_gate(a: Tensor, gate: Tensor) -> Tensor:
    """See ``blazr.nn.ops.pointwise.sigmoid_gate``."""
    return _call(_SIGMOID, a, gate, is_column=gate.shape == (*a.shape[:-1], 1))


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """See ``blazr.nn.ops.pointwise.embedding``."""
    if not are_in_range(ids, len(weight)):
        raise ShapeError(
            "a token id is no row of the embedding.",
            found=f"{int(ids.min())} to {int(ids.max())}",
            expected=f"0 to {len(weight) - 1}",
        )
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    width, size, ids = weight.shape[1], weight.element_size(), ids.contiguous()
    out = torch.empty(*ids.shape, width, dtype=weight.dtype)
    # one row, of which each row of the embedding is a piece
    _Pieces(
        weight.data_ptr(),
        ids.data_ptr(),
        out.data_ptr(),
        m=1,
        count=ids.numel(),
        bytes=width * size,
        x_stride=0,
        stride=weight.stride(0) * size,
    ).run()
    return out


def take_columns(x: Tensor, order: Tensor, size: int) -> Tensor:
    """See ``blazr.nn.ops.pointwise.take_columns``."""
    rows = _rows(x)
    bytes_each = x.element_size()
    out = torch.empty(*x.shape[:-1], len(order) * size, dtype=x.dtype)
    _Pieces(
        rows.data_ptr(),
        order.data_ptr(),
        out.data_ptr(),
        len(rows),
        len(order),
        size * bytes_each,
        rows.stride(0) * bytes_each,
        size * bytes_each,
    ).run()
    return out


def _call(
    kind: int,
    a: Tensor,
    b: Tensor | None = None,
    *,
    out: Tensor | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
    is_column: bool = False,
) -> Tensor:
    if b is not None and ((b.shape != a.shape and not is_column) or b.dtype != a.dtype):
        raise shape_error("two tensors do not go together.", b, f"{tuple(a.shape)} {a.dtype}")
    out = torch.empty(a.shape, dtype=a.dtype) if out is None else out
    a, b = _rows(a), None if b is None else _rows(b)
    _Pointwise(
        a.data_ptr(),
        None if b is None else b.data_ptr(),
        out.data_ptr(),
        kind,
        DTYPES[a.dtype],
        a.shape[0],
        a.shape[1],
        a.stride(0),
        0 if b is None else b.stride(0),
        not is_column,
        scale,
        cap,
    ).run()
    return out


def _rows(x: Tensor) -> Tensor:
    """Two dimensions; numbers of a row side by side."""
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else x.contiguous()
