"""Small integers and half floats out of bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def halves(blocks: Tensor, start: int) -> Tensor:
    """The float16 at a byte of each block: (N, bytes) to (N, 1), float32."""
    return words(blocks[:, start : start + 2], torch.float16).float()


def words(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes read as a wider type, little end first."""
    # a view needs bytes that lie together and are aligned
    return data.clone(memory_format=torch.contiguous_format).view(dtype)


def fields(data: Tensor, bits: int, groups: int) -> Tensor:
    """Equal fields of each byte; within a group, the lowest field of all bytes comes first.

    Args:
        data: (N, W), uint8.
        bits: Of a field: 1, 2 or 4.
        groups: How many runs of bytes W is made of.

    Returns:
        (N, W * 8 / bits), uint8.
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=data.device)
    parts = data.reshape(len(data), groups, 1, -1) >> shifts[:, None]
    return (parts & (2**bits - 1)).flatten(1)


def five_bits(blocks: Tensor, start: int) -> Tensor:
    """The codes of Q5_0 and Q5_1: (N, bytes) to (N, 32), uint8.

    Args:
        blocks: (N, bytes), uint8.
        start: Where the four bytes of fifth bits begin; the nibbles follow.
    """
    high = fields(blocks[:, start : start + 4], 1, 4)
    return fields(blocks[:, start + 4 :], 4, 1) | (high << 4)


def shifted(data: Tensor, shifts: list[int], mask: int) -> Tensor:
    """``(data >> shift) & mask`` for each shift, in a new last dimension; int32."""
    places = torch.tensor(shifts, dtype=torch.int32, device=data.device)
    return (data.int()[..., None] >> places) & mask
