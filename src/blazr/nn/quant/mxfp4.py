"""MXFP4 as Hugging Face stores it: four-bit numbers, and a power of two for every 32 of them."""

from __future__ import annotations

import torch
from torch import Tensor

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127


def decode_mxfp4(numbers: Tensor, exponents: Tensor) -> Tensor:
    """Blocks to plain numbers.

    Args:
        numbers: (..., blocks, 16) uint8: the even number of a pair in the lower half of a byte.
        exponents: (..., blocks) uint8, biased by 127.

    Returns:
        (..., blocks * 32), float32.

    Source: OCP Microscaling Formats (MX) specification 1.0, section 5.3.3.
    """
    table = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)])
    pairs = torch.stack((numbers & 15, numbers >> 4), -1).flatten(-2)  # (..., blocks, 32)
    scales = torch.exp2(exponents.float() - _BIAS)
    return (table[pairs.long()] * scales.unsqueeze(-1)).flatten(-2)
