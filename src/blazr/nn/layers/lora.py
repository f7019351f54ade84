"""Adapters of low rank beside the matrices of a network, chosen token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from blazr.nn.operands.lora import HeadLoras, LoraDelta, LoraTable
from blazr.nn.ops.lora import lora_expand, lora_rows, lora_shrink


class StepAdapters:
    """Which adapter each token of the step takes that a network computes."""

    slots: Tensor | None = None
    """(T,), int64; None where no token of the step has an adapter."""

    @contextmanager
    def using(self, slots: Tensor | None) -> Iterator[None]:
        """Compute a step whose tokens have these adapters."""
        before, self.slots = self.slots, slots
        try:
            yield
        finally:
            self.slots = before


class Lora:
    """What adapters change in one matrix. It is no module, so it is no part of the weights.

    Args:
        step: Says which adapter each token takes.
        num_slots: Slots of adapters, the empty one included.
    """

    def __init__(self, step: StepAdapters, num_slots: int) -> None:
        self.table = LoraTable(num_slots)
        self._step = step

    @property
    def slots(self) -> Tensor | None:
        """Which adapter each token of the step takes; None where none does."""
        return self._step.slots

    def delta(self, x: Tensor) -> LoraDelta | None:
        """What changes in a product with x, (..., in); None where no token has an adapter."""
        slots = self._step.slots
        if slots is None:
            return None
        rows = x.flatten(0, -2)
        return LoraDelta(self.table, slots, lora_shrink(rows, self.table, slots))

    def change_rows(self, y: Tensor, ids: Tensor) -> Tensor:
        """Change what an embedding gave for some ids, (T, C) and (T,), in place."""
        slots = self._step.slots
        if slots is None:
            return y
        inner = lora_rows(y, self.table, slots, ids)
        return lora_expand(y, LoraDelta(self.table, slots, inner))


def head_loras(loras: Mapping[int, Lora]) -> HeadLoras | None:
    """As products head by head take them; None where no token of the step has an adapter."""
    slots = next((lora.slots for lora in loras.values()), None)
    if slots is None:
        return None
    return HeadLoras({head: lora.table for head, lora in loras.items()}, slots)
