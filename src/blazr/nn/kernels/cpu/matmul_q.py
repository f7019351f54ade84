"""Products with packed weights: ``csrc/matmul_q.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes
from typing import Annotated

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, Call, are_in_range, shape_error
from blazr.nn.kernels.cpu.lora import Lora, lora_argument
from blazr.nn.kernels.cpu.structures import Float32, Int64, Pointer, structure
from blazr.nn.operands.lora import UNCHANGED, LoraDelta, LoraDeltas
from blazr.nn.operands.packing import GROUP, Packed

# Activations as int8 and their scales and sums, in bytes for eight numbers.
ROOM = 11


@structure
class _Matrix(ctypes.Structure):
    """``PackedMatrix`` of kernels.hpp."""

    blocks: Pointer = None
    row_scales: Pointer = None


@structure
class PackedLinear(Call, entry="packed_linear"):
    """``PackedLinear`` of kernels.hpp; the library's own part is left empty."""

    x: Pointer
    w: _Matrix
    w2: _Matrix
    bias: Pointer
    y: Pointer
    room: Pointer
    packing: Int64
    dtype: Int64
    m: Int64
    n: Int64
    k: Int64
    residual: Pointer = None
    scale: Float32 = 0.0
    lora: Lora = Lora()
    lora2: Lora = Lora()
    library: Annotated[bytes, ctypes.c_byte * 32] = b""


@structure
class _PackedRows(Call, entry="packed_rows"):
    """``PackedRows`` of kernels.hpp."""

    w: _Matrix
    ids: Pointer
    y: Pointer
    packing: Int64
    dtype: Int64
    m: Int64
    k: Int64


def packed_linear(
    x: Tensor, packed: Packed, bias: Tensor | None = None, lora: LoraDelta | None = None
) -> Tensor:
    """See ``blazr.nn.ops.packed.packed_linear``; a row's result depends on that row alone."""
    if bias is not None and (bias.shape != (packed.rows,) or bias.dtype != x.dtype):
        raise _shape_error(packed, bias)
    return _call(x, packed, None, bias, loras=UNCHANGED if lora is None else (lora, None))


def packed_gated_linear(
    x: Tensor,
    gate: Packed,
    up: Packed,
    loras: LoraDeltas = UNCHANGED,
) -> Tensor:
    """See ``blazr.nn.ops.packed.packed_gated_linear``; rounds once, at the end."""
    if gate.packing is not up.packing or gate.blocks.shape != up.blocks.shape:
        raise _shape_error(gate, up.blocks)
    return _call(x, gate, up, None, loras=loras)


def packed_rows(out: Tensor, packed: Packed, ids: Tensor) -> Tensor:
    """See ``blazr.nn.ops.packed.packed_rows``."""
    if out.shape != (len(ids), packed.columns) or ids.dtype != torch.int64:
        raise _shape_error(packed, out)
    if not are_in_range(ids, packed.rows):
        raise _shape_error(packed, ids)
    ids = ids.contiguous()
    _PackedRows(
        _matrix(packed),
        ids.data_ptr(),
        out.data_ptr(),
        packed.packing.number,
        DTYPES[out.dtype],
        out.shape[0],
        out.shape[1],
    ).run()
    return out


def _call(
    x: Tensor,
    packed: Packed,
    second: Packed | None,
    bias: Tensor | None,
    *,
    loras: LoraDeltas,
) -> Tensor:
    shape, dtype, rows, k = x.shape, x.dtype, packed.rows, packed.columns
    groups = packed.blocks.shape[0]
    if shape[-1] != k or groups != (rows + GROUP - 1) // GROUP:
        raise _shape_error(packed, x)
    x = x.contiguous()
    bias = None if bias is None else bias.contiguous()
    m = shape[0] if len(shape) == 2 else shape[:-1].numel()
    y = torch.empty(m, rows, dtype=dtype)
    room = torch.empty(m * k * ROOM // 8, dtype=torch.uint8)
    call = PackedLinear(
        x.data_ptr(),
        _matrix(packed),
        _Matrix() if second is None else _matrix(second),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        room.data_ptr(),
        packed.packing.number,
        DTYPES[dtype],
        m,
        rows,
        k,
    )
    if loras is not UNCHANGED:
        call.lora, call.lora2 = map(lora_argument, loras)
    call.run()
    return y if len(shape) == 2 else y.view(*shape[:-1], rows)


def _matrix(packed: Packed) -> _Matrix:
    scales = packed.row_scales
    return _Matrix(packed.blocks.data_ptr(), None if scales is None else scales.data_ptr())


def _shape_error(packed: Packed, other: Tensor) -> ShapeError:
    expected = f"to go with {packed.rows} rows and {packed.columns} columns"
    return shape_error("a packed matrix does not fit what it is used with.", other, expected)
