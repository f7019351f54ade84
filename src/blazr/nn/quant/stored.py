"""Weights in the tensors of a quantized checkpoint, kept as they are and decoded as used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from blazr.nn.ops.matmul import linear
from blazr.nn.quant.gguf.block_type import TILE
from blazr.nn.quant.hf.scheme import Layout
from blazr.nn.quant.weight import Weight


class StoredWeight(Weight):
    """One matrix. Its tensors may lie in a mapped file.

    Args:
        layout: How they stand for its numbers.
        parts: The tensors, by their suffix.
        dtype: What products and rows come in.
    """

    def __init__(self, layout: Layout, parts: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__(layout.shape, dtype)
        self.layout = layout
        self.parts = dict(parts)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return next(iter(self.parts.values())).device

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Weight.matmul`."""
        out = x.new_empty((*x.shape[:-1], self.shape[0]))
        for part in self.tiles():
            rows = self.layout.decode(self.parts, part).to(x.dtype)
            # the same tiles whatever the batch, so that the rows of x do not see each other
            out[..., part] = linear(x, rows, None if bias is None else bias[part])
        return out

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """See `Weight.dequantize`."""
        whole = torch.empty(self.shape, dtype=dtype, device=self.device)
        for part in self.tiles():
            whole[part] = self.layout.decode(self.parts, part).to(dtype)
        return whole

    def rows(self, ids: Tensor) -> Tensor:
        """See `Weight.rows`."""
        wanted, place = ids.flatten().unique(return_inverse=True)
        each = [self.layout.decode(self.parts, slice(i, i + 1)) for i in wanted.tolist()]
        found = torch.cat(each) if each else torch.empty(0, self.shape[1], device=self.device)
        return found.to(self.dtype)[place].unflatten(0, ids.shape)

    def select(self, index: int) -> Weight:
        """See `Weight.select`."""
        raise AssertionError(index)  # one matrix is no stack

    def tiles(self) -> Iterator[slice]:
        """Runs of rows that are decoded one after the other."""
        step = max(1, TILE // max(1, self.shape[1]))
        # whole words of whatever is packed along the rows
        step = max(32, step // 32 * 32)
        return (slice(low, min(low + step, self.shape[0])) for low in range(0, self.shape[0], step))

    def extra_repr(self) -> str:
        """For people: the layout and the shape."""
        return f"{self.layout.name}, {list(self.shape)}"


class PlainWeight(Weight):
    """One matrix of plain numbers, in a stack of which others are packed.

    Args:
        numbers: (out, in).
    """

    numbers: Tensor

    def __init__(self, numbers: Tensor) -> None:
        super().__init__(tuple(numbers.shape), numbers.dtype)
        self.register_buffer("numbers", numbers)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.numbers.nbytes

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.numbers.device

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Weight.matmul`."""
        return linear(x, self.numbers, bias)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """See `Weight.dequantize`."""
        return self.numbers.to(dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """See `Weight.rows`."""
        return self.numbers[ids]

    def select(self, index: int) -> Weight:
        """See `Weight.select`."""
        raise AssertionError(index)  # one matrix is no stack


class StoredStack(Weight):
    """Several matrices of one shape: experts.

    Args:
        matrices: One each.
    """

    def __init__(self, matrices: Sequence[Weight]) -> None:
        super().__init__((len(matrices), *matrices[0].shape), matrices[0].dtype)
        self.matrices = torch.nn.ModuleList(matrices)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return sum(self.select(index).nbytes for index in range(self.shape[0]))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.select(0).device

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Weight.matmul`."""
        raise AssertionError(x.shape, bias)  # products are of one matrix

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """See `Weight.dequantize`."""
        return torch.stack([self.select(i).dequantize(dtype) for i in range(self.shape[0])])

    def rows(self, ids: Tensor) -> Tensor:
        """See `Weight.rows`."""
        raise AssertionError(ids.shape)  # rows are of one matrix

    def select(self, index: int) -> Weight:
        """See `Weight.select`."""
        matrix = self.matrices[index]
        assert isinstance(matrix, Weight)
        return matrix
