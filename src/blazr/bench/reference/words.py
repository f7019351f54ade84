"""Numbers of a few bits each, packed in bytes and words of safetensors files."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blazr.bench.reference.blocks import FLOAT4


def bit_fields(words: Tensor, bits: int) -> Tensor:
    """Rows of int32 words as a stream of numbers, lowest bits first: (R, W) to (R, W * 32 / bits).

    The last word may hold fewer.
    """
    data = np.ascontiguousarray(words.numpy()).view(np.uint8)
    stream = np.unpackbits(data, axis=1, bitorder="little")
    stream = stream[:, : stream.shape[1] // bits * bits].reshape(len(data), -1, bits)
    return torch.from_numpy(stream.astype(np.int64) @ (1 << np.arange(bits)))


def powers_of_two(exponents: Tensor) -> Tensor:
    """Powers of two whose exponents are biased by 127."""
    return torch.exp2(exponents.double() - 127)


def four_bit_floats(packed: Tensor) -> Tensor:
    """Two four-bit floats a byte, the first in the lower half: (R, N) to (R, 2 * N)."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
    return torch.from_numpy(FLOAT4)[codes]
