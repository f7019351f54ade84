"""Blocks that hold codes and scales side by side: decoded from these, and packed from them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from blazr.nn.operands.packing import PACKINGS
from blazr.nn.ops.packed import decode_codes

CodesAndScales = tuple[Tensor, list[Tensor]]


class SplitBlocks:
    """A decoder of blocks that is made of what is in them, a decorator.

    Args:
        split: From (N, block bytes) uint8 to the codes, (N, numbers of a block) uint8, and to what
            is before the codes in the packing of the same name, (N, how many, bytes) uint8 each.
            Nothing is rounded.
    """

    def __init__(self, split: Callable[[Tensor], CodesAndScales]) -> None:
        self.split = split
        self._packing = PACKINGS[split.__name__.upper()]

    def __call__(self, blocks: Tensor) -> Tensor:
        """The numbers of blocks: (N, block bytes) uint8 to (N, numbers of a block) float32."""
        return decode_codes(self._packing, *self.split(blocks))
