"""What adapters of low rank add to products, row by row: Hu et al. 2021, arXiv:2106.09685.

``shrink`` and ``expand`` as Punica calls them (Chen et al. 2023, arXiv:2310.18547): rows of several
adapters in one batch. Rows without an adapter keep their bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from blazr.nn.operands.lora import LoraDelta, LoraFactors, LoraTable, rows_per_slot
from blazr.nn.ops.op import op


@op
def lora_shrink(x: Tensor, table: LoraTable, slots: Tensor) -> Tensor:
    """``x a.T``, each row with its adapter.

    Args:
        x: (M, in), in the dtype of the factors.
        table: The adapters.
        slots: (T,), int64; M is a multiple of T.

    Returns:
        (M, ``table.max_rank``), float32; beyond a row's rank it may hold anything.
    """
    inner = x.new_zeros(len(x), table.max_rank, dtype=_wide(x))
    for rows, factors in _by_adapter(table, slots, len(x)):
        inner[rows, : factors.rank] = x[rows].to(inner.dtype) @ factors.a.to(inner.dtype).T
    return inner


@op
def lora_rows(like: Tensor, table: LoraTable, slots: Tensor, ids: Tensor) -> Tensor:
    """Rows ``ids`` of ``a``, each of its adapter: what `lora_shrink` is for an embedding.

    Args:
        like: Anything in the dtype of the factors.
        table: The adapters, whose ``a`` are (vocabulary, r).
        slots: (T,), int64.
        ids: (T,), int64.

    Returns:
        (T, ``table.max_rank``), float32; beyond a row's rank it may hold anything.
    """
    inner = like.new_zeros(len(ids), table.max_rank, dtype=_wide(like))
    for rows, factors in _by_adapter(table, slots, len(ids)):
        inner[rows, : factors.rank] = factors.a[ids[rows]].to(inner.dtype)
    return inner


@op
def lora_expand(y: Tensor, delta: LoraDelta, bias: Tensor | None = None) -> Tensor:
    """Change a product after it was rounded, in place.

    Args:
        y: (M, out), contiguous.
        delta: What adapters change.
        bias: (out,), what was added to the product; None for nothing.

    Returns:
        ``y``.
    """
    for rows, factors in _by_adapter(delta.table, delta.slots, len(y)):
        sums = y[rows].to(_wide(y))
        shift = sums.new_zeros(()) if bias is None else bias.to(sums.dtype)
        inner = delta.inner[rows, : factors.rank].to(sums.dtype)
        sums = sums - shift + inner @ factors.b.to(sums.dtype)
        if factors.gain is not None:
            sums = sums * factors.gain
        y[rows] = (sums + shift).to(y.dtype)
    return y


def change_product(y: Tensor, lora: LoraDelta | None, bias: Tensor | None = None) -> Tensor:
    """`lora_expand` by its reference, of a product (..., out); without adapters the product."""
    if lora is None:
        return y
    return lora_expand.reference(y.flatten(0, -2), lora, bias).view_as(y)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _by_adapter(
    table: LoraTable, slots: Tensor, num_rows: int
) -> Iterator[tuple[Tensor, LoraFactors]]:
    """The rows of each adapter that there is."""
    of_rows = slots.repeat_interleave(rows_per_slot(num_rows, slots))
    for slot in of_rows.unique().tolist():
        factors = table.factors.get(slot)
        if factors is not None:
            yield (of_rows == slot).nonzero(as_tuple=True)[0], factors
