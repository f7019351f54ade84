"""From plain numbers to blocks, to the last bit as llama.cpp's reference quantizers do.

Source: ``quantize_row_q8_0_ref`` and ``quantize_row_q4_0_ref`` of ``ggml-quants.c``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.nn.operands.packing import BlockType
from blazr.nn.quant.gguf import GGML_TYPES


@dataclass(frozen=True, slots=True)
class Quantizer:
    """A way of packing.

    Args:
        kind: The blocks it makes.
        encode: (N, block length) float32 to (N, block bytes) uint8.
        by_rows: Whether it takes whole rows in place of blocks, and gives rows of blocks.
        packed_as: From the columns of a row to the name in PACKINGS by which CPUs hold it; None is
            that of the blocks.
    """

    kind: BlockType
    encode: Callable[[Tensor], Tensor]
    by_rows: bool = False
    packed_as: Callable[[int], str] | None = None

    def __call__(self, values: Tensor) -> Tensor:
        """Rows of numbers to rows of blocks: (..., in) to (..., bytes of a row).

        Args:
            values: Of any floating-point dtype; ``in`` is a multiple of the block length.
        """
        length = values.shape[-1] if self.by_rows else self.kind.length
        with torch.no_grad():
            blocks = self.encode(values.float().reshape(-1, length))
        return blocks.view(*values.shape[:-1], -1)


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, and 0 where that is not finite: such a block is all zero, or nearly."""
    inverse = 1 / scale
    return torch.where(inverse.isfinite(), inverse, 0)


def _encode_q8_0(blocks: Tensor) -> Tensor:
    """The largest magnitude becomes 127; halves round away from zero."""
    scale = blocks.abs().amax(1, keepdim=True) / 127
    scaled = blocks * _inverse(scale)
    size = scaled.abs()
    whole = size.floor()
    rounded = scaled.sign() * (whole + (2 * (size - whole)).floor())
    return torch.cat((scale.half().view(torch.uint8), rounded.to(torch.int8).view(torch.uint8)), 1)


def _encode_q4_0(blocks: Tensor) -> Tensor:
    """The largest magnitude, with its sign, becomes -8: the side that has one step more."""
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = largest / -8
    values = (blocks * _inverse(scale) + 8.5).to(torch.uint8).clamp(max=15)
    low, high = values.chunk(2, 1)
    return torch.cat((scale.half().view(torch.uint8), low | (high << 4)), 1)


Q8_0 = Quantizer(GGML_TYPES["Q8_0"], _encode_q8_0)
Q4_0 = Quantizer(GGML_TYPES["Q4_0"], _encode_q4_0)
