"""Matrices of small floats: eight or four bits each, with scales beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from blazr.nn.operands.packing import E2M1, Blocks, ShiftedBlocks


class ScaledFloats(NamedTuple):
    """A matrix (out, in) whose numbers are floats times the scales of their blocks; or a stack.

    Args:
        numbers: (..., out, in), float8 E4M3 or E5M2; or (..., out, in / 2) uint8, each two floats
            of four bits, the first in the lower half.
        scales: (..., out / height, in / width), rounded up, of any float.
        block: Height and width of a block; those at the right and lower edge may be smaller.
        whole: (...), float32: the scales are multiplied with it, too; None for 1.
        is_divided: Whether the scales are divided by ``whole`` instead.
        table: (16,), float32, what four bits stand for, as in NF4; None for E2M1.
    """

    numbers: Tensor
    scales: Tensor
    block: tuple[int, int]
    whole: Tensor | None = None
    is_divided: bool = False
    table: Tensor | None = None

    @property
    def are_pairs(self) -> bool:
        """Whether a byte holds two numbers."""
        return self.numbers.dtype == torch.uint8

    @property
    def values(self) -> Tensor | None:
        """(16,), float32, what four bits stand for; None where numbers have eight."""
        if not self.are_pairs:
            return None
        return _e2m1(self.numbers.device) if self.table is None else self.table

    @property
    def shape(self) -> torch.Size:
        """(..., out, in)."""
        *stack, columns = self.numbers.shape
        return torch.Size((*stack, columns * (2 if self.are_pairs else 1)))

    def tensors(self) -> Iterator[Tensor]:
        """Yield the numbers, and what they are multiplied with."""
        beside = (self.whole, self.table)
        yield from (self.numbers, self.scales, *(each for each in beside if each is not None))

    def select(self, index: int) -> ScaledFloats:
        """One matrix of a stack."""
        whole = None if self.whole is None else self.whole[index]
        return self._replace(numbers=self.numbers[index], scales=self.scales[index], whole=whole)

    @property
    def form(self) -> object:
        """What matrices of a stack have in common."""
        tensors = (self.numbers, self.scales, self.whole)
        each = [None if one is None else (one.shape, one.dtype) for one in tensors]
        table = None if self.table is None else self.table.tolist()
        return each, self.block, self.is_divided, table

    def map(self, function: Callable[[Tensor], Tensor]) -> ScaledFloats:
        """The same of tensors that a function makes of these."""
        whole, table = (
            None if each is None else function(each) for each in (self.whole, self.table)
        )
        numbers, scales = function(self.numbers), function(self.scales)
        return self._replace(numbers=numbers, scales=scales, whole=whole, table=table)

    def rows(self, runs: Sequence[slice]) -> ScaledFloats:
        """Some rows of a matrix; a run of whole blocks is in the same memory.

        Args:
            runs: Which, one behind the other.
        """
        height, last_row = self.block[0], self.shape[0]
        first, last, step = runs[0].indices(last_row)
        ends_block = last % height == 0 or last == last_row
        if len(runs) == 1 and step == 1 and first % height == 0 and ends_block:
            scales = self.scales[first // height : ceil(last / height)]
            return self._replace(numbers=self.numbers[first:last], scales=scales)
        places = torch.cat([torch.arange(last_row)[run] for run in runs])
        numbers = self.numbers.view(torch.uint8)[places].view(self.numbers.dtype)
        scales, block = self.scales[places // height], (1, self.block[1])  # each has one of its own
        return self._replace(numbers=numbers, scales=scales, block=block)

    def columns(self, runs: Sequence[range]) -> ScaledFloats | None:
        """Some columns of a matrix, or None where a run ends within a block.

        Args:
            runs: Which, one behind the other.
        """
        width, last_column = self.block[1], self.shape[1]
        per_byte = 2 if self.are_pairs else 1
        has_one_block = width >= last_column  # in a row, which may be cut anywhere
        unit = per_byte if has_one_block else width
        *inner, last = [edge for run in runs for edge in (run.start, run.stop)]
        if any(edge % unit for edge in inner) or (last % unit and last != last_column):
            return None
        numbers = [self.numbers[:, run.start // per_byte : run.stop // per_byte] for run in runs]
        scales = [self.scales[:, run.start // width : ceil(run.stop / width)] for run in runs]
        return self._replace(
            numbers=torch.cat(numbers, 1),
            scales=self.scales if has_one_block else torch.cat(scales, 1),
        )

    def decode(self, rows: slice | Tensor) -> Tensor:
        """Some rows of a matrix as plain numbers.

        Args:
            rows: Which, without a step; int64 where they are no run.

        Returns:
            (R, in), float32.
        """
        height, width = self.block
        if isinstance(rows, Tensor):
            scales = self.scales[rows // height].float()
        else:  # without an index, which takes longer
            first, last, _ = rows.indices(self.shape[0])
            low = first // height
            scales = self.scales[low : ceil(last / height)].float().repeat_interleave(height, 0)
            scales = scales[first - low * height :][: last - first]
        if self.whole is not None:
            scales = scales / self.whole if self.is_divided else scales * self.whole
        scales = scales.repeat_interleave(min(width, self.shape[1]), 1)[:, : self.shape[1]]
        # whatever the dtype, bytes can be indexed
        bytes_ = self.numbers.view(torch.uint8)[rows]
        values = self.values
        if values is None:
            return bytes_.view(self.numbers.dtype).float() * scales
        codes = torch.stack((bytes_ & 15, bytes_ >> 4), -1).flatten(1).int()
        return values[codes] * scales


@cache
def _e2m1(device: torch.device) -> Tensor:
    """What the codes of E2M1 stand for."""
    return torch.tensor(E2M1, device=device) / 2


# A matrix, or a stack of them, as files store it; each has `shape`, `select` and `decode`.
StoredMatrix = Blocks | ShiftedBlocks | ScaledFloats
