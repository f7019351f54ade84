"""Steps that read and write a sequence's memory whole, where a kernel does them in one call.

Here is only what such a call takes. The definitions are the mixers' own `forward` methods, in plain
operations: a kernel must agree with them, and they run where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from blazr.nn.kernels.recording import part
from blazr.nn.kernels.resolve import resolve
from blazr.nn.kernels.steps import (
    AttentionTemperature,
    Carried,
    DeltaRows,
    DeltaWeights,
    Filter,
    GatedNorm,
    GateOrder,
    Mamba1Rows,
    Mamba1Weights,
    Mamba2Memory,
    Mamba2Weights,
    Mamba3Memory,
    Mamba3Rows,
    Mamba3Weights,
    Pages,
    Rotation,
    StepTable,
)

__all__ = [
    "AttentionTemperature",
    "Carried",
    "DeltaRows",
    "DeltaWeights",
    "Filter",
    "GateOrder",
    "GatedNorm",
    "Mamba1Rows",
    "Mamba1Weights",
    "Mamba2Memory",
    "Mamba2Weights",
    "Mamba3Memory",
    "Mamba3Rows",
    "Mamba3Weights",
    "Pages",
    "Recurrences",
    "Rotation",
    "StepTable",
    "attention_kernel",
    "mamba2_kernel",
    "part",
    "recurrences",
    "store_kernel",
]


Mamba2Step = Callable[[Tensor, Mamba2Weights, Mamba2Memory, StepTable], Tensor]
Store = Callable[[Tensor, Tensor, Tensor, Rotation, Tensor, Tensor, Tensor | None], Tensor]
PagedAttention = Callable[[Tensor, Pages, StepTable], Tensor]


class Convolve(Protocol):
    """A causal convolution with SiLU behind it, or between two gates and without: (T, channels)."""

    def __call__(
        self,
        x: Tensor,
        how: Filter,
        window: Carried,
        table: StepTable,
        gates: tuple[Tensor, Tensor] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Run it; the window holds the last K - 1 inputs, behind the first gate."""


class Recurrences(NamedTuple):
    """Kernels of mixers that carry a state, over packed sequences. All write what is carried.

    Args:
        convolve: See `Convolve`.
        mamba1: Mamba-1's recurrence and gate, (T, inner).
        mamba3: Mamba-3's recurrence, (T, H * width).
        gated_delta: The gated delta rule, norm and gate, (T, H * P).
        gated_norm: Of x and its gate, (T, C) each.
    """

    convolve: Convolve
    mamba1: Callable[[Mamba1Rows, Mamba1Weights, Carried, StepTable], Tensor]
    mamba3: Callable[[Mamba3Rows, Mamba3Weights, Mamba3Memory, StepTable], Tensor]
    gated_delta: Callable[[DeltaRows, DeltaWeights, Carried, StepTable], Tensor]
    gated_norm: Callable[[Tensor, Tensor, GatedNorm], Tensor]


@cache
def mamba2_kernel(device: str, dtype: torch.dtype) -> Mamba2Step | None:
    """Convolution, recurrence, gate and norm of packed sequences, or None without a kernel.

    It takes the input projection's rows (T, z | x B C | dt), and returns what the output projection
    takes, (T, H * P); checkpoints and logs are written.
    """
    return resolve("mamba2", device, dtype)


@cache
def recurrences(device: str, dtype: torch.dtype) -> Recurrences | None:
    """They, or None without kernels."""
    found = [resolve(name, device, dtype) for name in Recurrences._fields]
    return None if None in found else Recurrences(*found)  # type: ignore[arg-type]  # as said


@cache
def attention_kernel(device: str, dtype: torch.dtype) -> PagedAttention | None:
    """Attention of queries (T, H, D) to all that their pages hold, (T, H, E), or None."""
    return resolve("paged_attention", device, dtype)


@cache
def store_kernel(device: str, dtype: torch.dtype) -> Store | None:
    """Rotation of queries and keys, and writing of keys and values, or None without a kernel.

    It takes queries (T, H, D), keys (T, K, D) and values (T, K, E), how they are rotated, and the
    pages (pages, GRID, K, D) and (pages, GRID, K, E) that keys and values are written to, and where
    the queries go, (T, H, D), or None for anywhere. Returns the queries.
    """
    return resolve("rotate_and_store", device, dtype)
