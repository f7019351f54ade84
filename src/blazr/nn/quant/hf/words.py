"""Small whole numbers packed in 32-bit words, the lowest bits first.

Where a width does not divide 32, 32 numbers fill as many words as they have bits, and some lie in
two of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

WORD = 32


def unpack(words: Tensor, bits: int, dim: int, order: Sequence[int] | None = None) -> Tensor:
    """Words to numbers, along a dimension that grows by ``32 / bits``.

    Args:
        words: Of two dimensions, int32.
        bits: Of a number; one that does not divide 32 takes no ``order``.
        dim: 0 or 1.
        order: Which of a word's places each number comes from; None for one after the other.

    Returns:
        Numbers from 0, int32.
    """
    if WORD % bits:  # some numbers lie across the border of two words
        words = F.pad(words.movedim(dim, -1), (0, -words.shape[dim] % bits))
        each = (words.long() & (2**WORD - 1)).unflatten(-1, (-1, bits))
        low = torch.arange(WORD, device=words.device) * bits
        index, shift = low // WORD, low % WORD
        above = F.pad(each, (0, 1))[..., index + 1] & (2**bits - 1)
        numbers = ((each[..., index] | above << WORD) >> shift) & (2**bits - 1)
        return numbers.int().flatten(-2).movedim(-1, dim)
    count = WORD // bits
    places = torch.tensor(order or range(count), dtype=torch.int32, device=words.device) * bits
    shape = (1, count, 1) if dim == 0 else (1, 1, count)
    numbers = (words.unsqueeze(dim + 1) >> places.view(shape)) & (2**bits - 1)
    return numbers.flatten(dim, dim + 1)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Rows of numbers from 0 to words, (R, in) to (R, in * bits / 32 rounded up), int32."""
    count = WORD // bits
    numbers = F.pad(numbers.int(), (0, -numbers.shape[1] % count)).unflatten(1, (-1, count))
    places = torch.arange(count, dtype=torch.int32, device=numbers.device) * bits
    # no two numbers share a bit, so their sum is their union, also where it wraps to a sign
    return (numbers << places).sum(-1, dtype=torch.int32)


def span(rows: slice, size: int, bits: int) -> tuple[slice, slice]:
    """Which words hold some rows of so many bits, and where in those words' numbers they are."""
    start, stop, _ = rows.indices(size)
    numbers, words = (WORD, bits) if WORD % bits else (WORD // bits, 1)
    first = start // numbers
    found = slice(first * words, -(-stop // numbers) * words)
    return found, slice(start - first * numbers, stop - first * numbers)
