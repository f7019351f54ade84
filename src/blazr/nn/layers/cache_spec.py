"""What a layer must remember: it says so here, and the engine owns the memory.

Everything lives on one grid of ``GRID`` tokens, anchored at a sequence's position 0: a page of
keys, values or latents, a chunk of the scan, the distance between checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch

from blazr.nn.operands.kv_dtype import KV_DTYPES
from blazr.nn.operands.state_dtype import STATE_DTYPES
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
        log: One row per token since the checkpoint.
        working: Names in ``checkpoint`` of which a running sequence has a working copy, because a
            token's output is computed from the state at that token.
        states: Names in ``checkpoint`` of the recurrences' states, which may be stored in fewer
            bits than float32. What else a checkpoint holds, such as the window of a convolution
            or an angle, stays in its dtype.
        owner: Index of an earlier layer whose memory this layer reads; it then has none of its own.
    """

    paged: Mapping[str, TensorSpec] = field(default_factory=dict)
    checkpoint: Mapping[str, TensorSpec] = field(default_factory=dict)
    log: Mapping[str, TensorSpec] = field(default_factory=dict)
    working: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    owner: int | None = None

    def stored_as(self, kv_dtype: str = "auto", state_dtype: str = "auto") -> CacheSpec:
        """The same, with what is kept of every token, and states at grid edges, in other dtypes.

        Args:
            kv_dtype: A name of KV_DTYPES.
            state_dtype: A name of STATE_DTYPES.

        Raises:
            UnknownNameError: There is no such dtype.
        """
        kind, of_states = KV_DTYPES[kv_dtype], STATE_DTYPES[state_dtype]
        paged = {
            name: TensorSpec(
                (*spec.shape[:-1], kind.width(spec.shape[-1])), kind.dtype or spec.dtype
            )
            for name, spec in self.paged.items()
        }
        states = {name: replace(self.checkpoint[name], dtype=of_states) for name in self.states}
        return replace(self, paged=paged, checkpoint={**self.checkpoint, **states})

    @property
    def bytes_per_token(self) -> int:
        """Bytes a token takes for good."""
        return sum(spec.nbytes for spec in self.paged.values())

    @property
    def bytes_per_checkpoint(self) -> int:
        """Bytes of one recurrent state."""
        return sum(spec.nbytes for spec in self.checkpoint.values())

    @property
    def bytes_per_log(self) -> int:
        """Bytes of the log of one running sequence."""
        return sum(spec.nbytes for spec in self.log_tensors.values())

    @property
    def bytes_per_working_copy(self) -> int:
        """Bytes of the working copies of one running sequence."""
        return sum(spec.nbytes for spec in self.working_tensors.values())

    @property
    def log_tensors(self) -> Mapping[str, TensorSpec]:
        """The log of one running sequence: room for GRID rows."""
        return {
            name: TensorSpec((GRID, *spec.shape), spec.dtype) for name, spec in self.log.items()
        }

    @property
    def working_tensors(self) -> Mapping[str, TensorSpec]:
        """The working copies of one running sequence, float32 whatever checkpoints are."""
        return {name: replace(self.checkpoint[name], dtype=torch.float32) for name in self.working}


def zeros(
    specs: Mapping[str, TensorSpec], *sizes: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Tensors (*sizes, ...) by the names of their specs."""
    return {
        name: torch.zeros((*sizes, *each.shape), dtype=each.dtype, device=device)
        for name, each in specs.items()
    }


def merge_specs(parts: Mapping[str, CacheSpec]) -> CacheSpec:
    """What a layer of several parts remembers, ``part.name`` by ``part.name``."""

    def named(tensors: Callable[[CacheSpec], Mapping[str, TensorSpec]]) -> dict[str, TensorSpec]:
        return {
            f"{part}.{name}": tensor
            for part, spec in parts.items()
            for name, tensor in tensors(spec).items()
        }

    return CacheSpec(
        paged=named(lambda spec: spec.paged),
        checkpoint=named(lambda spec: spec.checkpoint),
        log=named(lambda spec: spec.log),
        working=tuple(f"{part}.{name}" for part, spec in parts.items() for name in spec.working),
        states=tuple(f"{part}.{name}" for part, spec in parts.items() for name in spec.states),
    )
