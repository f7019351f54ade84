"""The first rank's memory: what is done to it is done by every rank to its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from typing_extensions import override

from blazr.core.errors import EngineError
from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import CacheLayout, Storage
from blazr.engine.ranks import orders

if TYPE_CHECKING:
    from blazr.engine.ranks.processes import RankProcesses
    from blazr.models.causal_lm import CausalLM


class SharedStorage(Storage):
    """The memory of all layers, of which each rank has its part.

    Args:
        layout: How items lie in superpages, those of all layers.
        shape: How many there are.
        model: This rank's part of the network.
        processes: The other ranks.

    Attributes:
        number: What the others call it.
    """

    def __init__(
        self,
        layout: CacheLayout,
        shape: CacheShape,
        model: CausalLM,
        processes: RankProcesses,
    ) -> None:
        # first, as nobody could give the others' back if there were no room here
        super().__init__(layout.of_layers(model.config.held_layers), shape, model.device)
        self.number = processes.new_number()
        self._processes = processes
        processes.tell(orders.open_storage, self.number, layout, shape)

    @override
    def clear_pages(self, ids: Sequence[int]) -> None:
        if ids:
            self._repeat("clear_pages", ids)
        super().clear_pages(ids)

    @override
    def clear_run_slots(self, ids: Sequence[int]) -> None:
        if ids:
            self._repeat("clear_run_slots", ids)
        super().clear_run_slots(ids)

    @override
    def copy_page(self, source: int, target: int) -> None:
        self._repeat("copy_page", source, target)
        super().copy_page(source, target)

    @override
    def copy_run_slot(self, source: int, target: int, working_copy: int = 0) -> None:
        self._repeat("copy_run_slot", source, target, working_copy)
        super().copy_run_slot(source, target, working_copy)

    def close(self) -> None:
        """Have the others give theirs back, unless they have ended."""
        with suppress(EngineError):
            self._processes.tell(orders.close_storage, self.number)

    def _repeat(self, method: str, *arguments: object) -> None:
        self._processes.tell(orders.change_storage, self.number, method, *arguments)
