"""Products with plain weights: ``csrc/matmul.hpp`` behind the ops' signatures."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, Call, shape_error
from blazr.nn.kernels.cpu.lora import Lora, lora_argument, lora_shrink
from blazr.nn.kernels.cpu.structures import Float32, Int64, Pointer, structure
from blazr.nn.operands.lora import UNCHANGED, HeadLoras, LoraDelta, LoraDeltas


@structure
class Linear(Call, entry="linear"):
    """``Linear`` of kernels.hpp."""

    x: Pointer
    w: Pointer
    w2: Pointer
    bias: Pointer
    y: Pointer
    dtype: Int64
    m: Int64
    n: Int64
    k: Int64
    ldw: Int64
    ldx: Int64
    ldy: Int64
    wide: Int64
    residual: Pointer = None
    scale: Float32 = 0.0
    lora: Lora = Lora()
    lora2: Lora = Lora()


@structure
class _LinearHeads(Call, entry="linear_heads"):
    """``LinearHeads`` of kernels.hpp."""

    first: Linear
    heads: Int64
    w_head: Int64
    x_head: Int64
    y_head: Int64


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, lora: LoraDelta | None = None
) -> Tensor:
    """See ``blazr.nn.ops.matmul.linear``; a row's result depends on that row alone."""
    return _call(x, weight, None, bias, loras=UNCHANGED if lora is None else (lora, None))


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.matmul.wide_linear``; a row's result depends on that row alone."""
    return _call(x, weight, None, bias, wide=True)


def gated_linear(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    loras: LoraDeltas = UNCHANGED,
) -> Tensor:
    """See ``blazr.nn.ops.matmul.gated_linear``; rounds once, at the end."""
    if gate.shape != up.shape or gate.dtype != up.dtype or gate.stride() != up.stride():
        raise _shape_error(gate, up)
    return _call(x, gate, up, None, loras=loras)


def linear_heads(
    x: Tensor, weight: Tensor, out: Tensor | None = None, loras: HeadLoras | None = None
) -> Tensor:
    """See ``blazr.nn.ops.matmul.linear_heads``; a row's result depends on that row alone."""
    (m, heads, k), n = x.shape, weight.shape[1]
    out = torch.empty(m, heads, n, dtype=x.dtype) if out is None else out
    fit = weight.shape == (heads, n, k) and out.shape == (m, heads, n)
    if not fit or not x.dtype == weight.dtype == out.dtype or out.stride(2) != 1:
        raise _shape_error(weight, x)
    x, weight = (t if t.stride(2) == 1 else t.contiguous() for t in (x, weight))
    first = Linear(
        x.data_ptr(),
        weight.data_ptr(),
        None,
        None,
        out.data_ptr(),
        DTYPES[x.dtype],
        m,
        n,
        k,
        weight.stride(1),
        x.stride(0),
        out.stride(0),
        False,  # noqa: FBT003
    )
    if loras is None:
        _LinearHeads(first, heads, weight.stride(0), x.stride(1), out.stride(1)).run()
        return out
    for head in range(heads):  # each has adapters of its own
        own = x[:, head]
        table = loras.tables.get(head)
        call = Linear.from_buffer_copy(first)
        call.x, call.w = own.data_ptr(), weight[head].data_ptr()
        call.y = out[:, head].data_ptr()
        if table is not None:
            inner = lora_shrink(own, table, loras.slots)
            call.lora = lora_argument(LoraDelta(table, loras.slots, inner))
        call.run()
    return out


def _call(
    x: Tensor,
    weight: Tensor,
    second: Tensor | None,
    bias: Tensor | None,
    *,
    wide: bool = False,
    loras: LoraDeltas = UNCHANGED,
) -> Tensor:
    n, k = weight.shape
    if bias is not None and (bias.shape != (n,) or bias.dtype != weight.dtype):
        raise _shape_error(weight, bias)
    shape, dtype = x.shape, x.dtype
    if shape[-1] != k or dtype != weight.dtype:
        raise _shape_error(weight, x)
    row, column = weight.stride()
    if column != 1 or row < k:  # transposed or broadcast: copied at every call, but right
        weight = weight.contiguous()
        second = None if second is None else second.contiguous()
        row = k
    if len(shape) != 2 or x.stride(1) != 1:
        x = x.reshape(-1, k).contiguous()
    bias = None if bias is None else bias.contiguous()
    m = len(x)
    y = torch.empty(m, n, dtype=torch.float32 if wide else dtype)
    call = Linear(
        x.data_ptr(),
        weight.data_ptr(),
        None if second is None else second.data_ptr(),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        DTYPES[dtype],
        m,
        n,
        k,
        row,
        x.stride(0),
        n,
        wide,
    )
    if loras is not UNCHANGED:
        call.lora, call.lora2 = map(lora_argument, loras)
    call.run()
    return y if len(shape) == 2 else y.view(*shape[:-1], n)


def _shape_error(weight: Tensor, other: Tensor) -> ShapeError:
    expected = f"to go with a weight {tuple(weight.shape)} {weight.dtype}"
    return shape_error("a matrix does not fit what it is multiplied with.", other, expected)
