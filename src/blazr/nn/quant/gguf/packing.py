"""GGML blocks in the order that kernels read them: what a block is made of, type by type.

Each function takes (N, block bytes) uint8 and gives the codes, (N, numbers of a block) uint8, and
what is before them in a packing: (N, how many, bytes) each. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from blazr.nn.ops.packed import GROUP, PACKINGS, interleave
from blazr.nn.quant.gguf.bits import fields, shifted, words
from blazr.nn.quant.gguf.block_type import TILE, BlockType

Parts = tuple[Tensor, list[Tensor]]


def pack_blocks(kind: BlockType, blocks: Tensor) -> Tensor:
    """Pack a matrix of blocks, a tile of rows at a time.

    Args:
        kind: What the blocks are; a name of PACKINGS.
        blocks: (out, bytes of a row), uint8.

    Returns:
        (out / 16 rounded up, superblocks, bytes), uint8.
    """
    rows, row_bytes = blocks.shape
    packing, supers = PACKINGS[kind.name], row_bytes // kind.nbytes
    out = torch.empty(-(-rows // GROUP), supers, packing.nbytes, dtype=torch.uint8)
    step = max(1, TILE // (GROUP * max(1, supers * kind.length)))
    for low in range(0, len(out), step):
        tile = blocks[low * GROUP : (low + step) * GROUP]
        codes, scales = _PARTS[kind.name](tile.reshape(-1, kind.nbytes))
        each = [part.unflatten(0, (-1, supers)) for part in scales]
        out[low : low + step] = interleave(packing, codes.view(len(tile), -1), each)
    return out


def _one(data: Tensor) -> Tensor:
    return data[:, None]


def _many(data: Tensor) -> Tensor:
    return data[..., None]


def _negated(data: Tensor) -> Tensor:
    """Minima are taken off, where these formats add them: the sign is the last bit."""
    return _one(data ^ torch.tensor([0, 0x80], dtype=torch.uint8))


def _q8_0(blocks: Tensor) -> Parts:
    return blocks[:, 2:] ^ 0x80, [_one(blocks[:, :2])]


def _nibbles(blocks: Tensor) -> Parts:
    return fields(blocks[:, 2:], 4, 1), [_one(blocks[:, :2])]


def _q4_1(blocks: Tensor) -> Parts:
    return fields(blocks[:, 4:], 4, 1), [_one(blocks[:, :2]), _negated(blocks[:, 2:4])]


def _five_bits(blocks: Tensor, start: int) -> Tensor:
    return fields(blocks[:, start + 4 :], 4, 1) | (fields(blocks[:, start : start + 4], 1, 4) << 4)


def _q5_0(blocks: Tensor) -> Parts:
    return _five_bits(blocks, 2), [_one(blocks[:, :2])]


def _q5_1(blocks: Tensor) -> Parts:
    return _five_bits(blocks, 4), [_one(blocks[:, :2]), _negated(blocks[:, 2:4])]


def _mxfp4(blocks: Tensor) -> Parts:
    return fields(blocks[:, 1:], 4, 1), [_one(blocks[:, :1])]


def _signed(scales: Tensor) -> Tensor:
    """Six-bit numbers with an offset of 32 as int8."""
    return _many((scales.to(torch.int8) - 32).view(torch.uint8))


def _iq4_xs(blocks: Tensor) -> Parts:
    high = shifted(words(blocks[:, 2:4], torch.int16), list(range(0, 16, 2)), 3).flatten(1)
    scales = fields(blocks[:, 4:8], 4, 4).int() | (high << 4)
    return fields(blocks[:, 8:], 4, 8), [_one(blocks[:, :2]), _signed(scales)]


def _q2_k(blocks: Tensor) -> Parts:
    scales = blocks[:, :16]
    halves = [_one(blocks[:, 80:82]), _one(blocks[:, 82:84])]
    return fields(blocks[:, 16:80], 2, 2), [*halves, _many(scales & 15), _many(scales >> 4)]


def _q3_k(blocks: Tensor) -> Parts:
    scales = fields(blocks[:, 96:104], 4, 1) | (fields(blocks[:, 104:108], 2, 1) << 4)
    codes = fields(blocks[:, 32:96], 2, 2) | (fields(blocks[:, :32], 1, 1) << 2)
    return codes, [_one(blocks[:, 108:110]), _signed(scales)]


def _scales_and_minima(blocks: Tensor) -> list[Tensor]:
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), 1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), 1)
    return [_one(blocks[:, :2]), _one(blocks[:, 2:4]), _many(scales), _many(minima)]


def _q4_k(blocks: Tensor) -> Parts:
    return fields(blocks[:, 16:], 4, 4), _scales_and_minima(blocks)


def _q5_k(blocks: Tensor) -> Parts:
    codes = fields(blocks[:, 48:], 4, 4) | (fields(blocks[:, 16:48], 1, 1) << 4)
    return codes, _scales_and_minima(blocks)


def _q6_k(blocks: Tensor) -> Parts:
    codes = fields(blocks[:, :128], 4, 2) | (fields(blocks[:, 128:192], 2, 2) << 4)
    return codes, [_one(blocks[:, 208:]), _many(blocks[:, 192:208])]


_PARTS: Mapping[str, Callable[[Tensor], Parts]] = {
    "Q8_0": _q8_0,
    "Q4_0": _nibbles,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "IQ4_NL": _nibbles,
    "MXFP4": _mxfp4,
    "IQ4_XS": _iq4_xs,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
