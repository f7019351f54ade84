"""Small floats as plain numbers: ``csrc/floats.hpp`` behind the op's signature."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.kernels.cpu.compiled import DTYPES, Call, shape_error
from blazr.nn.kernels.cpu.structures import Int64, Pointer, structure
from blazr.nn.operands.floats import ScaledFloats

# As ``FloatFormat`` and ``ScaleFormat`` of kernels.hpp have them.
_FORMATS = {torch.float8_e4m3fn: 0, torch.float8_e5m2: 1, torch.uint8: 2}
_SCALE_FORMATS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float8_e8m0fnu: 3,
    torch.float8_e4m3fn: 4,
}


@structure
class _DecodeFloats(Call, entry="decode_floats"):
    """``DecodeFloats`` of kernels.hpp."""

    numbers: Pointer
    scales: Pointer
    whole: Pointer
    table: Pointer
    out: Pointer
    format: Int64
    scale_format: Int64
    dtype: Int64
    rows: Int64
    first: Int64
    k: Int64
    height: Int64
    width: Int64
    is_divided: Int64


def decode_floats(out: Tensor, floats: ScaledFloats, first: int) -> Tensor:
    """See ``blazr.nn.ops.stored.decode_floats``; the same bits as its reference."""
    rows, columns = out.shape
    if columns != floats.shape[-1] or first + rows > floats.shape[0] or not out.is_contiguous():
        expected = f"to go with rows of {columns} columns"
        raise shape_error("a matrix of floats does not fit what it is used for.", out, expected)
    scales = floats.scales
    if scales.dtype not in _SCALE_FORMATS:
        scales = scales.float()
    numbers, scales = floats.numbers[first : first + rows].contiguous(), scales.contiguous()
    whole, table = (
        None if each is None else each.float().contiguous()
        for each in (floats.whole, floats.values)
    )
    height, width = floats.block
    _DecodeFloats(
        numbers.data_ptr(),
        scales.data_ptr(),
        None if whole is None else whole.data_ptr(),
        None if table is None else table.data_ptr(),
        out.data_ptr(),
        _FORMATS[numbers.dtype],
        _SCALE_FORMATS[scales.dtype],
        DTYPES[out.dtype],
        rows,
        first,
        columns,
        height,
        width,
        floats.is_divided,
    ).run()
    return out
