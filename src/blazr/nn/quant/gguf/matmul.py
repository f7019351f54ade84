"""Products with packed weights: one op for each block type, for kernels to stand in for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from blazr.nn.ops.matmul import linear_by_tiles
from blazr.nn.ops.op import Op
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.block_type import BlockType


def _linear(kind: BlockType) -> Op[Tensor, Tensor, Tensor | None]:
    def product(x: Tensor, blocks: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x W.T + bias`` with the weight decoded a tile of rows at a time.

        Args:
            x: (..., in).
            blocks: (out, bytes of a row), uint8: the rows of the weight in blocks.
            bias: (out,), in the dtype of x.

        Returns:
            (..., out), in the dtype of x.
        """
        tiles = kind.tiles(len(blocks), x.shape[-1])
        return linear_by_tiles(x, len(blocks), tiles, lambda tile: kind.decode(blocks[tile]), bias)

    return Op(f"linear_{kind.name.lower()}", reference=product, samples=partial(_samples, kind))


# (rows, blocks in a row, out)
_SIZES = ((1, 2, 33), (5, 1, 16), (3, 3, 7), (2, 1, 1), (33, 2, 40), (0, 1, 4))


def _samples(kind: BlockType, dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for rows, count, outer in _SIZES:
        # any bytes are blocks, but these values are neither huge nor all zero
        kept = torch.empty(0, kind.nbytes, dtype=torch.uint8)
        while len(kept) < outer * count:
            blocks = torch.randint(0, 256, (64, kind.nbytes), dtype=torch.uint8)
            largest = kind.decode(blocks).abs().amax(1)
            kept = torch.cat((kept, blocks[(largest > 1e-3) & (largest < 10)]))
        blocks = kept[: outer * count].view(outer, count * kind.nbytes)
        x = torch.randn(rows, count * kind.length).to(dtype)
        yield x, blocks
        yield x, blocks, torch.randn(outer).to(dtype)


LINEAR: Mapping[str, Op[Tensor, Tensor, Tensor | None]] = MappingProxyType(
    {row.name: _linear(row) for row in GGML_TYPES.values() if row.is_packed}
)
"""By type name. The kernel of an op is a row of KERNELS with the op's name, ``"linear_q4_0"``."""
