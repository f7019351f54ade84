"""What adapters add to products: ``csrc/lora.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import DTYPES, Call
from blazr.nn.kernels.cpu.structures import Int64, Pointer, structure
from blazr.nn.operands.lora import LoraDelta, LoraTable, rows_per_slot


@structure
class Lora(ctypes.Structure):
    """``Lora`` of kernels.hpp."""

    entries: Pointer = None
    slots: Pointer = None
    inner: Pointer = None
    repeat: Int64 = 0
    stride: Int64 = 0


@structure
class _LoraShrink(Call, entry="lora_shrink"):
    """``LoraShrink`` of kernels.hpp."""

    x: Pointer
    ids: Pointer
    entries: Pointer
    slots: Pointer
    inner: Pointer
    dtype: Int64
    m: Int64
    k: Int64
    ldx: Int64
    repeat: Int64
    stride: Int64


@structure
class _LoraExpand(Call, entry="lora_expand"):
    """``LoraExpand`` of kernels.hpp."""

    y: Pointer
    bias: Pointer
    lora: Lora
    dtype: Int64
    m: Int64
    n: Int64


def lora_shrink(x: Tensor, table: LoraTable, slots: Tensor) -> Tensor:
    """See ``blazr.nn.ops.lora.lora_shrink``; a row's result depends on that row alone."""
    x = x if x.stride(1) == 1 else x.contiguous()
    return _shrink(x, None, table, slots)


def lora_rows(like: Tensor, table: LoraTable, slots: Tensor, ids: Tensor) -> Tensor:
    """See ``blazr.nn.ops.lora.lora_rows``."""
    return _shrink(like, ids.contiguous(), table, slots)


def lora_expand(y: Tensor, delta: LoraDelta, bias: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.lora.lora_expand``; a row's result depends on that row alone."""
    if not y.is_contiguous() or len(y) != len(delta.inner):
        raise ShapeError(
            "what adapters change does not fit the product.",
            found=f"{tuple(y.shape)}, inner products {tuple(delta.inner.shape)}",
            expected="as many rows, one behind the other",
        )
    bias = None if bias is None else bias.contiguous()
    _LoraExpand(
        y.data_ptr(),
        None if bias is None else bias.data_ptr(),
        lora_argument(delta),
        DTYPES[y.dtype],
        len(y),
        y.shape[1],
    ).run()
    return y


def lora_argument(delta: LoraDelta | None) -> Lora:
    """Return a delta in the form that kernels take; an empty one for None."""
    if delta is None:
        return Lora()
    return Lora(
        delta.table.entries.data_ptr(),
        delta.slots.data_ptr(),
        delta.inner.data_ptr(),
        delta.repeat,
        delta.inner.stride(0),
    )


def _shrink(x: Tensor, ids: Tensor | None, table: LoraTable, slots: Tensor) -> Tensor:
    rows = len(x) if ids is None else len(ids)
    inner = torch.empty(rows, table.max_rank, dtype=torch.float32)
    _LoraShrink(
        x.data_ptr() if ids is None else None,
        None if ids is None else ids.data_ptr(),
        table.entries.data_ptr(),
        slots.data_ptr(),
        inner.data_ptr(),
        DTYPES[x.dtype],
        rows,
        x.shape[-1],
        x.stride(0),
        rows_per_slot(rows, slots),
        table.max_rank,
    ).run()
    return inner
