"""A weight: one matrix, or a stack of them, however it is stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.operands.packing import Packed


class Weight(nn.Module, ABC):
    """A matrix (out, in) in storage of its own, or a stack of such matrices (experts).

    It takes the place of a parameter: layers ask it for products and rows and never see how it is
    stored. ``matmul(x)`` is ``x @ dequantize(dtype).T`` up to the order of the sums.

    Args:
        shape: (..., out, in).
        dtype: What products and rows come in.
    """

    packed: Packed | None = None  # as kernels that take stacks read it

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = torch.Size(shape)
        self.dtype = dtype

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory it takes."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where it is."""

    @abstractmethod
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x W.T + bias``: (..., in) to (..., out), in ``dtype``; for a matrix."""

    def gated(self, x: Tensor, up: Weight) -> Tensor:
        """``silu(x W.T) * (x up.T)``: the inner half of a gated MLP."""
        return F.silu(self.matmul(x)) * up.matmul(x)

    @abstractmethod
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """All of it as a plain tensor."""

    @abstractmethod
    def rows(self, ids: Tensor) -> Tensor:
        """Some rows of a matrix, as an embedding gives them: (...) int64 to (..., in)."""

    @abstractmethod
    def select(self, index: int) -> Weight:
        """One matrix of a stack; shares its memory."""

    def numel(self) -> int:
        """How many numbers it stands for."""
        return self.shape.numel()


def stored_weights(module: nn.Module) -> Iterator[Tensor | Weight]:
    """Every parameter of a network, packed ones as the weights they are."""
    yield from module.parameters()
    inner = {
        id(part)
        for each in module.modules()
        if isinstance(each, Weight)
        for part in each.modules()
        if part is not each
    }
    for part in module.modules():
        if isinstance(part, Weight) and id(part) not in inner:
            yield part
