"""Matrices of small floats: eight or four bits each, with scales beside them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from blazr.nn.operands.packing import E2M1


class ScaledFloats(NamedTuple):
    """A matrix (out, in) whose numbers are floats times the scales of their blocks; or a stack.

    Args:
        numbers: (..., out, in), float8 E4M3 or E5M2; or (..., out, in / 2) uint8, each two floats
            E2M1, the first in the lower half.
        scales: (..., out / height, in / width), rounded up, of any float.
        block: Height and width of a block; those at the right and lower edge may be smaller.
        whole: (...), float32: the scales are multiplied with it, too; None for 1.
        is_divided: Whether the scales are divided by ``whole`` instead.
    """

    numbers: Tensor
    scales: Tensor
    block: tuple[int, int]
    whole: Tensor | None = None
    is_divided: bool = False

    @property
    def are_pairs(self) -> bool:
        """Whether a byte holds two numbers."""
        return self.numbers.dtype == torch.uint8

    @property
    def shape(self) -> torch.Size:
        """(..., out, in)."""
        *stack, columns = self.numbers.shape
        return torch.Size((*stack, columns * (2 if self.are_pairs else 1)))

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        tensors = (self.numbers, self.scales, self.whole)
        return sum(each.nbytes for each in tensors if each is not None)

    def select(self, index: int) -> ScaledFloats:
        """One matrix of a stack."""
        whole = None if self.whole is None else self.whole[index]
        return self._replace(numbers=self.numbers[index], scales=self.scales[index], whole=whole)

    @property
    def form(self) -> object:
        """What matrices of a stack have in common."""
        tensors = (self.numbers, self.scales, self.whole)
        each = [None if one is None else (one.shape, one.dtype) for one in tensors]
        return each, self.block, self.is_divided

    def rows(self, rows: slice) -> ScaledFloats | None:
        """Some rows that are whole blocks, in the same memory; None where they are none.

        Args:
            rows: Which, without a step.
        """
        height, (first, last, _) = self.block[0], rows.indices(self.shape[-2])
        if first % height or (last % height and last < self.shape[-2]):
            return None
        scales = self.scales[..., first // height : ceil(last / height), :]
        return self._replace(numbers=self.numbers[..., first:last, :], scales=scales)

    def decode(self, rows: slice | Tensor) -> Tensor:
        """Some rows of a matrix as plain numbers.

        Args:
            rows: Which; int64 where they are no run.

        Returns:
            (R, in), float32.
        """
        height, width = self.block
        places = torch.arange(self.shape[0], device=self.scales.device)[rows]
        scales = self.scales.float()[places // height]
        if self.whole is not None:
            scales = scales / self.whole if self.is_divided else scales * self.whole
        scales = scales.repeat_interleave(min(width, self.shape[1]), 1)[:, : self.shape[1]]
        # whatever the dtype, bytes can be indexed
        bytes_ = self.numbers.view(torch.uint8)[rows]
        if not self.are_pairs:
            return bytes_.view(self.numbers.dtype).float() * scales
        codes = torch.stack((bytes_ & 15, bytes_ >> 4), -1).flatten(1).int()
        return (torch.tensor(E2M1, device=codes.device) / 2)[codes] * scales


def stack_floats(matrices: Sequence[ScaledFloats]) -> ScaledFloats:
    """Copies of matrices that are alike, in one stack."""
    wholes = [each.whole for each in matrices if each.whole is not None]
    return matrices[0]._replace(
        numbers=torch.stack([each.numbers for each in matrices]),
        scales=torch.stack([each.scales for each in matrices]),
        whole=torch.stack(wholes) if wholes else None,
    )
