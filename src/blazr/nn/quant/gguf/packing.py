"""GGML blocks in the order that kernels read them: what a block is made of, type by type.

Each function takes (N, block bytes) uint8 and gives the codes, (N, numbers of a block) uint8, and
what is before them in a packing: (N, how many, bytes) each. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from blazr.nn.ops.op import Op
from blazr.nn.ops.packed import GROUP, PACKINGS, interleave
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.bits import fields, shifted, words
from blazr.nn.quant.gguf.block_type import TILE

Parts = tuple[Tensor, list[Tensor]]


def pack_blocks(name: str, blocks: Tensor, zeros: Tensor | None = None) -> Tensor:
    """Pack a matrix of blocks.

    Args:
        name: A name of PACKINGS. int8 is packed from blocks of Q8_0 and without their scales, int4
            from blocks of Q4_0, of which those of a superblock have the same scale.
        blocks: (out, bytes of a row), uint8.
        zeros: (out, superblocks), uint8: the codes of 0 of int4; None for 8.

    Returns:
        (out / 16 rounded up, superblocks, bytes), uint8.
    """
    source = GGML_TYPES[_SOURCES.get(name, name)]
    supers = blocks.shape[1] // source.row_bytes(PACKINGS[name].columns)
    with torch.no_grad():
        return pack(blocks, name, supers, zeros)


def _pack(blocks: Tensor, name: str, supers: int, zeros: Tensor | None) -> Tensor:
    """See ``pack_blocks``; ``supers`` superblocks a row."""
    rows, packing = len(blocks), PACKINGS[name]
    out = torch.empty(-(-rows // GROUP), supers, packing.nbytes, dtype=torch.uint8)
    if zeros is None:
        zeros = blocks.new_tensor(8).expand(rows, supers)
    step = max(1, TILE // (GROUP * max(1, supers * packing.columns)))
    for low in range(0, len(out), step):  # a tile of rows at a time
        part = slice(low * GROUP, (low + step) * GROUP)
        tile = blocks[part]
        codes, scales = _PARTS[name](tile.reshape(len(tile) * supers, -1))
        if packing.scales == "half, zero":
            scales.append(zeros[part].reshape(-1, 1, 1))
        each = [before.unflatten(0, (-1, supers)) for before in scales]
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


def _int8(blocks: Tensor) -> Parts:
    return blocks[:, 2:] ^ 0x80, []


def _int4(blocks: Tensor) -> Parts:
    each = blocks.reshape(-1, GGML_TYPES["Q4_0"].nbytes)
    return fields(each[:, 2:], 4, 1).view(len(blocks), -1), [_one(blocks[:, :2])]


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
    "int8": _int8,
    **{f"int4 by {size}": _int4 for size in (32, 64, 128)},
}
# What packings that are no GGML type are packed from.
_SOURCES = {"int8": "Q8_0", **{f"int4 by {size}": "Q4_0" for size in (32, 64, 128)}}


def _samples(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for name, packing in PACKINGS.items():
        nbytes = GGML_TYPES[_SOURCES.get(name, name)].row_bytes(packing.columns)
        for rows, supers in ((1, 1), (16, 3), (37, 2), (0, 1)):
            blocks = torch.randint(0, 256, (rows, supers * nbytes), dtype=dtype)
            yield blocks, name, supers, None
            yield blocks, name, supers, torch.randint(0, 256, (rows, supers), dtype=dtype)


pack = Op("pack", reference=_pack, samples=_samples)
