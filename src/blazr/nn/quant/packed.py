"""Weights in the order that the CPU kernels read, packed from GGUF blocks once they are loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blazr.nn.ops.packed import BLOCK, BLOCK_BYTES, GROUP, pack, packed_linear, unpack, unpack_rows
from blazr.nn.quant.gguf.weight import GgufWeight
from blazr.nn.quant.weight import Weight


class PackedWeight(Weight):
    """16 rows interleaved; products round their activations to int8 (see ``nn/ops/packed.py``).

    Args:
        packed: (..., groups, blocks, bytes), uint8.
        rows: ``out``.
        dtype: What products and rows come in.
    """

    packed: Tensor

    def __init__(self, packed: Tensor, rows: int, dtype: torch.dtype) -> None:
        super().__init__((*packed.shape[:-3], rows, packed.shape[-2] * BLOCK), dtype)
        self.register_buffer("packed", packed)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.packed.nbytes

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.packed.device

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Weight.matmul`."""
        return packed_linear(x, self.packed, self.shape[-2], bias)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """See `Weight.dequantize`."""
        stack = self.packed.flatten(0, -4) if len(self.shape) > 2 else self.packed[None]
        whole = torch.stack([unpack(one, self.shape[-2]).to(dtype) for one in stack])
        return whole.view(self.shape)

    def rows(self, ids: Tensor) -> Tensor:
        """See `Weight.rows`."""
        return unpack_rows(self.packed, ids.flatten()).to(self.dtype).unflatten(0, ids.shape)

    def select(self, index: int) -> PackedWeight:
        """See `Weight.select`."""
        return PackedWeight(self.packed[index], self.shape[-2], self.dtype)

    def extra_repr(self) -> str:
        """For people: the shape."""
        return f"packed, {list(self.shape)}"


def pack_weights(module: nn.Module) -> None:
    """Put a PackedWeight in the place of every GgufWeight of a network that can be packed.

    One weight at a time is in memory twice. A weight that stands in several places stays one.
    """
    packed: dict[Weight, PackedWeight] = {}
    for path, part in list(module.named_modules(remove_duplicate=False)):
        if isinstance(part, GgufWeight) and part.kind.name in BLOCK_BYTES:
            if part not in packed:
                packed[part] = _packed(part)
            module.set_submodule(path, packed[part])


def _packed(weight: GgufWeight) -> PackedWeight:
    rows, kind = weight.shape[-2], weight.kind.name
    flat = weight.blocks.flatten(0, -3) if len(weight.shape) > 2 else weight.blocks[None]
    bytes_ = (-(-rows // GROUP), weight.shape[-1] // BLOCK, BLOCK_BYTES[kind])
    out = torch.empty((len(flat), *bytes_), dtype=torch.uint8, device=weight.device)
    for index, blocks in enumerate(flat):
        out[index] = pack(kind, blocks)
    return PackedWeight(out.view(*weight.shape[:-2], *bytes_), rows, weight.dtype)
