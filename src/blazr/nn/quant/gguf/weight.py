"""A weight in the blocks of a GGUF file, kept as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.quant.gguf.block_type import BlockType
from blazr.nn.quant.gguf.matmul import LINEAR
from blazr.nn.quant.weight import Weight


class GgufWeight(Weight):
    """Rows of blocks, decoded as they are used. They may lie in a mapped file.

    Args:
        blocks: (..., out, bytes of a row), uint8.
        kind: What the blocks are.
        dtype: What products and rows come in.
    """

    blocks: Tensor

    def __init__(self, blocks: Tensor, kind: BlockType, dtype: torch.dtype) -> None:
        columns = blocks.shape[-1] // kind.nbytes * kind.length
        super().__init__((*blocks.shape[:-1], columns), dtype)
        self.kind = kind
        self.register_buffer("blocks", blocks)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.blocks.nbytes

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.blocks.device

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Weight.matmul`."""
        return LINEAR[self.kind.name](x, self.blocks, bias)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """See `Weight.dequantize`."""
        whole = torch.empty(self.shape, dtype=dtype, device=self.device)
        flat, blocks = whole.flatten(0, -2), self.blocks.flatten(0, -2)
        for part in self.kind.tiles(len(blocks), self.shape[-1]):
            flat[part] = self.kind.decode(blocks[part]).to(dtype)
        return whole

    def rows(self, ids: Tensor) -> Tensor:
        """See `Weight.rows`."""
        return self.kind.decode(self.blocks[ids]).to(self.dtype)

    def select(self, index: int) -> GgufWeight:
        """See `Weight.select`."""
        return GgufWeight(self.blocks[index], self.kind, self.dtype)

    def extra_repr(self) -> str:
        """For people: the type and the shape."""
        return f"{self.kind.name}, {list(self.shape)}"
