"""MXFP4 as Hugging Face stores it: four-bit numbers, and a power of two for every 32 of them."""

from __future__ import annotations

import torch
from torch import Tensor


def mxfp4_blocks(numbers: Tensor, exponents: Tensor) -> Tensor:
    """The same numbers as GGML blocks of MXFP4.

    Here neighbours share a byte, there the halves of a block do.

    Args:
        numbers: (..., blocks, 16) uint8: the even number of a pair in the lower half of a byte.
        exponents: (..., blocks) uint8, biased by 127.

    Returns:
        (..., blocks * 17), uint8.

    Source: OCP Microscaling Formats (MX) specification 1.0, section 5.3.3.
    """
    each = torch.stack((numbers & 15, numbers >> 4), -1).flatten(-2)  # (..., blocks, 32)
    low, high = each.chunk(2, -1)
    return torch.cat((exponents.unsqueeze(-1), low | (high << 4)), -1).flatten(-2)
