"""Decoders of the IQ types: indices into codebooks, signs apart, or a non-linear scale of 16.

Each takes (N, block bytes) uint8 and gives (N, block length) float32, to the last bit what the
reference decoder gives. Codes of the codebooks are digits with a bit above them: a sign, or, in the
IQ1 types, whether values are an eighth less rather than more.

Source: the structs and comments of ``ggml-common.h``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.operands.codebooks import codebook
from blazr.nn.quant.gguf.bits import fields, shifted, words
from blazr.nn.quant.gguf.kquants import signed
from blazr.nn.quant.gguf.split_blocks import CodesAndScales, SplitBlocks


def _signs(bytes_: Tensor) -> Tensor:
    """The bits of bytes, the lowest first: (...) to (..., 8), uint8; 1 is minus."""
    return shifted(bytes_, list(range(8)), 1).to(torch.uint8)


def _even_signs(indices: Tensor) -> Tensor:
    """Signs from seven bits; the eighth makes the number of minus signs even."""
    odd = indices
    for shift in (4, 2, 1):
        odd = odd ^ (odd >> shift)
    return _signs(indices | ((odd & 1) << 7))


def _codes(name: str, indices: Tensor, signs: Tensor) -> Tensor:
    """The digits of rows of a codebook, with a sign above each.

    Args:
        name: The codebook's.
        indices: (N, R), of rows of W digits.
        signs: (N, ...), uint8: each is of as many digits as the others.

    Returns:
        (N, R W), uint8.
    """
    book = codebook(name, indices.device)
    digits, each = book[indices].flatten(1), (signs << int(book.max()).bit_length()).flatten(1)
    return digits | each.repeat_interleave(digits.shape[1] // each.shape[1], 1)


def _odd(numbers: Tensor) -> Tensor:
    """Scales ``2 n + 1``: (N, count) to (N, count, 1), uint8."""
    return (2 * numbers + 1).to(torch.uint8)[..., None]


@SplitBlocks
def iq2_xxs(blocks: Tensor) -> CodesAndScales:
    """0:2 scale; then eight times four indices and a word of 4 x 7 sign bits and 4 of scale."""
    notes = words(blocks[:, 2:], torch.int32).view(-1, 8, 2)[..., 1]
    indices = blocks[:, 2:].reshape(-1, 8, 8)[..., :4].flatten(1).int()
    signs = _even_signs(shifted(notes, [0, 7, 14, 21], 127))
    return _codes("iq2_xxs", indices, signs), [blocks[:, None, :2], _odd((notes >> 28) & 15)]


@SplitBlocks
def iq2_xs(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:66 words of nine index and seven sign bits, 66:74 scales of four bits."""
    pairs = words(blocks[:, 2:66], torch.int16).int()
    codes = _codes("iq2_xs", pairs & 511, _even_signs((pairs >> 9) & 127))
    return codes, [blocks[:, None, :2], _odd(fields(blocks[:, 66:], 4, 8))]


@SplitBlocks
def iq2_s(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:34 indices, 34:66 signs, 66:74 two more index bits, 74:82 scales."""
    indices = blocks[:, 2:34].int() | (fields(blocks[:, 66:74], 2, 8).int() << 8)
    codes = _codes("iq2_s", indices, _signs(blocks[:, 34:66]))
    return codes, [blocks[:, None, :2], _odd(fields(blocks[:, 74:], 4, 8))]


@SplitBlocks
def iq3_xxs(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:66 indices, 66:98 words of 4 x 7 sign bits and 4 of scale."""
    notes = words(blocks[:, 66:], torch.int32)
    signs = _even_signs(shifted(notes, [0, 7, 14, 21], 127))
    codes = _codes("iq3_xxs", blocks[:, 2:66].int(), signs)
    return codes, [blocks[:, None, :2], _odd((notes >> 28) & 15)]


@SplitBlocks
def iq3_s(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:66 indices, 66:74 ninth index bits, 74:106 signs, 106:110 scales."""
    indices = blocks[:, 2:66].int() | (fields(blocks[:, 66:74], 1, 8).int() << 8)
    codes = _codes("iq3_s", indices, _signs(blocks[:, 74:106]))
    return codes, [blocks[:, None, :2], _odd(fields(blocks[:, 106:], 4, 4))]


@SplitBlocks
def iq1_s(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:34 indices, 34:50 words of 4 x 3 index bits, 3 of scale and the shift's sign."""
    notes = words(blocks[:, 34:], torch.int16).int()  # (N, 8)
    high = shifted(notes, [0, 3, 6, 9], 7).flatten(1)
    indices = blocks[:, 2:34].int() | (high << 8)
    codes = _codes("iq1_s", indices, (notes < 0).to(torch.uint8))
    return codes, [blocks[:, None, :2], _odd((notes >> 12) & 7)]


@SplitBlocks
def iq1_m(blocks: Tensor) -> CodesAndScales:
    """0:32 indices, 32:48 nibbles of 3 index bits and the shift's sign, 48:56 scales.

    The scales are four words of 4 x 3 bits; their top nibbles together are the float16 scale.
    """
    notes = words(blocks[:, 48:], torch.int16).int()  # (N, 4)
    parts = ((notes >> 12) & 15) << torch.tensor([0, 4, 8, 12], device=blocks.device).int()
    whole = parts.sum(1, keepdim=True).to(torch.int16).view(torch.uint8)
    high = fields(blocks[:, 32:48], 4, 16)  # (N, 32)
    indices = blocks[:, :32].int() | ((high & 7).int() << 8)
    codes = _codes("iq1_s", indices, high >> 3)
    return codes, [whole[:, None], _odd(shifted(notes, [0, 3, 6, 9], 7).flatten(1))]


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
