"""Weights in the order that the CPU kernels read, packed from others once they are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from blazr.nn.ops.packed import (
    PACKINGS,
    Packed,
    Packing,
    are_kernels_here,
    packed_gated_linear,
    packed_linear,
    packed_rows,
)
from blazr.nn.quant.exact import ShiftedWeight
from blazr.nn.quant.gguf.block_type import BlockType
from blazr.nn.quant.gguf.packing import pack_blocks
from blazr.nn.quant.gguf.weight import GgufWeight
from blazr.nn.quant.stored import StoredStack
from blazr.nn.quant.weight import Weight


class PackedWeight(Weight):
    """16 rows interleaved; products round their activations to int8 (see ``nn/ops/packed.py``).

    Args:
        packing: The layout.
        blocks: (..., groups, superblocks, bytes), uint8.
        rows: ``out``.
        dtype: What products and rows come in.
    """

    blocks: Tensor
    packed: Packed

    def __init__(self, packing: Packing, blocks: Tensor, rows: int, dtype: torch.dtype) -> None:
        super().__init__((*blocks.shape[:-3], rows, blocks.shape[-2] * packing.columns), dtype)
        self.packing = packing
        self.register_buffer("blocks", blocks)
        self._matrices: dict[int, PackedWeight] = {}
        self.packed = Packed(packing, blocks, rows)

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
        return packed_linear(x, self.packed, bias)

    def gated(self, x: Tensor, up: Weight) -> Tensor:
        """See `Weight.gated`."""
        if isinstance(up, PackedWeight):
            other = up.packed
            if other.packing is self.packing and other.blocks.shape == self.blocks.shape:
                return packed_gated_linear(x, self.packed, other)
        return super().gated(x, up)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """See `Weight.dequantize`."""
        if len(self.shape) == 2:
            out = torch.empty(self.shape, dtype=dtype)
            return packed_rows(out, self.packed, torch.arange(self.shape[0]))
        return torch.stack([self.select(i).dequantize(dtype) for i in range(self.shape[0])])

    def rows(self, ids: Tensor) -> Tensor:
        """See `Weight.rows`."""
        out = torch.empty(ids.numel(), self.shape[1], dtype=self.dtype)
        return packed_rows(out, self.packed, ids.flatten()).view(*ids.shape, -1)

    def select(self, index: int) -> PackedWeight:
        """See `Weight.select`."""
        found = self._matrices.get(index)
        if found is None:
            found = PackedWeight(self.packing, self.blocks[index], self.shape[-2], self.dtype)
            self._matrices[index] = found
        return found

    def extra_repr(self) -> str:
        """For people: the shape."""
        return f"packed, {self.packing.bits} bits, {list(self.shape)}"


def can_pack(kind: BlockType, dtype: torch.dtype) -> bool:
    """Whether a CPU's kernels compute with such blocks in a dtype."""
    return kind.name in PACKINGS and are_kernels_here(dtype)


def pack_weight(weight: Weight) -> Weight:
    """The same numbers as the kernels want them, or the weight itself where they cannot have it."""
    if weight.device.type != "cpu":
        return weight
    if isinstance(weight, GgufWeight):
        return _packed(weight, [weight])
    if isinstance(weight, ShiftedWeight):
        weight.inner = pack_weight(weight.inner)
    elif isinstance(weight, StoredStack):
        each = [weight.select(i) for i in range(weight.shape[0])]
        blocks = [matrix for matrix in each if isinstance(matrix, GgufWeight)]
        if len(blocks) == len(each) and len({matrix.kind.name for matrix in blocks}) == 1:
            return _packed(weight, blocks)
        weight.matrices = nn.ModuleList(pack_weight(matrix) for matrix in each)
    return weight


def _packed(weight: Weight, parts: Sequence[GgufWeight]) -> Weight:
    """Blocks of one kind, or the weight they make up where kernels cannot have them."""
    kind = parts[0].kind
    if not can_pack(kind, weight.dtype):
        return weight
    packing, rows = PACKINGS[kind.name], weight.shape[-2]
    if len(weight.shape) == 2:
        blocks = pack_blocks(kind, parts[0].blocks)
        return PackedWeight(packing, blocks, rows, weight.dtype)
    stacks = (part.blocks.view(-1, *part.blocks.shape[-2:]) for part in parts)
    for index, matrix in enumerate(chain.from_iterable(stacks)):
        packed = pack_blocks(kind, matrix)
        if index == 0:
            blocks = packed.new_empty((weight.shape[0], *packed.shape))
        blocks[index] = packed
    return PackedWeight(packing, blocks, rows, weight.dtype)
