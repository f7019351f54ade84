"""Mixers that keep a working state: each token's state follows from the one before alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from blazr.nn.layers.base import Mixer
from blazr.nn.layers.batch import ForwardBatch, LayerCache, concat_rows
from blazr.nn.layers.cache_spec import GRID, TensorSpec
from blazr.nn.layers.linear import Linear
from blazr.nn.ops.sequence import Recurrences, StepTable, recurrences

State = dict[str, Tensor]


class RecurrentMixer(Mixer):
    """Drives :meth:`advance` over packed sequences, one grid interval at a time.

    A sequence's working state lies in its run slot. Right after a checkpoint the checkpoint itself
    is where it stands, so a resumed sequence needs no copy.
    """

    out_proj: Linear

    @abstractmethod
    def state_spec(self) -> Mapping[str, TensorSpec]:
        """The tensors of the state."""

    @abstractmethod
    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """At most GRID tokens of B sequences: (B, T, C) to (B, T, C), and the state after them."""

    @abstractmethod
    def step(self, x: Tensor, kernels: Recurrences, table: StepTable, cache: LayerCache) -> Tensor:
        """A whole step by kernels, (T, C) to (T, C)."""

    @property
    @abstractmethod
    def fits_kernels(self) -> bool:
        """Whether they have room for it."""

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); updates working states, writes the checkpoints asked for."""
        kernels = recurrences(x.device.type, self.out_proj.weight.dtype)
        if kernels is not None and self.fits_kernels:
            return self.step(x, kernels, batch.table, cache)
        decodes = batch.num_decodes
        parts = []
        if decodes:
            parts.append(self._decode(x[:decodes], batch, cache))
        for index in range(decodes, len(batch.spans)):
            parts.append(self._prefill(x[batch.spans[index].rows], index, batch, cache))
        return concat_rows(parts)

    def forward_sequences(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C), every sequence from a zero state."""
        state = {
            name: torch.zeros((x.shape[0], *spec.shape), dtype=spec.dtype, device=x.device)
            for name, spec in self.state_spec().items()
        }
        outputs = []
        for low in range(0, x.shape[1], GRID):
            y, state = self.advance(x[:, low : low + GRID], state)
            outputs.append(y)
        return torch.cat(outputs, 1)

    def _decode(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        spans = batch.spans[: len(x)]
        runs, slots = batch.run_slots[: len(x)], batch.state_slots[: len(x)]
        fresh = torch.tensor([span.log_length == 0 for span in spans], device=x.device)
        state = {}
        for name, stored in cache.checkpoint.items():
            mask = fresh.view(-1, *[1] * (stored.dim() - 1))
            state[name] = torch.where(mask, stored[slots], cache.live[name][runs])
        y, state = self.advance(x[:, None], state)
        for name, values in state.items():
            cache.live[name][runs] = values.to(cache.live[name].dtype)
            for index, span in enumerate(spans):
                for _, slot in span.checkpoints:
                    cache.checkpoint[name][slot] = values[index]
        return y[:, 0]

    def _prefill(self, x: Tensor, index: int, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        span = batch.spans[index]
        state = {name: cache.state(name, batch, index)[None] for name in cache.checkpoint}
        wanted = dict(span.checkpoints)
        outputs = []
        low = 0
        while low < span.length:
            high = min(low + GRID - (span.log_length + low) % GRID, span.length)
            y, state = self.advance(x[None, low:high], state)
            outputs.append(y[0])
            if high in wanted:
                for name, values in state.items():
                    cache.checkpoint[name][wanted[high]] = values[0]
            low = high
        for name, values in state.items():
            cache.live[name][batch.run_slots[index]] = values[0]
        return concat_rows(outputs)
