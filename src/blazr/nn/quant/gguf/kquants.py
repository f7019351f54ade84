"""Blocks of the K types: 256 numbers whose groups of 16 or 32 have scales of their own.

They decode to the last bit to what the reference decoder gives. The layouts are drawn as byte
ranges of a block.

Source: the structs and comments of ``ggml-common.h``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.quant.gguf.bits import fields
from blazr.nn.quant.gguf.split_blocks import CodesAndScales, SplitBlocks


@SplitBlocks
def q2_k(blocks: Tensor) -> CodesAndScales:
    """0:16 scales and minima (4 bits each), 16:80 two-bit values, 80:82 scale, 82:84 of minima."""
    both = blocks[:, :16, None]
    units = [blocks[:, None, 80:82], blocks[:, None, 82:84]]
    return fields(blocks[:, 16:80], 2, 2), [*units, both & 15, both >> 4]


@SplitBlocks
def q3_k(blocks: Tensor) -> CodesAndScales:
    """0:32 third bits, 32:96 two-bit values, 96:108 six-bit scales, 108:110 scale of scales.

    The low four bits of the 16 scales fill 8 bytes, the high two bits the next 4.
    """
    scales = fields(blocks[:, 96:104], 4, 1) | (fields(blocks[:, 104:108], 2, 1) << 4)
    codes = fields(blocks[:, 32:96], 2, 2) | (fields(blocks[:, :32], 1, 1) << 2)
    return codes, [blocks[:, None, 108:110], signed(scales)]


@SplitBlocks
def q4_k(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:4 of minima, 4:16 scales and minima of six bits, 16:144 nibbles."""
    return fields(blocks[:, 16:], 4, 4), _scales_and_minima(blocks)


@SplitBlocks
def q5_k(blocks: Tensor) -> CodesAndScales:
    """As Q4_K, with 16:48 the fifth bits and 48:176 the nibbles."""
    codes = fields(blocks[:, 48:], 4, 4) | (fields(blocks[:, 16:48], 1, 1) << 4)
    return codes, _scales_and_minima(blocks)


@SplitBlocks
def q6_k(blocks: Tensor) -> CodesAndScales:
    """0:128 nibbles, 128:192 high two bits, 192:208 int8 scales, 208:210 scale of scales."""
    codes = fields(blocks[:, :128], 4, 2) | (fields(blocks[:, 128:192], 2, 2) << 4)
    return codes, [blocks[:, None, 208:], blocks[:, 192:208, None]]


def signed(scales: Tensor) -> Tensor:
    """Six-bit numbers with an offset of 32 as int8: (N, count) to (N, count, 1), both uint8."""
    return (scales.to(torch.int8) - 32).view(torch.uint8)[..., None]


def _scales_and_minima(blocks: Tensor) -> list[Tensor]:
    """Of Q4_K and Q5_K: four of eight lie in six bits of a byte, the others in what is left."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), 1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), 1)
    return [blocks[:, None, :2], blocks[:, None, 2:4], scales[..., None], minima[..., None]]
