"""What adapters of low rank change in a matrix, by slot: one adapter each.

A row of activations takes the adapter of its sequence. Slot 0 is no adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

_POINTERS = 4  # of an entry, as kernels.hpp has it: a, b, gain, rank
_GROUP = 16  # columns of b, as kernels.hpp has it


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """What one adapter changes: ``y`` becomes ``(y + x a.T b) * gain``, before the bias.

    Args:
        a: (r, in), contiguous, in the dtype of the products; of an embedding (vocabulary, r).
        groups: ``b``, (r, out), scaled, sixteen columns after the other, so that what a part of a
            product needs of it is one run of memory: (out / 16 rounded up, r, 16), contiguous;
            zeros fill the last. The same dtype.
        out: Columns of ``b``.
        gain: (out,), float32, of adapters that set the length of rows (DoRA); None for 1.
        lengths: (out,), float32, the lengths that ``gain`` gives rows of the sum; None without it.
        is_whole: Whether this is the difference to another matrix, in the place of the model's.
        rows: (r,), int64, the rows that another one has, where the others are the model's own: one
            of ``a`` and ``b`` picks them, and the other is their difference. None for all rows.
    """

    a: Tensor
    groups: Tensor
    out: int
    gain: Tensor | None = None
    lengths: Tensor | None = None
    is_whole: bool = False
    rows: Tensor | None = None

    @classmethod
    def of(
        cls,
        a: Tensor,
        b: Tensor,
        gain: Tensor | None = None,
        *,
        is_whole: bool = False,
        rows: Tensor | None = None,
    ) -> LoraFactors:
        """The factors with this ``b``, (r, out)."""
        return cls(a, _in_groups(b), b.shape[1], gain, is_whole=is_whole, rows=rows)

    @property
    def b(self) -> Tensor:
        """(r, out)."""
        return self.groups.transpose(0, 1).flatten(1)[:, : self.out]

    @property
    def rank(self) -> int:
        """The rank, r."""
        return self.groups.shape[1]

    def beside(self, weight: Tensor) -> LoraFactors:
        """The same for a matrix, (out, in), whose rows have other lengths.

        Source: Liu et al. 2024, arXiv:2402.09353.
        """
        if self.lengths is None:
            return self
        whole = weight.float() + self.b.float().T @ self.a.float()
        return replace(self, gain=(self.lengths / whole.norm(dim=1)).contiguous())

    def plus(self, more: Tensor) -> LoraFactors:
        """The same with something added to the difference, (out, in), where this is a whole one."""
        if self.rows is not None:
            more = more[self.rows.to(more.device)]
            if self.a.shape != more.shape:  # of an embedding ``a`` picks the rows
                b = (self.b.float() + more).to(self.a.dtype)
                return replace(self, groups=_in_groups(b))
        if self.a.shape == more.shape:  # one of the factors is 1, the other one the difference
            return replace(self, a=(self.a.float() + more).to(self.a.dtype))
        b = (self.b.float() + more.T).to(self.a.dtype)
        return replace(self, groups=_in_groups(b))


class LoraTable:
    """What each adapter changes in one matrix.

    Kernels read ``entries``, which stay where they are, so that recorded steps see adapters that
    come and go. ``max_rank`` never falls: inner products of recorded steps have that much room.

    Args:
        num_slots: Slots, the empty one included.
    """

    def __init__(self, num_slots: int) -> None:
        self.entries = empty_entries(num_slots)
        self.factors: dict[int, LoraFactors] = {}
        self.max_rank = 1

    def move(self, entries: Tensor) -> None:
        """Have its entries in these from now on, (slots, 4): a part of a stack's."""
        self.entries = entries.copy_(self.entries)

    def put(self, slot: int, factors: LoraFactors) -> None:
        """Let rows of a slot take these."""
        gain = 0 if factors.gain is None else factors.gain.data_ptr()
        self.factors[slot] = factors
        self.max_rank = max(self.max_rank, factors.rank)
        values = (factors.a.data_ptr(), factors.groups.data_ptr(), gain, factors.rank)
        self.entries[slot] = torch.tensor(values, dtype=torch.int64)

    def drop(self, slot: int) -> None:
        """Let rows of a slot take nothing, and forget what they took."""
        self.entries[slot] = 0
        self.factors.pop(slot, None)


def _in_groups(b: Tensor) -> Tensor:
    """See ``groups`` of `LoraFactors`."""
    filled = functional.pad(b, (0, -b.shape[1] % _GROUP))
    return filled.unflatten(1, (-1, _GROUP)).transpose(0, 1).contiguous()


def empty_entries(*shape: int) -> Tensor:
    """Entries of kernels for tables of this shape, in which no slot changes anything."""
    return torch.zeros(*shape, _POINTERS, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class LoraDelta:
    """What adapters change in a product with M rows.

    Args:
        table: By slot.
        slots: (T,), int64; M is a multiple of T, and neighbouring rows are of one token.
        inner: (M, at least the largest rank), float32: ``x a.T``.
    """

    table: LoraTable
    slots: Tensor
    inner: Tensor

    @property
    def repeat(self) -> int:
        """Rows of a token."""
        return rows_per_slot(len(self.inner), self.slots)


@dataclass(frozen=True, slots=True)
class HeadLoras:
    """What adapters change in a stack of matrices, one for each head.

    Args:
        tables: By head; a head that is not there is not changed.
        slots: Of the tokens' adapters, (T,), int64.
    """

    tables: Mapping[int, LoraTable]
    slots: Tensor


LoraDeltas = tuple[LoraDelta | None, LoraDelta | None]
"""What adapters change in both products of a gated one."""

UNCHANGED: LoraDeltas = (None, None)


def rows_per_slot(num_rows: int, slots: Tensor) -> int:
    """How many neighbouring rows are of one token."""
    return max(num_rows // max(len(slots), 1), 1)
