"""Small whole numbers packed in 32-bit words, the lowest bits first."""

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
        bits: Of a number; divides 32.
        dim: 0 or 1.
        order: Which of a word's places each number comes from; None for one after the other.

    Returns:
        Numbers from 0, int32.
    """
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


def span(rows: slice, size: int, per_word: int) -> tuple[slice, slice]:
    """Which words hold some rows, and where in those words' numbers the rows are."""
    start, stop, _ = rows.indices(size)
    first = start // per_word
    words = slice(first, -(-stop // per_word))
    return words, slice(start - first * per_word, stop - first * per_word)
