"""Tiles of weights: plain numbers, GGML's blocks, or small floats with scales."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.triton.numbers import (
    float_of_e4m3,
    float_of_e5m2,
    float_of_e8m0,
    rounded,
    twice_e2m1,
)
from blazr.nn.kernels.triton.tensors import dense
from blazr.nn.operands.floats import ScaledFloats, StoredMatrix
from blazr.nn.operands.packing import IQ4_VALUES, Blocks, ShiftedBlocks

# By type: bytes of a block, its numbers, and how many side by side share a scale.
KINDS = {
    "Q4_0": (18, 32, 32),
    "Q4_1": (20, 32, 32),
    "Q5_0": (22, 32, 32),
    "Q5_1": (24, 32, 32),
    "Q8_0": (34, 32, 32),
    "IQ4_NL": (18, 32, 32),
    "MXFP4": (17, 32, 32),
    "IQ4_XS": (136, 256, 32),
    "Q2_K": (84, 256, 16),
    "Q3_K": (110, 256, 16),
    "Q4_K": (144, 256, 32),
    "Q5_K": (176, 256, 32),
    "Q6_K": (210, 256, 16),
}
_FLOATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.uint8: "e2m1"}
_SMALL_SCALES = {torch.float8_e4m3fn: "e4m3", torch.float8_e8m0fnu: "e8m0"}
# Of a tile, the columns that are multiplied; those of 4-byte numbers would take more registers
# than there are.
INNER, WIDE_INNER = 64, 32
_SHORTEST = 16  # run of columns that share a scale
# Eight of these values each, a byte a value.
_LOW_IQ4, _HIGH_IQ4 = (
    tl.constexpr(int.from_bytes(bytes(value & 0xFF for value in half), "little"))
    for half in (IQ4_VALUES[:8], IQ4_VALUES[8:])
)


class Stored(NamedTuple):
    """A matrix or a stack of them, for a kernel.

    Args:
        arguments: Its numbers, scales and what multiplies these, or the table of its codes, and how
            far it is from a matrix, a row and a column to the next, and from a matrix's scales and
            a row's to the next.
        form: How it is stored: the kind; of blocks the bytes and numbers; how many numbers side
            by side share a scale; of floats a block's height and width, what is done to all
            scales, and what these are, where they have eight bits. Of shifted blocks see
            `_stored_shifted`.
    """

    arguments: tuple[Tensor | int, ...]
    form: tuple[str | int, ...]


def can_read(weight: object) -> bool:
    """Whether `stored` takes it."""
    if isinstance(weight, ShiftedBlocks):
        if not can_read(weight.inner):
            return False
        groups = 1 if weight.shift is None else weight.shift.shape[-1]
        return weight.shape[-1] // groups % KINDS[weight.inner.kind.name][2] == 0
    if isinstance(weight, Blocks):
        return weight.kind.name in KINDS
    if isinstance(weight, ScaledFloats):
        width = weight.block[1]
        return width >= weight.shape[-1] or gcd(width, WIDE_INNER) >= _SHORTEST
    return isinstance(weight, Tensor)


def stored(weight: Tensor | StoredMatrix, inner: int) -> Stored:
    """A weight for a kernel; of shifted blocks the columns as the blocks have them.

    Args:
        weight: (..., out, in).
        inner: Columns that the kernel multiplies at a time.
    """
    if isinstance(weight, Tensor):
        stack = weight.stride(0) if weight.dim() == 3 else 0
        row, column = weight.stride()[-2:]
        arguments = (weight, weight, weight, stack, row, column, 0, 0)
        return Stored(arguments, ("plain", 0, 0, 0, 0, 0, "", ""))
    if isinstance(weight, ShiftedBlocks):
        return _stored_shifted(weight, inner)
    if isinstance(weight, Blocks):
        blocks = dense(weight.blocks)
        stack = blocks.stride(0) if blocks.dim() == 3 else 0
        arguments = (blocks, blocks, blocks, stack, blocks.stride(-2), 1, 0, 0)
        return Stored(arguments, (weight.kind.name, *KINDS[weight.kind.name], 0, 0, "", ""))
    kind = _FLOATS[weight.numbers.dtype] if weight.table is None else "codes"
    is_stack = weight.numbers.dim() == 3
    numbers, scales = weight.numbers.contiguous().view(torch.uint8), weight.scales.contiguous()
    height, width = weight.block
    # a row's only scale may have any width
    part, width = (inner, 1 << 30) if width >= weight.shape[-1] else (gcd(width, inner), width)
    whole = ""
    if weight.whole is not None:
        whole = "divides" if weight.is_divided else "multiplies"
    assert weight.whole is None or weight.table is None, "no format has both"
    beside = weight.table if weight.whole is None else weight.whole
    small = _SMALL_SCALES.get(scales.dtype, "")
    scales = scales.view(torch.uint8) if small else scales
    arguments = (
        numbers,
        scales,
        scales if beside is None else beside.contiguous(),
        numbers.stride(0) if is_stack else 0,
        numbers.stride(-2),
        1,
        scales.stride(0) if is_stack else 0,
        scales.stride(-2),
    )
    return Stored(arguments, (kind, 0, 0, part, height, width, whole, small))


def _stored_shifted(weight: ShiftedBlocks, inner: int) -> Stored:
    """Shifts are where floats have scales, and scales of rows where these have that of all."""
    (blocks, *_, stack, row, column, _, _), form = stored(weight.inner, inner)
    beside = (weight.scale, weight.shift)
    scale, shift = (None if each is None else each.contiguous() for each in beside)
    groups = 0 if shift is None else shift.shape[-1]
    arguments = (
        blocks,
        blocks if shift is None else shift,
        blocks if scale is None else scale,
        stack,
        row,
        column,
        weight.shape[-2] * groups,
        groups,
    )
    width = weight.shape[-1] // groups if groups else 0
    how = "" if scale is None else "rows"
    return Stored(arguments, (*form[:4], weight.shape[-2], width, how, ""))


@triton.jit
def _half(places, mask):
    """Float16 at any address."""
    low = tl.load(places, mask=mask, other=0).to(tl.uint16)
    high = tl.load(places + 1, mask=mask, other=0).to(tl.uint16)
    return (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _field(places, mask, which, BITS: tl.constexpr):
    """One of the equal fields of bytes, from the lowest on."""
    found = tl.load(places, mask=mask, other=0)
    return (found >> (which * BITS).to(tl.uint8)) & (2**BITS - 1)


@triton.jit
def _iq4(codes):
    """What codes of IQ4_NL and IQ4_XS stand for."""
    low, high = tl.full((), _LOW_IQ4, tl.uint64), tl.full((), _HIGH_IQ4, tl.uint64)
    values = tl.where(codes < 8, low, high) >> (codes % 8 * 8).to(tl.uint64)
    return (values & 0xFF).to(tl.uint8).to(tl.int8, bitcast=True).to(tl.float32)


@triton.jit
def _six_bits(block, part, is_part):
    """The scales and minima of parts of a K block: of the first four bytes of their own."""
    low, four = block + 4 + part % 4, part < 4
    first = tl.load(low, mask=is_part, other=0).to(tl.int32)
    second = tl.load(low + 4, mask=is_part, other=0).to(tl.int32)
    third = tl.load(low + 8, mask=is_part, other=0).to(tl.int32)
    scale = tl.where(four, first & 63, (third & 15) | (first >> 6 << 4)).to(tl.float32)
    least = tl.where(four, second & 63, (third >> 4) | (second >> 6 << 4)).to(tl.float32)
    return scale * _half(block, is_part), least * _half(block + 2, is_part)


@triton.jit
def _from_blocks(rows, parts, is_part, FORM: tl.constexpr):
    """Numbers of rows of blocks, (N, parts, PART), as the decoders of ``quant.gguf`` define them.

    Args:
        rows: (N,), pointers to rows.
        parts: (parts,), which runs of PART numbers.
        is_part: (N, parts); of others nothing is read.
        FORM: See `Stored`.
    """
    KIND: tl.constexpr = FORM[0]
    PER_BLOCK: tl.constexpr = FORM[2] // FORM[3]
    lanes = tl.arange(0, FORM[3])[None, None, :]
    block = rows[:, None] + (parts // PER_BLOCK * FORM[1])[None, :]
    part = (parts % PER_BLOCK)[None, :]  # of the block
    mask, start, which = is_part[:, :, None], block[:, :, None], part[:, :, None]
    at = which % 2 * 16 + lanes  # of 32 numbers, where 16 share a scale
    if KIND == "Q8_0":
        codes = tl.load(start + 2 + lanes, mask=mask, other=0).to(tl.int8, bitcast=True)
        found = codes.to(tl.float32) * _half(block, is_part)[:, :, None]
    elif KIND == "Q4_0":
        codes = _field(start + 2 + lanes % 16, mask, lanes // 16, 4)
        found = (codes.to(tl.float32) - 8) * _half(block, is_part)[:, :, None]
    elif KIND == "Q4_1":
        codes = _field(start + 4 + lanes % 16, mask, lanes // 16, 4).to(tl.float32)
        least = _half(block + 2, is_part)
        found = codes * _half(block, is_part)[:, :, None] + least[:, :, None]
    elif KIND == "Q5_0":
        codes = _field(start + 6 + lanes % 16, mask, lanes // 16, 4)
        codes = codes | (_field(start + 2 + lanes // 8, mask, lanes % 8, 1) << 4)
        found = (codes.to(tl.float32) - 16) * _half(block, is_part)[:, :, None]
    elif KIND == "Q5_1":
        codes = _field(start + 8 + lanes % 16, mask, lanes // 16, 4)
        codes = codes | (_field(start + 4 + lanes // 8, mask, lanes % 8, 1) << 4)
        least = _half(block + 2, is_part)
        found = codes.to(tl.float32) * _half(block, is_part)[:, :, None] + least[:, :, None]
    elif KIND == "IQ4_NL":
        codes = _field(start + 2 + lanes % 16, mask, lanes // 16, 4)
        found = _iq4(codes) * _half(block, is_part)[:, :, None]
    elif KIND == "IQ4_XS":
        codes = _field(start + 8 + which * 16 + lanes % 16, mask, lanes // 16, 4)
        scale = _field(block + 4 + part // 2, is_part, part % 2, 4)
        scale = scale | (_field(block + 2 + part // 4, is_part, part % 4, 2) << 4)
        scale = (scale.to(tl.float32) - 32) * _half(block, is_part)
        found = _iq4(codes) * scale[:, :, None]
    elif KIND == "Q2_K":
        codes = _field(start + 16 + which // 8 * 32 + at, mask, which // 2 % 4, 2)
        both = tl.load(block + part, mask=is_part, other=0)
        scale = (both & 15).to(tl.float32) * _half(block + 80, is_part)
        least = (both >> 4).to(tl.float32) * _half(block + 82, is_part)
        found = codes.to(tl.float32) * scale[:, :, None] - least[:, :, None]
    elif KIND == "Q3_K":
        codes = _field(start + 32 + which // 8 * 32 + at, mask, which // 2 % 4, 2)
        codes = codes | (_field(start + at, mask, which // 2, 1) << 2)
        scale = _field(block + 96 + part % 8, is_part, part // 8, 4)
        scale = scale | (_field(block + 104 + part % 4, is_part, part // 4, 2) << 4)
        scale = (scale.to(tl.float32) - 32) * _half(block + 108, is_part)
        found = (codes.to(tl.float32) - 4) * scale[:, :, None]
    elif KIND == "MXFP4":
        codes = _field(start + 1 + lanes % 16, mask, lanes // 16, 4).to(tl.int32)
        exponent = tl.load(block, mask=is_part, other=0).to(tl.uint32)
        # half of 2 ** (e - 127), the two smallest of which are subnormal
        small = tl.full(exponent.shape, 0x00200000, tl.uint32) << tl.minimum(exponent, 1)
        bits = tl.where(exponent < 2, small, (tl.maximum(exponent, 1) - 1) << 23)
        found = twice_e2m1(codes) * bits.to(tl.float32, bitcast=True)[:, :, None]
    elif KIND == "Q4_K":
        codes = _field(start + 16 + which // 2 * 32 + lanes, mask, which % 2, 4)
        scale, least = _six_bits(block, part, is_part)
        found = codes.to(tl.float32) * scale[:, :, None] - least[:, :, None]
    elif KIND == "Q5_K":
        codes = _field(start + 48 + which // 2 * 32 + lanes, mask, which % 2, 4)
        codes = codes | (_field(start + 16 + lanes, mask, which, 1) << 4)
        scale, least = _six_bits(block, part, is_part)
        found = codes.to(tl.float32) * scale[:, :, None] - least[:, :, None]
    else:
        tl.static_assert(KIND == "Q6_K")
        half, run = which // 8, which // 2 % 4  # of 128 numbers, and of 32
        codes = _field(start + half * 64 + run % 2 * 32 + at, mask, run // 2, 4)
        codes = codes | (_field(start + 128 + half * 32 + at, mask, run, 2) << 4)
        scale = tl.load(block + 192 + part, mask=is_part, other=0).to(tl.int8, bitcast=True)
        scale = scale.to(tl.float32) * _half(block + 208, is_part)
        found = (codes.to(tl.float32) - 32) * scale[:, :, None]
    return found


@triton.jit
def _from_floats(rows, scale_rows, beside_ptr, matrix, parts, is_part, size, FORM: tl.constexpr):
    """The same of rows of small floats, as `ScaledFloats.decode` defines them.

    Args:
        rows: (N,), pointers to rows.
        scale_rows: (N,), pointers to the scales of their blocks.
        beside_ptr: To what multiplies or divides all scales of each matrix, or to the table.
        matrix: Which of a stack.
        parts: (parts,), which runs of PART numbers.
        is_part: (N, parts); of others nothing is read.
        size: Columns of the weight.
        FORM: See `Stored`.
    """
    KIND: tl.constexpr = FORM[0]
    PART: tl.constexpr = FORM[3]
    lanes = tl.arange(0, PART)[None, None, :]
    places = (parts * PART)[None, :, None] + lanes
    scale_places = scale_rows[:, None] + (parts * PART // FORM[5])[None, :]
    scale = tl.load(scale_places, mask=is_part, other=0)
    if FORM[7] == "e4m3":
        scale = float_of_e4m3(scale)
    elif FORM[7] == "e8m0":
        scale = float_of_e8m0(scale)
    else:
        scale = scale.to(tl.float32)
    if FORM[6] == "multiplies":
        scale = scale * tl.load(beside_ptr + matrix)
    elif FORM[6] == "divides":
        scale = tl.div_rn(scale, tl.load(beside_ptr + matrix) + tl.zeros_like(scale))
    mask, row = is_part[:, :, None] & (places < size), rows[:, None, None]
    if KIND == "e2m1":
        codes = _field(row + places // 2, mask, places % 2, 4)
        found = twice_e2m1(codes.to(tl.int32)) * 0.5
    elif KIND == "codes":
        found = tl.load(beside_ptr + _field(row + places // 2, mask, places % 2, 4))
    else:
        codes = tl.load(row + places, mask=mask, other=0)
        if KIND == "e4m3":
            found = float_of_e4m3(codes)
        else:
            tl.static_assert(KIND == "e5m2")
            found = float_of_e5m2(codes)
    return found * scale[:, :, None]


@triton.jit
def weight_tile(
    weight,
    matrix,
    rows,
    is_row,
    low,
    size,
    dtype: tl.constexpr,
    FORM: tl.constexpr,
    INNER: tl.constexpr,
):
    """Some rows of a weight, INNER columns of each.

    Args:
        weight: See `Stored.arguments`.
        matrix: Which of a stack.
        rows: (N,), int64.
        is_row: (N,); of others nothing is read.
        low: The first of the columns.
        size: Columns of the weight.
        dtype: Of the result.
        FORM: See `Stored`.
        INNER: A multiple of the columns that share a scale.

    Returns:
        (N, INNER), zero where there is no such row; so are columns beyond the last of plain ones.
    """
    numbers, scales, whole, stack, row, column, scale_stack, scale_row = weight
    inner = low + tl.arange(0, INNER)
    starts = numbers + matrix * stack + rows * row
    if FORM[0] == "plain":
        is_number = is_row[:, None] & (inner < size)[None, :]
        found = tl.load(starts[:, None] + inner[None, :] * column, mask=is_number, other=0)
    else:
        PART: tl.constexpr = FORM[3]
        parts = low // PART + tl.arange(0, INNER // PART)
        is_part = is_row[:, None] & (parts * PART < size)[None, :]
        if FORM[1] > 0:
            found = _from_blocks(starts, parts, is_part, FORM)
            if FORM[6] == "rows":
                own = tl.load(whole + matrix * FORM[4] + rows, mask=is_row, other=0)
                found = found * own[:, None, None]
            if FORM[5] > 0:
                shifts = scales + matrix * scale_stack + rows * scale_row
                places = shifts[:, None] + (parts * PART // FORM[5])[None, :]
                found = found + tl.load(places, mask=is_part, other=0)[:, :, None]
        else:
            scale_rows = scales + matrix * scale_stack + rows // FORM[4] * scale_row
            found = _from_floats(starts, scale_rows, whole, matrix, parts, is_part, size, FORM)
        found = tl.reshape(found, (rows.shape[0], INNER))
        found = rounded(found, dtype)
    return found
