"""Adapters of low rank beside the matrices of a network, chosen token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from blazr.nn.operands.experts import ExpertAdapters
from blazr.nn.operands.lora import HeadLoras, LoraDelta, LoraTable, empty_entries
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


class ExpertLoras:
    """What adapters change in the matrices of experts, where they change any.

    Args:
        num_experts: How many there are, E.
    """

    def __init__(self, num_experts: int) -> None:
        self._num_experts = num_experts
        self._loras: dict[tuple[str, int], Lora] = {}
        self._entries: dict[str, Tensor] = {}  # one tensor for all experts, as kernels read them

    def put(self, name: str, expert: int, lora: Lora) -> None:
        """Change the ``"gate"``, ``"up"`` or ``"down"`` matrix of an expert."""
        if name not in self._entries:
            self._entries[name] = empty_entries(self._num_experts, len(lora.table.entries))
        lora.table.move(self._entries[name][expert])
        self._loras[name, expert] = lora

    def adapters(self) -> ExpertAdapters | None:
        """As products take them; None where no token of the step has an adapter."""
        slots = next((lora.slots for lora in self._loras.values()), None)
        if slots is None:
            return None
        tables = {key: lora.table for key, lora in self._loras.items()}
        return ExpertAdapters(tables, self._entries, slots)


def head_loras(loras: Mapping[int, Lora]) -> HeadLoras | None:
    """As products head by head take them; None where no token of the step has an adapter."""
    slots = next((lora.slots for lora in loras.values()), None)
    if slots is None:
        return None
    return HeadLoras({head: lora.table for head, lora in loras.items()}, slots)
