"""Products with weights in GGML's blocks, which are decoded within a tile.

A tile is decoded again for every ``_ROWS`` rows of x. That costs nothing where the reading of the
weight takes the time, up to ``MAX_ROWS`` rows; of more, decoding once and multiplying plain numbers
is faster, and that is what the reference does.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import dot, rounded
from blazr.nn.operands.packing import Blocks

MAX_ROWS = 256
# By type: bytes of a block, its numbers, and how many side by side share a scale.
_KINDS = {
    "Q4_0": (18, 32, 32),
    "Q8_0": (34, 32, 32),
    "MXFP4": (17, 32, 32),
    "Q4_K": (144, 256, 32),
    "Q6_K": (210, 256, 16),
}
# Of a tile: rows of x, columns of the result, and of what is multiplied.
_ROWS, _COLUMNS, _INNER = 64, 32, 64


@triton.jit
def _half(places, mask):
    """Float16 at any address."""
    low = tl.load(places, mask=mask, other=0).to(tl.uint16)
    high = tl.load(places + 1, mask=mask, other=0).to(tl.uint16)
    return (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _decoded(
    rows,
    parts,
    is_part,
    KIND: tl.constexpr,
    NBYTES: tl.constexpr,
    LENGTH: tl.constexpr,
    PART: tl.constexpr,
):
    """Numbers of rows of blocks, (N, parts, PART), as the decoders of ``quant.gguf`` define them.

    Args:
        rows: (N,), pointers to rows.
        parts: (parts,), which runs of PART numbers.
        is_part: (N, parts); of others nothing is read.
        KIND: Of the blocks.
        NBYTES: Of a block.
        LENGTH: Its numbers.
        PART: How many of them share a scale.
    """
    lanes = tl.arange(0, PART)[None, None, :]
    block = rows[:, None] + (parts * PART // LENGTH * NBYTES)[None, :]
    part = (parts % (LENGTH // PART))[None, :]  # of the block
    mask, start, which = is_part[:, :, None], block[:, :, None], part[:, :, None]
    if KIND == "Q8_0":
        codes = tl.load(start + 2 + lanes, mask=mask, other=0).to(tl.int8, bitcast=True)
        found = codes.to(tl.float32) * _half(block, is_part)[:, :, None]
    elif KIND == "Q4_0":
        codes = tl.load(start + 2 + lanes % 16, mask=mask, other=0)
        codes = (codes >> (lanes // 16 * 4).to(tl.uint8)) & 15
        found = (codes.to(tl.float32) - 8) * _half(block, is_part)[:, :, None]
    elif KIND == "MXFP4":
        codes = tl.load(start + 1 + lanes % 16, mask=mask, other=0)
        codes = ((codes >> (lanes // 16 * 4).to(tl.uint8)) & 15).to(tl.int32)
        size = codes & 7  # doubled to be whole
        size = tl.where(size < 2, size, (2 + (size & 1)) << (tl.maximum(size >> 1, 1) - 1))
        exponent = tl.load(block, mask=is_part, other=0).to(tl.uint32)
        # half of 2 ** (e - 127), the two smallest of which are subnormal
        small = tl.full(exponent.shape, 0x00200000, tl.uint32) << tl.minimum(exponent, 1)
        bits = tl.where(exponent < 2, small, (tl.maximum(exponent, 1) - 1) << 23)
        scale = bits.to(tl.float32, bitcast=True)[:, :, None]
        found = tl.where(codes < 8, size, -size).to(tl.float32) * scale
    elif KIND == "Q4_K":
        codes = tl.load(start + 16 + which // 2 * 32 + lanes, mask=mask, other=0)
        codes = (codes >> (which % 2 * 4).to(tl.uint8)) & 15
        # six bits each: of the first four parts in bytes of their own, of the others spread
        low, four = block + 4 + part % 4, part < 4
        first = tl.load(low, mask=is_part, other=0).to(tl.int32)
        second = tl.load(low + 4, mask=is_part, other=0).to(tl.int32)
        third = tl.load(low + 8, mask=is_part, other=0).to(tl.int32)
        scale = tl.where(four, first & 63, (third & 15) | (first >> 6 << 4)).to(tl.float32)
        least = tl.where(four, second & 63, (third >> 4) | (second >> 6 << 4)).to(tl.float32)
        scale = scale * _half(block, is_part)
        least = least * _half(block + 2, is_part)
        found = codes.to(tl.float32) * scale[:, :, None] - least[:, :, None]
    else:
        tl.static_assert(KIND == "Q6_K")
        half, run = which // 8, which // 2 % 4  # of 128 numbers, and of 32
        at = which % 2 * 16 + lanes
        low = tl.load(start + half * 64 + run % 2 * 32 + at, mask=mask, other=0)
        low = (low >> (run // 2 * 4).to(tl.uint8)) & 15
        high = tl.load(start + 128 + half * 32 + at, mask=mask, other=0)
        high = (high >> (run * 2).to(tl.uint8)) & 3
        codes = (low | (high << 4)).to(tl.float32) - 32
        scale = tl.load(block + 192 + part, mask=is_part, other=0).to(tl.int8, bitcast=True)
        scale = scale.to(tl.float32) * _half(block + 208, is_part)
        found = codes * scale[:, :, None]
    return found


@triton.jit
def _multiply(
    x_ptr,
    blocks_ptr,
    bias_ptr,
    out_ptr,
    x_row,
    blocks_row,
    rows,
    columns,
    size,
    KIND: tl.constexpr,
    NBYTES: tl.constexpr,
    LENGTH: tl.constexpr,
    PART: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Some rows of x times some of the weight's."""
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < rows, column < columns
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for low in range(0, size, INNER):
        inner = low + tl.arange(0, INNER)
        is_number = is_row[:, None] & (inner < size)[None, :]
        x = tl.load(x_ptr + row[:, None] * x_row + inner[None, :], mask=is_number, other=0)
        parts = low // PART + tl.arange(0, INNER // PART)
        is_part = is_column[:, None] & (parts * PART < size)[None, :]
        weight = _decoded(
            blocks_ptr + column * blocks_row, parts, is_part, KIND, NBYTES, LENGTH, PART
        )
        weight = rounded(tl.reshape(weight, (COLUMNS, INNER)), x.dtype)
        acc = dot(x, tl.trans(weight), acc)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + column, mask=is_column, other=0)
        acc += bias.to(tl.float32)[None, :]
    places = out_ptr + row[:, None] * columns + column[None, :]
    is_kept = is_row[:, None] & is_column[None, :]
    tl.store(places, rounded(acc, out_ptr.dtype.element_ty), mask=is_kept)


def _fits(x: Tensor, weight: Blocks, _: Tensor | None = None) -> bool:
    return weight.kind.name in _KINDS and x.numel() <= MAX_ROWS * x.shape[-1]


@limited_to(_fits)
def block_linear(x: Tensor, weight: Blocks, bias: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.blocks.block_linear``."""
    nbytes, length, part = _KINDS[weight.kind.name]
    columns, size = len(weight.blocks), x.shape[-1]
    out = x.new_empty(*x.shape[:-1], columns)
    if not out.numel():
        return out
    x = x.reshape(-1, size)
    x = x if x.stride(1) == 1 else x.contiguous()
    blocks = weight.blocks if weight.blocks.stride(1) == 1 else weight.blocks.contiguous()
    _multiply[triton.cdiv(columns, _COLUMNS), triton.cdiv(len(x), _ROWS)](
        x,
        blocks,
        x if bias is None else bias.contiguous(),
        out,
        x.stride(0),
        blocks.stride(0),
        len(x),
        columns,
        size,
        KIND=weight.kind.name,
        NBYTES=nbytes,
        LENGTH=length,
        PART=part,
        HAS_BIAS=bias is not None,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        INNER=_INNER,
    )
    return out
