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


def from_pairs(blocks: Tensor) -> Tensor:
    """A copy of blocks that have neighbours in a byte, as GGML has them.

    Args:
        blocks: (..., blocks * 17) uint8, each an exponent and 16 bytes of numbers.

    Source: GGML type 4 of Ollama 0.11, ``ml/backend/ggml/ggml.go``.
    """
    found = blocks.clone(memory_format=torch.contiguous_format)
    for tile in found.view(-1, 17).split(2**16):  # what is needed besides stays small
        tile.copy_(mxfp4_blocks(tile[:, 1:], tile[:, 0]).view(-1, 17))
    return found
