"""The interfaces of a layer's two halves."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from blazr.nn.layers.batch import ForwardBatch, LayerCache, whole_sequences
from blazr.nn.layers.cache_spec import CacheSpec
from blazr.nn.layers.derived import DerivedModule
from blazr.nn.operands.step import StepTable


class MixerConfig(ABC):
    """Sizes of a mixer, in the field's own terms. Implementations are frozen dataclasses."""

    @abstractmethod
    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """What the mixer remembers when activations have this dtype."""

    def length_class(self, length: int) -> int:
        """Sequences of one class that may become this long remember a prefix alike.

        Args:
            length: Most tokens the sequence may ever have.
        """
        del length
        return 0

    @abstractmethod
    def build(self) -> Mixer:
        """The module, with uninitialised parameters."""


class Mixer(DerivedModule, ABC):
    """Mixes information between tokens."""

    config: MixerConfig

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """One serving step: (T, C) to (T, C). Reads and writes its own cache, nothing else."""

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """Make working states again, by the recurrence alone, from checkpoints and log.

        Mixers without working states have nothing to do.

        Args:
            table: B sequences that begin at their checkpoints, and how many of the tokens since
                they go back to. No checkpoint is written.
            cache: The layer's memory.
        """

    def forward_sequences(self, x: Tensor) -> Tensor:
        """Whole sequences from nothing, (B, T, C) to (B, T, C), differentiable: for training."""
        count, length = x.shape[:2]
        spec = self.config.cache_spec(x.dtype)
        out: Tensor = self(x.flatten(0, 1), *whole_sequences(count, length, spec, x.device))
        return out.unflatten(0, (count, length))

    def share(self, owner: Mixer) -> None:
        """Use what an earlier layer's mixer owns.

        Raises:
            TypeError: This kind of mixer shares nothing.
        """
        raise TypeError(f"{type(self).__name__} takes nothing from {type(owner).__name__}")


class FeedForwardConfig(ABC):
    """Sizes of a feed-forward. Implementations are frozen dataclasses."""

    @abstractmethod
    def build(self) -> FeedForward:
        """The module, with uninitialised parameters."""


class FeedForward(nn.Module, ABC):
    """Mixes the channels of each token."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """(T, C) to (T, C)."""
