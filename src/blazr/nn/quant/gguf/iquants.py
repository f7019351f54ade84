"""Decoders of the IQ types: indices into codebooks, signs apart, or a non-linear scale of 16.

Each takes (N, block bytes) uint8 and gives (N, block length) float32, to the last bit what the
reference decoder gives.

Source: the structs and comments of ``ggml-common.h``.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from blazr.nn.quant.gguf.bits import fields, halves, shifted, words
from blazr.nn.quant.gguf.grids import codebook
from blazr.nn.quant.gguf.kquants import signed
from blazr.nn.quant.gguf.split_blocks import CodesAndScales, SplitBlocks

_DELTA = 0.125


@cache
def _signs(device: torch.device) -> Tensor:
    """(256, 8): -1 where a byte has a bit, else 1."""
    bytes_ = torch.arange(256, dtype=torch.uint8, device=device)
    return 1 - 2 * fields(bytes_[:, None], 1, 1).float()


def _even_signs(indices: Tensor) -> Tensor:
    """Signs from seven bits; the eighth makes the number of minus signs even."""
    odd = indices
    for shift in (4, 2, 1):
        odd = odd ^ (odd >> shift)
    return _signs(indices.device)[indices | ((odd & 1) << 7)]


def _grid(name: str, indices: Tensor) -> Tensor:
    return codebook(name, indices.device)[indices]


def iq2_xxs(blocks: Tensor) -> Tensor:
    """0:2 scale; then eight times four indices and a word of 4 x 7 sign bits and 4 of scale."""
    pairs = words(blocks[:, 2:], torch.int32).view(-1, 8, 2)
    indices = blocks[:, 2:].reshape(-1, 8, 8)[..., :4].int()
    scale = halves(blocks, 0) * (0.5 + ((pairs[..., 1] >> 28) & 15).float()) * 0.25
    signs = _even_signs(shifted(pairs[..., 1], [0, 7, 14, 21], 127))
    return (scale[..., None, None] * _grid("iq2_xxs", indices) * signs).flatten(1)


def iq2_xs(blocks: Tensor) -> Tensor:
    """0:2 scale, 2:66 words of nine index and seven sign bits, 66:74 scales of four bits."""
    pairs = words(blocks[:, 2:66], torch.int16).int()
    scale = halves(blocks, 0) * (0.5 + fields(blocks[:, 66:], 4, 8).float()) * 0.25
    values = _grid("iq2_xs", pairs & 511) * _even_signs((pairs >> 9) & 127)
    return (scale[..., None] * values.view(-1, 16, 16)).flatten(1)


def iq2_s(blocks: Tensor) -> Tensor:
    """0:2 scale, 2:34 indices, 34:66 signs, 66:74 two more index bits, 74:82 scales."""
    scale = halves(blocks, 0) * (0.5 + fields(blocks[:, 74:], 4, 8).float()) * 0.25
    indices = blocks[:, 2:34].int() | (fields(blocks[:, 66:74], 2, 8).int() << 8)
    values = _grid("iq2_s", indices) * _signs(blocks.device)[blocks[:, 34:66].int()]
    return (scale[..., None] * values.view(-1, 16, 16)).flatten(1)


def iq3_xxs(blocks: Tensor) -> Tensor:
    """0:2 scale, 2:66 indices, 66:98 words of 4 x 7 sign bits and 4 of scale."""
    notes = words(blocks[:, 66:], torch.int32)
    scale = halves(blocks, 0) * (0.5 + ((notes >> 28) & 15).float()) * 0.5  # (N, 8)
    signs = _even_signs(shifted(notes, [0, 7, 14, 21], 127)).view(-1, 8, 32)
    values = _grid("iq3_xxs", blocks[:, 2:66].int()).view(-1, 8, 32)
    return (scale[..., None] * values * signs).flatten(1)


def iq3_s(blocks: Tensor) -> Tensor:
    """0:2 scale, 2:66 indices, 66:74 ninth index bits, 74:106 signs, 106:110 scales."""
    scale = halves(blocks, 0) * (1 + 2 * fields(blocks[:, 106:], 4, 4)).float()  # (N, 8)
    indices = blocks[:, 2:66].int() | (fields(blocks[:, 66:74], 1, 8).int() << 8)
    signs = _signs(blocks.device)[blocks[:, 74:106].int()].view(-1, 8, 32)
    values = _grid("iq3_s", indices).view(-1, 8, 32)
    return (scale[..., None] * values * signs).flatten(1)


def iq1_s(blocks: Tensor) -> Tensor:
    """0:2 scale, 2:34 indices, 34:50 words of 4 x 3 index bits, 3 of scale and the shift's sign."""
    notes = words(blocks[:, 34:], torch.int16).int()  # (N, 8)
    scale = halves(blocks, 0) * (2 * ((notes >> 12) & 7) + 1).float()
    delta = torch.where(notes < 0, -_DELTA, _DELTA)
    high = shifted(notes, [0, 3, 6, 9], 7).flatten(1)
    values = _grid("iq1_s", blocks[:, 2:34].int() | (high << 8)).view(-1, 8, 32)
    return (scale[..., None] * (values + delta[..., None])).flatten(1)


def iq1_m(blocks: Tensor) -> Tensor:
    """0:32 indices, 32:48 nibbles of 3 index bits and the shift's sign, 48:56 scales.

    The scales are four words of 4 x 3 bits; their top nibbles together are the float16 scale.
    """
    notes = words(blocks[:, 48:], torch.int16).int()  # (N, 4)
    parts = ((notes >> 12) & 15) << torch.tensor([0, 4, 8, 12], device=blocks.device).int()
    whole = parts.sum(1, keepdim=True).to(torch.int16).view(torch.float16).float()
    scale = whole * (2 * shifted(notes, [0, 3, 6, 9], 7).flatten(1) + 1).float()  # (N, 16)
    high = fields(blocks[:, 32:48], 4, 16).int()  # (N, 32)
    delta = torch.where((high & 8) == 0, _DELTA, -_DELTA)
    values = _grid("iq1_s", blocks[:, :32].int() | ((high & 7) << 8)) + delta[..., None]
    return (scale[..., None] * values.view(-1, 16, 16)).flatten(1)


@SplitBlocks
def iq4_nl(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:18 nibbles on the non-linear scale."""
    return fields(blocks[:, 2:], 4, 1), [blocks[:, None, :2]]


@SplitBlocks
def iq4_xs(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:4 high two bits of eight scales, 4:8 their nibbles, 8:136 nibbles."""
    high = shifted(words(blocks[:, 2:4], torch.int16), list(range(0, 16, 2)), 3).flatten(1)
    scales = fields(blocks[:, 4:8], 4, 4).int() | (high << 4)
    return fields(blocks[:, 8:], 4, 8), [blocks[:, None, :2], signed(scales)]
