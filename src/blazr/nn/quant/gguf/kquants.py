"""Decoders of the K types: blocks of 256 whose groups of 16 or 32 have scales of their own.

Each takes (N, block bytes) uint8 and gives (N, 256) float32, to the last bit what the reference
decoder gives.

Source: the structs and comments of ``ggml-common.h``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.quant.gguf.bits import fields, halves, six_bits, words


def q2_k(blocks: Tensor) -> Tensor:
    """0:16 scales and minima (4 bits each), 16:80 two-bit values, 80:82 scale, 82:84 of minima."""
    scales = blocks[:, :16]
    scale = halves(blocks, 80) * (scales & 15).float()  # (N, 16)
    minimum = halves(blocks, 82) * (scales >> 4).float()
    values = fields(blocks[:, 16:80], 2, 2).float().view(-1, 16, 16)
    return (scale[..., None] * values - minimum[..., None]).flatten(1)


def q3_k(blocks: Tensor) -> Tensor:
    """0:32 third bits, 32:96 two-bit values, 96:108 six-bit scales, 108:110 scale of scales.

    The low four bits of the 16 scales fill 8 bytes, the high two bits the next 4.
    """
    low = fields(blocks[:, 96:104], 4, 1)
    high = fields(blocks[:, 104:108], 2, 1)
    scale = halves(blocks, 108) * ((low | (high << 4)).float() - 32)  # (N, 16)
    missing = fields(blocks[:, :32], 1, 1) ^ 1  # an offset where the bit is not set
    values = fields(blocks[:, 32:96], 2, 2).float() - (missing << 2).float()
    return (scale[..., None] * values.view(-1, 16, 16)).flatten(1)


def q4_k(blocks: Tensor) -> Tensor:
    """0:2 scale, 2:4 of minima, 4:16 scales and minima of six bits, 16:144 nibbles."""
    scale, minimum = _scales_and_minima(blocks)
    values = fields(blocks[:, 16:], 4, 4).float().view(-1, 8, 32)
    return (scale * values - minimum).flatten(1)


def q5_k(blocks: Tensor) -> Tensor:
    """As Q4_K, with 16:48 the fifth bits and 48:176 the nibbles."""
    scale, minimum = _scales_and_minima(blocks)
    high = fields(blocks[:, 16:48], 1, 1)
    values = (fields(blocks[:, 48:], 4, 4) | (high << 4)).float().view(-1, 8, 32)
    return (scale * values - minimum).flatten(1)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 8, 1) each."""
    scales, minima = six_bits(blocks)
    scale = halves(blocks, 0) * scales.float()
    minimum = halves(blocks, 2) * minima.float()
    return scale[..., None], minimum[..., None]


def q6_k(blocks: Tensor) -> Tensor:
    """0:128 nibbles, 128:192 high two bits, 192:208 int8 scales, 208:210 scale of scales."""
    scale = halves(blocks, 208) * words(blocks[:, 192:208], torch.int8).float()  # (N, 16)
    values = fields(blocks[:, :128], 4, 2) | (fields(blocks[:, 128:192], 2, 2) << 4)
    return (scale[..., None] * (values.float() - 32).view(-1, 16, 16)).flatten(1)
