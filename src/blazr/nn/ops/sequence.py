"""Steps that read and write a sequence's memory whole, where a kernel does them in one call.

Here is only what such a call takes. The definitions are the mixers' own `forward` methods, in plain
operations: a kernel must agree with them, and they run where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from blazr.nn.kernels.recording import part
from blazr.nn.kernels.resolve import resolve
from blazr.nn.kernels.steps import Mamba2Memory, Mamba2Weights, Pages, Rotation, StepTable

__all__ = [
    "Mamba2Memory",
    "Mamba2Weights",
    "Pages",
    "Rotation",
    "StepTable",
    "attention_kernel",
    "mamba2_kernel",
    "part",
    "store_kernel",
]


Mamba2Step = Callable[[Tensor, Mamba2Weights, Mamba2Memory, StepTable], Tensor]
Store = Callable[[Tensor, Tensor, Tensor, Rotation, Tensor, Tensor, Tensor | None], Tensor]
PagedAttention = Callable[[Tensor, Pages, StepTable], Tensor]


@cache
def mamba2_kernel(device: str, dtype: torch.dtype) -> Mamba2Step | None:
    """Convolution, recurrence, gate and norm of packed sequences, or None without a kernel.

    It takes the input projection's rows (T, z | x B C | dt), and returns what the output projection
    takes, (T, H * P); checkpoints and logs are written.
    """
    return resolve("mamba2", device, dtype)


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
