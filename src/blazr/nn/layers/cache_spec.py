"""What a layer must remember: it says so here, and the engine owns the memory.

Everything lives on one grid of ``GRID`` tokens, anchored at a sequence's position 0: a page of
keys, values or latents, a chunk of the scan, the distance between checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import torch

from blazr.nn.operands.step import GRID


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one thing to remember."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """What one layer remembers of a sequence.

    Args:
        paged: One entry per token: keys and values, or a latent.
        checkpoint: The recurrent state at a grid edge; written once, then shared, never changed.
        log: One row per token since the checkpoint, for layers that can compute their output from
            the checkpoint and these rows. A recurrent layer without a log keeps a working copy of
            its checkpoint's tensors instead.
    """

    paged: Mapping[str, TensorSpec] = field(default_factory=dict)
    checkpoint: Mapping[str, TensorSpec] = field(default_factory=dict)
    log: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def bytes_per_token(self) -> int:
        """Bytes a token takes for good."""
        return sum(spec.nbytes for spec in self.paged.values())

    @property
    def bytes_per_checkpoint(self) -> int:
        """Bytes of one recurrent state."""
        return sum(spec.nbytes for spec in self.checkpoint.values())

    @property
    def live(self) -> Mapping[str, TensorSpec]:
        """What a running sequence needs beside its checkpoint: log rows, or a working state."""
        if self.log:
            return {
                name: TensorSpec((GRID, *spec.shape), spec.dtype) for name, spec in self.log.items()
            }
        return self.checkpoint


def merge_specs(parts: Mapping[str, CacheSpec]) -> CacheSpec:
    """What a layer of several parts remembers, ``part.name`` by ``part.name``.

    Parts with a log and parts with a working state do not mix in one layer.
    """
    is_logged = [bool(spec.log) for spec in parts.values() if spec.checkpoint]
    assert len(set(is_logged)) <= 1, "parts with and without a log in one layer"

    paged: dict[str, TensorSpec] = {}
    checkpoint: dict[str, TensorSpec] = {}
    log: dict[str, TensorSpec] = {}
    for part, spec in parts.items():
        paged |= {f"{part}.{name}": tensor for name, tensor in spec.paged.items()}
        checkpoint |= {f"{part}.{name}": tensor for name, tensor in spec.checkpoint.items()}
        log |= {f"{part}.{name}": tensor for name, tensor in spec.log.items()}
    return CacheSpec(paged=paged, checkpoint=checkpoint, log=log)
