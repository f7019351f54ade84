"""Products with weights packed for processors: 16 rows interleaved, activations as int8."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.compile import fingerprint
from blazr.nn.operands.lora import UNCHANGED, LoraDelta, LoraDeltas
from blazr.nn.operands.packing import BLOCK, GROUP, Packed, Packing
from blazr.nn.ops.lora import change_product
from blazr.nn.ops.op import op

_VECTORS = 8  # of 64 bytes in a block: four columns of 16 rows each


def layouts() -> str:
    """What tells the packings of these kernels from those of others."""
    return fingerprint()


def interleave(packing: Packing, codes: Tensor, scales: Sequence[Tensor]) -> Tensor:
    """Put a matrix in the order that kernels read.

    Args:
        packing: The layout.
        codes: (out, in), uint8, with the offset in them.
        scales: What is before the codes: (out, superblocks, how many, bytes) uint8 each.

    Returns:
        (out / 16 rounded up, superblocks, bytes of a superblock), uint8; rows added are zero.

    Raises:
        ShapeError: The rows are no whole superblocks.
    """
    rows, columns = codes.shape
    if columns % packing.columns:
        raise ShapeError(
            "rows are whole blocks.",
            found=f"{columns} columns",
            expected=f"a multiple of {packing.columns}",
        )
    missing = -rows % GROUP
    if missing:
        codes = F.pad(codes, (0, 0, 0, missing))
        scales = [F.pad(each, (0, 0, 0, 0, 0, 0, 0, missing)) for each in scales]
    # four columns are a word, so that words are what moves
    words = codes.contiguous().view(torch.int32).view(-1, GROUP, columns // BLOCK, _VECTORS)
    vectors = words.permute(0, 2, 3, 1).contiguous().view(torch.uint8)  # (..., vectors, 64)
    supers = columns // packing.columns
    lines = _vectors_to_bytes(packing, vectors).view(len(vectors), supers, -1)
    before = [
        each.unflatten(0, (-1, GROUP)).permute(0, 2, 3, 1, 4).reshape(len(vectors), supers, -1)
        for each in scales
    ]
    return torch.cat([*before, lines], -1)


def _vectors_to_bytes(packing: Packing, vectors: Tensor) -> Tensor:
    """The bytes of blocks from their eight vectors: (..., 8, 64) to (..., bytes)."""
    parts = []
    for bits in packing.fields:
        # a byte of a line has a field of each of so many vectors
        fields = (vectors & (2**bits - 1)).unflatten(-2, (bits, _VECTORS // bits))
        parts.append((fields << _shifts(bits)).sum(-2, dtype=torch.uint8))
        vectors = vectors >> (bits % _VECTORS)
    return torch.cat([part.flatten(-2) for part in parts], -1)


def unpack(packed: Packed) -> Tensor:
    """A packed matrix as plain numbers, (rows, columns), float32."""
    whole = _numbers(packed.packing, packed.blocks).flatten(0, 1)[: packed.rows]
    return whole if packed.row_scales is None else whole * packed.row_scales[:, None]


def decode_codes(packing: Packing, codes: Tensor, before: Sequence[Tensor]) -> Tensor:
    """The numbers that codes and scales of superblocks stand for.

    Args:
        packing: The layout.
        codes: (..., columns), uint8, with the offset in them.
        before: What is before the codes: (..., how many, bytes) uint8 each.

    Returns:
        (..., columns), float32.
    """
    if packing.table:
        table = torch.tensor(packing.table, dtype=torch.float32, device=codes.device)
        values = table[codes.int()]
    else:
        values = codes.float()
        values = values - packing.offset if packing.offset else values
    scales, minima = _scales(packing, before)
    numbers = values.unflatten(-1, (scales.shape[-2], -1)) * scales
    return (numbers if minima is None else numbers - minima).flatten(-2)


def _scales(packing: Packing, before: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Scales and minima, (..., 1 or all parts, 1) float32 each."""

    def read(place: int, dtype: torch.dtype) -> Tensor:
        # a view needs bytes that lie together and are aligned
        return before[place].clone(memory_format=torch.contiguous_format).view(dtype).float()

    if packing.scales == "none":
        return torch.ones(1, 1), None
    if packing.scales == "exponent":
        exponents = before[0].int()
        # half of 2 ** (e - 127), the two smallest of which are subnormal
        small = 0x00200000 << exponents.clamp(max=1)
        bits = torch.where(exponents < 2, small, (exponents - 1) << 23)
        return bits.view(torch.float32), None
    scales, minima = read(0, torch.float16), None
    match packing.scales:
        case "half, minimum":
            minima = read(1, torch.float16)
        case "half, zero":
            minima = scales * before[1].float()
        case "signed":
            scales = scales * read(1, torch.int8) * packing.unit
        case "minimum":
            scales = scales * before[2].float()
            minima = read(1, torch.float16) * before[3].float()
    return scales, minima


def _numbers(packing: Packing, blocks: Tensor) -> Tensor:
    """(groups, superblocks, bytes) to (groups, 16, columns), float32."""
    sizes = [GROUP * many * size for many, size in packing.before]
    *before, body = blocks.split([*sizes, packing.nbytes - sum(sizes)], -1)
    vectors = _bytes_to_vectors(packing, body.unflatten(-1, (packing.blocks, -1)))
    words = vectors.reshape(*blocks.shape[:2], packing.columns // 4, GROUP, 4)
    codes = words.permute(0, 3, 1, 2, 4).flatten(3)
    rows = [
        each.unflatten(-1, (many, GROUP, size)).permute(0, 3, 1, 2, 4)
        for each, (many, size) in zip(before, packing.before, strict=True)
    ]
    return decode_codes(packing, codes, rows).flatten(2)


def _bytes_to_vectors(packing: Packing, body: Tensor) -> Tensor:
    """The eight vectors of blocks: (..., bytes) to (..., 8, 64)."""
    vectors, place = body.new_zeros(1), 0
    parts = body.split([64 * bits for bits in packing.fields], -1)
    for bits, lines in zip(packing.fields, parts, strict=True):
        fields = (lines.unflatten(-1, (bits, 1, 64)) >> _shifts(bits)) & (2**bits - 1)
        vectors = vectors | (fields.flatten(-3, -2) << place)
        place += bits
    return vectors


def _shifts(bits: int) -> Tensor:
    """How far the fields of a byte are from its lowest bit, (8 / bits, 1)."""
    return torch.arange(0, _VECTORS, bits, dtype=torch.uint8)[:, None]


def _product(x: Tensor, packed: Packed) -> Tensor:
    """``x W.T`` of activations as the kernels see them.

    With ``m`` the largest magnitude of so many columns together, they become
    ``round(x * 127 / m)``, ties to even, times ``m / 127``.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    blocks = x.float().unflatten(-1, (-1, packed.packing.rounded_together))
    largest = blocks.abs().amax(-1, keepdim=True)
    # 127 / largest would round twice, as a reciprocal
    inverse = largest.new_tensor(127.0) / largest
    whole = torch.round(blocks * torch.where(largest < 2.0**-120, 0, inverse))
    rounded = (whole * (largest * (1 / 127))).flatten(-2)
    return F.linear(rounded.to(wide), unpack(packed).to(wide))


@op
def packed_linear(
    x: Tensor, packed: Packed, bias: Tensor | None = None, lora: LoraDelta | None = None
) -> Tensor:
    """``x weight.T + bias`` with a packed weight; x is rounded to int8 first.

    The rounding, over ``packing.rounded_together`` columns at a time, is part of the definition.

    Args:
        x: (..., in).
        packed: (out, in).
        bias: (out,), in the dtype of x.
        lora: What adapters change; they see x as it is. None for nothing.

    Returns:
        (..., out), in the dtype of x.
    """
    y = change_product(_product(x, packed), lora)
    return (y if bias is None else y + bias).to(x.dtype)


@op
def packed_gated_linear(
    x: Tensor,
    gate: Packed,
    up: Packed,
    loras: LoraDeltas = UNCHANGED,
) -> Tensor:
    """``silu(x gate.T) * (x up.T)`` with packed weights of one packing.

    Args:
        x: (..., in), rounded as for ``packed_linear``.
        gate: (out, in).
        up: (out, in).
        loras: What adapters change in both products.

    Returns:
        (..., out), in the dtype of x.
    """
    gates, ups = (
        change_product(_product(x, packed), lora)
        for packed, lora in zip((gate, up), loras, strict=True)
    )
    return (F.silu(gates) * ups).to(x.dtype)


@op
def packed_rows(out: Tensor, packed: Packed, ids: Tensor) -> Tensor:
    """Some rows of a packed matrix, as an embedding gives them.

    Args:
        out: (N, in): where they go.
        packed: (rows, in).
        ids: (N,), int64.

    Returns:
        ``out``.
    """
    groups = _numbers(packed.packing, packed.blocks[ids // GROUP])
    rows = groups[torch.arange(len(ids)), ids % GROUP]
    out.copy_(rows if packed.row_scales is None else rows * packed.row_scales[ids, None])
    return out
