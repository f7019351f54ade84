"""The tensors behind the caches: one arena, cut into views, and the running sequences' rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import torch
from torch import Tensor

from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.manager import CacheShape
from blazr.nn.device import copy_row, zero_bytes, zero_rows
from blazr.nn.layers.batch import LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec, zeros
from blazr.nn.operands.step import GRID

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How pages and states lie in superpages.

    Args:
        specs: What each layer remembers.
        page_bytes: GRID tokens of every paged layer.
        state_bytes: One checkpoint of every recurrent layer.
        run_bytes: One sequence's log rows and working states.
        pages_per_superpage: 0 without paged layers.
        states_per_superpage: 0 without recurrent layers.
        superpage_bytes: Divided exactly by both kinds of item.
        working_copies: Working states of each sequence.
    """

    specs: tuple[CacheSpec, ...]
    page_bytes: int
    state_bytes: int
    run_bytes: int
    pages_per_superpage: int
    states_per_superpage: int
    superpage_bytes: int
    working_copies: int = 1

    def of_layers(self, run: range) -> CacheLayout:
        """The memory of some of the layers, whose superpages hold as many items."""
        if len(run) == len(self.specs):
            return self
        specs = [self.specs[index] for index in run]
        return _lay_out(
            specs, self.pages_per_superpage, self.states_per_superpage, self.working_copies
        )


def plan_layout(specs: Sequence[CacheSpec], *, working_copies: int = 1) -> CacheLayout:
    """Choose a superpage that holds whole pages and whole states with little waste.

    Args:
        specs: What each layer remembers.
        working_copies: Working states of each sequence, where layers have any: two where drafts
            are computed, so that those before the step are still there when drafts are rejected.
    """
    if not any(spec.working for spec in specs):
        working_copies = 0
    page, state = _item_bytes(specs)
    if not page:
        pages, states = 0, min(1, state)
    elif not state:
        pages, states = 1, 0
    elif page <= 2 * state:
        pages, states = max(1, round(2 * state / page)), 2
    else:
        pages, states = 1, page // state
    return _lay_out(specs, pages, states, working_copies)


def _lay_out(
    specs: Sequence[CacheSpec], pages: int, states: int, working_copies: int
) -> CacheLayout:
    """With so many pages and states in a superpage."""
    page, state = _item_bytes(specs)
    run = sum(_aligned(t.nbytes) for spec in specs for t in spec.log_tensors.values())
    working = sum(_aligned(t.nbytes) for spec in specs for t in spec.working_tensors.values())
    run += working_copies * working
    unit = ALIGNMENT * lcm(max(pages, 1), max(states, 1))
    superpage = -(-max(pages * page, states * state) // unit) * unit
    return CacheLayout(tuple(specs), page, state, run, pages, states, superpage, working_copies)


def _item_bytes(specs: Sequence[CacheSpec]) -> tuple[int, int]:
    """Of a page, and of a state."""
    page = sum(_aligned(GRID * t.nbytes) for spec in specs for t in spec.paged.values())
    state = sum(_aligned(t.nbytes) for spec in specs for t in spec.checkpoint.values())
    return page, state


class Storage:
    """The memory of all layers.

    Args:
        layout: How items lie in superpages.
        shape: How many there are.
        device: Where.
        has_spare: Whether there are a page and a run slot behind those of ``shape``, which no
            sequence gets: rows of a graph that compute for nobody use them.
    """

    def __init__(
        self,
        layout: CacheLayout,
        shape: CacheShape,
        device: torch.device,
        *,
        has_spare: bool = False,
    ) -> None:
        size = shape.num_superpages * layout.superpage_bytes
        pages = shape.num_superpages * layout.pages_per_superpage
        states = shape.num_superpages * layout.states_per_superpage
        spare = size // pages if pages and has_spare else 0
        self._arena = zero_bytes(torch.Size((size + spare,)), device)
        self._pages = self._arena.view(pages + bool(spare), -1) if pages else None
        self._states = self._arena[:size].view(states, -1) if states else None
        self._logs: list[Tensor] = []
        self._working: list[Tensor] = []
        # of each copy of the working states
        self._first_rows = [copy * shape.max_running for copy in range(layout.working_copies)]
        self.nbytes = size
        # of an item of each class, what rounding to whole items leaves over included
        self.item_bytes = {
            ItemClass.PAGE: self._pages.shape[1] if self._pages is not None else 0,
            ItemClass.STATE: self._states.shape[1] if self._states is not None else 0,
        }
        self.layers = self._make_views(layout, shape, device, int(has_spare))

    def clear_pages(self, ids: Sequence[int]) -> None:
        """Zero pages, before they are handed out."""
        if self._pages is not None and ids:
            zero_rows(self._pages, ids)

    def clear_run_slots(self, ids: Sequence[int]) -> None:
        """Zero log rows and working states, before they are handed out."""
        if not ids:  # as in most steps
            return
        for tensor in self._logs:
            zero_rows(tensor, ids)
        rows = [slot + first for slot in ids for first in self._first_rows]
        for tensor in self._working:
            zero_rows(tensor, rows)

    def read(self, item_class: ItemClass, item: int) -> bytes:
        """The content of a page or a state."""
        return self._row(item_class, item).cpu().numpy().tobytes()

    def write(self, item_class: ItemClass, item: int, content: bytearray) -> None:
        """Put a content into a page or a state."""
        self._row(item_class, item).copy_(torch.frombuffer(content, dtype=torch.uint8))

    def copy_page(self, source: int, target: int) -> None:
        """Copy all that a page holds to another."""
        if self._pages is not None:
            copy_row(self._pages, source, target)

    def copy_run_slot(self, source: int, target: int, working_copy: int = 0) -> None:
        """Copy one sequence's log rows and working states to another's.

        Args:
            source: Run slot of the one.
            target: Run slot of the other, whose first working states are written.
            working_copy: Which of the source's working states.
        """
        for tensor in self._logs:
            copy_row(tensor, source, target)
        for tensor in self._working:
            copy_row(tensor, source + self._first_rows[working_copy], target)

    def _row(self, item_class: ItemClass, item: int) -> Tensor:
        items = self._pages if item_class is ItemClass.PAGE else self._states
        assert items is not None
        return items[item]

    def _make_views(
        self, layout: CacheLayout, shape: CacheShape, device: torch.device, num_spare: int
    ) -> tuple[LayerCache, ...]:
        caches: list[LayerCache] = []
        page_at = state_at = 0
        for spec in layout.specs:
            if spec.owner is not None:
                caches.append(caches[spec.owner])
                continue
            paged = {}
            checkpoint = {}
            for name, tensor in spec.paged.items():
                # a head's tokens side by side, as attention reads them: (..., GRID, size)
                wide = TensorSpec((*tensor.shape[:-1], GRID, tensor.shape[-1]), tensor.dtype)
                assert self._pages is not None
                paged[name] = _view(self._pages, wide, page_at).movedim(-2, 1)
                page_at += _aligned(wide.nbytes)
            for name, tensor in spec.checkpoint.items():
                assert self._states is not None
                checkpoint[name] = _view(self._states, tensor, state_at)
                state_at += _aligned(tensor.nbytes)
            runs = shape.max_running
            log = zeros(spec.log_tensors, runs + num_spare, device=device)
            num_working = layout.working_copies * runs + num_spare
            working = zeros(spec.working_tensors, num_working, device=device)
            self._logs += log.values()
            self._working += working.values()
            caches.append(LayerCache(paged, checkpoint, log, working))
        return tuple(caches)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _view(items: Tensor, spec: TensorSpec, offset: int) -> Tensor:
    """(items, *shape) inside (items, bytes), each at the same offset in its item."""
    part = items[:, offset : offset + spec.nbytes].view(spec.dtype)
    return part.view(len(items), *spec.shape)
