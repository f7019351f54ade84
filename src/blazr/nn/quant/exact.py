"""Quantized matrices repacked as GGML blocks, where these stand for exactly the same numbers.

``(q - zero) * scale`` with a float16 scale is ``(q - 8) * scale``, which is a block of Q4_0 (or
with 128 of Q8_0), plus ``(8 - zero) * scale``, which is one number for a whole group: the sum of a
group's inputs times that number is added to the product. Codes of fewer bits lie in the middle of
those of a block, because what kernels lose by rounding inputs grows with ``q - 8``. Where a row has
one scale, the blocks' scales are 1 and the product is multiplied with it, whatever float it is.
Columns whose groups are not runs are put in the order of their groups, and inputs with them.

``q * scale + offset`` with both in float16 and up to four bits is a block of Q4_1; otherwise the
offset is part of the number for a group.

MXFP4 is a GGML type, too, which differs only in the order of the numbers in a block.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import override

from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.operands.packing import Blocks, BlockType, ShiftedBlocks, scale_and_shift
from blazr.nn.ops.matmul import linear
from blazr.nn.ops.pointwise import take_columns
from blazr.nn.ops.stored import stored_linear
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.hf.scheme import Grid
from blazr.nn.quant.weight import GgufWeight, StoredWeight, Weight

_NVFP4_GROUP = 16  # columns with one scale
_NAN_E4M3 = 0x7F
_NARROW, _WIDE = 4, 8
_KINDS = {_NARROW: GGML_TYPES["Q4_0"], _WIDE: GGML_TYPES["Q8_0"]}
_WITH_OFFSETS = GGML_TYPES["Q4_1"]


class ShiftedWeight(Weight):
    """A matrix in blocks, with rows scaled, numbers added by group, or columns in another order.

    Or a stack of them.

    Args:
        inner: The blocks.
        scale: (..., out), float32: what rows are multiplied with; None for 1.
        shift: (..., out, G), float32: what is then added to a row's groups; None for nothing.
        order: (..., in / piece), int64: which piece of the columns each of the inner ones is; None
            for the same.
        piece: Columns that stay together.
    """

    inner: Weight
    scale: Tensor | None
    shift: Tensor | None
    order: Tensor | None

    def __init__(
        self,
        inner: Weight,
        *,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        order: Tensor | None = None,
        piece: int = 1,
    ) -> None:
        super().__init__(tuple(inner.shape), inner.dtype)
        self.inner = inner
        self.piece = piece
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.register_buffer("order", order)

    @property
    @override
    def operand(self) -> ShiftedBlocks | None:  # type: ignore[override]  # read only
        blocks = self.inner.operand
        if self.piece > 1 or not isinstance(blocks, Blocks):
            return None
        return ShiftedBlocks(blocks, self.scale, self.shift, self.order)

    @override
    def tensors(self) -> Iterator[Tensor]:
        yield from self.inner.tensors()
        yield from self.buffers(recurse=False)

    @override
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        operand = None if x.device.type == "cpu" else self.operand
        if operand is not None:  # on a CPU the inner blocks are packed
            return stored_linear(x, operand, bias)
        if self.order is not None:
            x = take_columns(x, self.order, self.piece)
        if self.scale is None and self.shift is None:
            return self.inner.matmul(x, bias)
        wide = torch.promote_types(x.dtype, torch.float32)
        y = self.inner.matmul(x).to(wide)
        if self.scale is not None:
            y = y * self.scale
        if self.shift is not None:
            sums = x.to(wide).unflatten(-1, (self.shift.shape[1], -1)).sum(-1)
            y = y + linear(sums, self.shift.to(wide))
        return (y if bias is None else y + bias).to(x.dtype)

    @override
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        if self.order is not None and self.order.dim() > 1:
            return super().dequantize(dtype)  # each matrix has an order of its own
        whole = self.inner.dequantize(torch.float32)
        return self._in_place(scale_and_shift(whole, self.scale, self.shift)).to(dtype)

    @override
    def rows(self, ids: Tensor) -> Tensor:
        scale, shift = (None if each is None else each[ids] for each in (self.scale, self.shift))
        inner = scale_and_shift(self.inner.rows(ids).float(), scale, shift)
        return self._in_place(inner).to(self.dtype)

    @override
    def select(self, index: int) -> ShiftedWeight:
        scale, shift, order = (
            None if each is None else each[index] for each in (self.scale, self.shift, self.order)
        )
        inner = self.inner.select(index)
        return ShiftedWeight(inner, scale=scale, shift=shift, order=order, piece=self.piece)

    def _in_place(self, inner: Tensor) -> Tensor:
        """The matrix with its columns in the order of the inputs."""
        if self.order is None:
            return inner
        pieces = inner.unflatten(-1, (-1, self.piece))
        return pieces[..., self.order.argsort(), :].flatten(-2)


def in_blocks(weight: StoredWeight) -> Weight:
    """The same numbers in blocks; the weight itself where blocks cannot stand for them exactly."""
    tiles = list(weight.tiles())
    first = weight.layout.grid(weight.parts, tiles[0]) if tiles else None
    if first is None or not _is_even(first):
        return weight
    if first.offsets is not None and first.bits <= _NARROW:
        found = _blocks_with_offsets(weight)
        if found is not None:
            return found
    order = None if first.groups is None else first.groups.argsort(stable=True)
    if order is not None and torch.equal(order, torch.arange(len(order), device=order.device)):
        order = None
    rows, groups = weight.shape[0], first.scales.shape[1]
    bits = _NARROW if first.bits <= _NARROW else _WIDE
    kind = _KINDS[bits]
    center = 2 ** (first.bits - 1)
    lift = 2 ** (bits - 1) - center
    size = rows, kind.row_bytes(weight.shape[1])
    blocks = torch.empty(size, dtype=torch.uint8, device=weight.device)
    scale = torch.empty(rows, device=weight.device) if groups == 1 else None
    shift = torch.zeros((rows, groups), device=weight.device)
    for tile in tiles:
        part = weight.layout.grid(weight.parts, tile)
        assert part is not None
        shift[tile] = (center + part.low - part.zeros).float() * part.scales
        if part.offsets is not None:
            shift[tile] += part.offsets
        if scale is not None:
            scale[tile] = part.scales[:, 0]
        halves = part.scales.half() if scale is None else torch.ones_like(part.scales).half()
        if scale is None and not torch.equal(halves.float(), part.scales):
            return weight
        codes = part.codes if order is None else part.codes[:, order]
        blocks[tile] = make_blocks(kind, codes - part.low + lift, halves)
    inner = GgufWeight(blocks, kind, weight.dtype)
    moved = shift if shift.count_nonzero() else None
    if scale is None and moved is None and order is None:
        return inner
    return ShiftedWeight(inner, scale=scale, shift=moved, order=order)


def _blocks_with_offsets(weight: StoredWeight) -> GgufWeight | None:
    """Numbers with offsets, of up to four bits and in runs, in blocks of Q4_1.

    Returns:
        None where a scale or an offset is no float16.
    """
    kind = _WITH_OFFSETS
    size = weight.shape[0], kind.row_bytes(weight.shape[1])
    blocks = torch.empty(size, dtype=torch.uint8, device=weight.device)
    for tile in weight.tiles():
        part = weight.layout.grid(weight.parts, tile)
        assert part is not None
        assert part.offsets is not None
        codes = part.codes - part.low
        lowest = (part.low - part.zeros).float() * part.scales + part.offsets
        # of a group of zeros the scale is the least that bfloat16 has, and says nothing
        is_used = codes.unflatten(1, (part.scales.shape[1], -1)).any(-1)
        wide = torch.stack((part.scales * is_used, lowest), -1)
        halves = wide.half()
        if not torch.equal(halves.float(), wide):
            return None
        count = weight.shape[1] // kind.length // part.scales.shape[1]
        head = halves.repeat_interleave(count, 1).view(torch.uint8)
        body = _two_a_byte(codes, kind)
        blocks[tile] = torch.cat((head, body), -1).flatten(1)
    return GgufWeight(blocks, kind, weight.dtype)


def plain_blocks(weight: StoredWeight) -> GgufWeight | None:
    """The same numbers in blocks alone, as files have them; None where blocks cannot hold them.

    A scale for a whole row becomes that of each of its blocks.
    """
    found = in_blocks(weight)
    if not isinstance(found, ShiftedWeight):
        return found if isinstance(found, GgufWeight) else None
    inner, scale = found.inner, found.scale
    assert isinstance(inner, GgufWeight)
    if scale is None or found.shift is not None or found.order is not None:
        return None
    halves = scale.half()
    if not torch.equal(halves.float(), scale):
        return None
    codes, _ = take_blocks(inner.kind, inner.blocks)
    return GgufWeight(make_blocks(inner.kind, codes, halves[:, None]), inner.kind, inner.dtype)


def _is_even(grid: Grid) -> bool:
    """Whether all groups are whole blocks and of one size, once columns are sorted by group."""
    columns, count = grid.codes.shape[1], grid.scales.shape[1]
    size = columns // max(1, count)
    if size * count != columns or size == 0 or size % _KINDS[_NARROW].length:
        return False
    if grid.groups is None:
        return min(grid.size, columns) == size
    return bool((grid.groups.bincount(minlength=count) == size).all())


def make_blocks(kind: BlockType, codes: Tensor, scales: Tensor) -> Tensor:
    """Blocks of Q4_0 or Q8_0.

    Args:
        kind: Which.
        codes: (R, in), whole numbers from 0.
        scales: (R, G), float16, of equal runs of columns.

    Returns:
        (R, bytes of a row), uint8.
    """
    if kind.name == "Q4_0":
        body = _two_a_byte(codes, kind)
    else:
        body = codes.to(torch.uint8).view(len(codes), -1, kind.length) ^ 0x80
    each = scales.repeat_interleave(body.shape[1] // scales.shape[1], 1)
    return torch.cat((each[..., None].contiguous().view(torch.uint8), body), -1).flatten(1)


def _two_a_byte(codes: Tensor, kind: BlockType) -> Tensor:
    """Codes from 0, (R, in), as bytes that hold a block's halves: (R, blocks, length / 2)."""
    low, high = codes.to(torch.uint8).view(len(codes), -1, kind.length).chunk(2, -1)
    return low | (high << 4)


def take_blocks(kind: BlockType, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The codes from 0, (R, in) uint8, and the scales, (R, blocks) float16, of `make_blocks`."""
    each = blocks.unflatten(1, (-1, kind.nbytes))
    scales = each[..., :2].contiguous().view(torch.float16)[..., 0]
    body = each[..., 2:]
    codes = torch.cat((body & 15, body >> 4), -1) if kind.name == "Q4_0" else body ^ 0x80
    return codes.flatten(1), scales


def mxfp4_blocks(numbers: Tensor, exponents: Tensor) -> Tensor:
    """MXFP4 as Hugging Face stores it, as GGML blocks of MXFP4.

    There neighbours share a byte, here the halves of a block do.

    Args:
        numbers: (..., blocks, 16) uint8: the even number of a pair in the lower half of a byte.
        exponents: (..., blocks) uint8, biased by 127.

    Returns:
        (..., blocks * 17), uint8.

    Source: OCP Microscaling Formats (MX) specification 1.0, section 5.3.3.
    """
    return torch.cat((exponents.unsqueeze(-1), _in_halves(numbers)), -1).flatten(-2)


def _in_halves(pairs: Tensor) -> Tensor:
    """Runs of bytes of two codes each, (..., W): with the halves of a run in a byte, not pairs."""
    codes = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)
    low, high = codes.chunk(2, -1)
    return low | (high << 4)


def mxfp4_of_floats(floats: ScaledFloats) -> Tensor | None:
    """MXFP4 as matrices of small floats have it, as GGML blocks of MXFP4.

    Args:
        floats: (..., out, in).

    Returns:
        (..., out, in / 32 * 17), uint8; None where they are other floats.
    """
    has_exponents = floats.scales.dtype == torch.float8_e8m0fnu and floats.whole is None
    length = GGML_TYPES["MXFP4"].length
    if not floats.are_pairs or not has_exponents or floats.block != (1, length):
        return None
    numbers = floats.numbers.unflatten(-1, (-1, length // 2))
    return mxfp4_blocks(numbers, floats.scales.view(torch.uint8))


def nvfp4_blocks(floats: ScaledFloats) -> Tensor | None:
    """NVFP4 as Hugging Face's checkpoints have it, as GGML blocks without the matrix's own factor.

    Args:
        floats: (..., out, in).

    Returns:
        (..., out, in / 64 * 36), uint8; None where they are other floats, or blocks cannot hold
        their scales or a part of a block.
    """
    are_four_bits = floats.are_pairs and floats.block == (1, _NVFP4_GROUP)
    if not are_four_bits or floats.shape[-1] % GGML_TYPES["NVFP4"].length:
        return None
    if floats.scales.dtype != torch.float8_e4m3fn:
        return None
    scales = floats.scales.view(torch.uint8)
    if (scales >= _NAN_E4M3).any():  # or negative, which blocks have no bit for
        return None
    numbers = _in_halves(floats.numbers.unflatten(-1, (-1, _NVFP4_GROUP // 2)))
    parts = (scales.unflatten(-1, (-1, 4)), numbers.unflatten(-2, (-1, 4)).flatten(-2))
    return torch.cat(parts, -1).flatten(-2)


def mxfp4_from_pairs(blocks: Tensor) -> Tensor:
    """A copy of MXFP4 blocks that have neighbours in a byte, as GGML has them.

    Args:
        blocks: (..., blocks * 17) uint8, each an exponent and 16 bytes of numbers.

    Source: GGML type 4 of Ollama 0.11, ``ml/backend/ggml/ggml.go``.
    """
    found = blocks.clone(memory_format=torch.contiguous_format)
    for tile in found.view(-1, 17).split(2**16):  # what is needed besides stays small
        tile.copy_(mxfp4_blocks(tile[:, 1:], tile[:, 0]).view(-1, 17))
    return found
