"""Decoders of the plain types, of blocks of 32 with one scale, and of ternary and 4-bit floats.

Each takes (N, block bytes) uint8 and gives (N, block length) float32, to the last bit what the
reference decoder gives, some as `SplitBlocks`. The layouts are drawn as byte ranges of a block.

Source: the structs of ``ggml-common.h``; MXFP4: OCP Microscaling Formats 1.0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.quant.gguf.bits import fields, five_bits, halves, words
from blazr.nn.quant.gguf.split_blocks import CodesAndScales, SplitBlocks


def f32(blocks: Tensor) -> Tensor:
    """0:4 float32."""
    return words(blocks, torch.float32)


def f16(blocks: Tensor) -> Tensor:
    """0:2 float16."""
    return words(blocks, torch.float16).float()


def bf16(blocks: Tensor) -> Tensor:
    """0:2 bfloat16."""
    return words(blocks, torch.bfloat16).float()


@SplitBlocks
def q4_0(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:18 nibbles; value = scale * (nibble - 8)."""
    return fields(blocks[:, 2:], 4, 1), [blocks[:, None, :2]]


@SplitBlocks
def q4_1(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:4 minimum, 4:20 nibbles; value = scale * nibble + minimum."""
    return fields(blocks[:, 4:], 4, 1), [blocks[:, None, :2], _negated(blocks[:, None, 2:4])]


@SplitBlocks
def q5_0(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:6 fifth bits, 6:22 nibbles; value = scale * (five bits - 16)."""
    return five_bits(blocks, 2), [blocks[:, None, :2]]


@SplitBlocks
def q5_1(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:4 minimum, 4:8 fifth bits, 8:24 nibbles; value = scale * five bits + minimum."""
    return five_bits(blocks, 4), [blocks[:, None, :2], _negated(blocks[:, None, 2:4])]


def _negated(minimum: Tensor) -> Tensor:
    """Minus the float16 minimum: these formats add it, and packings subtract theirs."""
    return minimum ^ torch.tensor([0, 0x80], dtype=torch.uint8, device=minimum.device)


def q8_0(blocks: Tensor) -> Tensor:
    """0:2 scale, 2:34 int8; value = scale * int8."""
    return words(blocks[:, 2:], torch.int8).float() * halves(blocks, 0)


@SplitBlocks
def tq1_0(blocks: Tensor) -> CodesAndScales:
    """0:48 five ternary digits a byte, 48:52 four, 52:54 scale; value = scale * (digit - 1).

    A byte holds its digits as a fraction: times 3, the carry is the next digit.
    """
    parts = []
    for start, stop, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = torch.tensor([3**d for d in range(digits)], device=blocks.device)
        part = blocks[:, None, start:stop] * powers.to(torch.uint8)[:, None]  # wraps, as it should
        parts.append(part.flatten(1))
    ternary = (torch.cat(parts, 1).int() * 3) >> 8
    return ternary.to(torch.uint8), [blocks[:, None, 52:]]


@SplitBlocks
def tq2_0(blocks: Tensor) -> CodesAndScales:
    """0:64 two-bit fields, 64:66 scale; value = scale * (field - 1)."""
    return fields(blocks[:, :64], 2, 2), [blocks[:, None, 64:]]


@SplitBlocks
def mxfp4(blocks: Tensor) -> CodesAndScales:
    """0:1 exponent of the scale, 1:17 nibbles that are 4-bit floats."""
    return fields(blocks[:, 1:], 4, 1), [blocks[:, None, :1]]


@SplitBlocks
def nvfp4(blocks: Tensor) -> CodesAndScales:
    """0:4 unsigned float8 (E4M3) scales of 16 values each, 4:36 nibbles that are 4-bit floats.

    The scales come as half their value, since the floats are doubled. No number counts as 0.
    """
    bits = blocks[:, :4]
    # shifted, they are float16 of 2 ** -8 of the value
    scales = ((bits & 0x7F).short() << 7).view(torch.float16) * 128
    scales = scales.masked_fill(bits == 0x7F, 0)
    return fields(blocks[:, 4:], 4, 4), [scales.unsqueeze(-1).view(torch.uint8)]


@SplitBlocks
def q1_0(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:18 bits; value = scale where the bit is set, else -scale."""
    return fields(blocks[:, 2:], 1, 16), [blocks[:, None, :2]]


@SplitBlocks
def q2_0(blocks: Tensor) -> CodesAndScales:
    """0:2 scale, 2:18 two-bit fields; value = scale * (field - 1)."""
    return fields(blocks[:, 2:], 2, 16), [blocks[:, None, :2]]
