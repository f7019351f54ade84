"""Some rows of a quantized matrix, which stays as it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import override

from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.quant.hf.scheme import Grid, Layout


class RowsLayout(Layout):
    """Rows of a matrix in an order of their own: one of several that were stored as one.

    Args:
        whole: The layout of the matrix.
        rows: Which of its rows, in order.
    """

    def __init__(self, whole: Layout, rows: Sequence[range]) -> None:
        super().__init__(whole.name, (sum(map(len, rows)), whole.shape[1]))
        self.is_grid = whole.is_grid
        self.is_float = whole.is_float
        self.packed_as = whole.packed_as
        self._whole = whole
        self._rows = tuple(rows)

    @override
    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Tensor:
        found = [self._whole.decode(parts, each)[::step] for each, step in self._runs(rows)]
        return found[0] if len(found) == 1 else torch.cat(found)

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid | None:
        found = [(self._whole.grid(parts, each), step) for each, step in self._runs(rows)]
        grids = [(grid, step) for grid, step in found if grid is not None]
        if len(grids) < len(found):
            return None
        codes, scales, zeros = (
            torch.cat([getattr(grid, name)[::step] for grid, step in grids])
            for name in ("codes", "scales", "zeros")
        )
        added = [grid.offsets[::step] for grid, step in grids if grid.offsets is not None]
        offsets = torch.cat(added) if added else None
        return replace(grids[0][0], codes=codes, scales=scales, zeros=zeros, offsets=offsets)

    @override
    def floats(self, parts: Mapping[str, Tensor]) -> ScaledFloats | None:
        whole = self._whole.floats(parts)
        if whole is None:
            return None
        return whole.rows(
            [slice(each.start, each.stop, step) for each, step in self._runs(slice(None))]
        )

    def _runs(self, rows: slice) -> Iterator[tuple[slice, int]]:
        """Where these rows are in the matrix: a run, and the step between the rows taken of it."""
        low, high, _ = rows.indices(self.shape[0])
        for each in self._rows:
            own = each[max(low, 0) : max(high, 0)]
            if own:
                yield slice(own[0], own[-1] + 1), own.step
            low, high = low - len(each), high - len(each)
