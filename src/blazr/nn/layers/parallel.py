"""Mixers, or feed-forwards, side by side: all see the same input, and their outputs are added."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import (
    FeedForward,
    FeedForwardConfig,
    Mixer,
    MixerConfig,
    NormConfig,
)
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, merge_specs
from blazr.nn.layers.ranks import Held, Joined, Parts, Rank, under
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.pointwise import add, scaled
from blazr.nn.ops.replay import recordable


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPart:
    """One of the mixers.

    Args:
        name: What its parameters and its memory are called by.
        mixer: The mixer.
        input_multiplier: Applied to what it sees.
        output_multiplier: Applied to what it puts out.
    """

    name: str
    mixer: MixerConfig
    input_multiplier: float = 1.0
    output_multiplier: float = 1.0


@dataclass(frozen=True, slots=True)
class ParallelMixerConfig(MixerConfig):
    """Mixers side by side.

    Args:
        parts: The mixers. Without any, nothing is added: for layers that are a feed-forward alone.
    """

    parts: tuple[ParallelPart, ...] = ()

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """All that the parts remember, each under its name."""
        return merge_specs({part.name: part.mixer.cache_spec(dtype) for part in self.parts})

    def length_class(self, length: int) -> int:
        """As the parts have it."""
        return max((part.mixer.length_class(length) for part in self.parts), default=0)

    def part(self, rank: Rank) -> tuple[ParallelMixerConfig, Parts]:
        """Each mixer is cut."""
        parts: dict[str, Held] = {}
        mixers = []
        for each in self.parts:
            mixer, held = each.mixer.part(rank)
            mixers.append(replace(each, mixer=mixer))
            parts |= under(f"parts.{each.name}", held)
        return ParallelMixerConfig(tuple(mixers)), parts

    def build(self) -> ParallelMixer:
        """The module, with uninitialised parameters."""
        return ParallelMixer(self)


class ParallelMixer(Mixer):
    """The sum of its parts, such as attention and a state space [Falcon-H1, arXiv:2507.22448]."""

    config: ParallelMixerConfig

    def __init__(self, config: ParallelMixerConfig) -> None:
        super().__init__(config)
        self.parts = nn.ModuleDict({part.name: part.mixer.build() for part in config.parts})

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); each part reads and writes its own share of the cache."""
        out = None
        for each, mixer in zip(self.config.parts, self.parts.values(), strict=True):
            seen = scaled(x, each.input_multiplier)
            mixed = recordable(mixer, seen, batch, cache.of(each.name), like=x)
            factor = each.output_multiplier
            out = scaled(mixed, factor) if out is None else add(out, mixed, factor)
        return torch.zeros_like(x) if out is None else out

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """As the parts do."""
        for name, mixer in self.parts.items():
            assert isinstance(mixer, Mixer)
            mixer.rewind(table, cache.of(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardPart:
    """One of the feed-forwards.

    Args:
        name: What its parameters are called by.
        feed_forward: The feed-forward.
        norm: Before it, or None.
        post_norm: Of what it puts out.
    """

    name: str
    feed_forward: FeedForwardConfig
    norm: NormConfig | None
    post_norm: NormConfig


@dataclass(frozen=True, slots=True)
class ParallelFeedForwardConfig(FeedForwardConfig):
    """Feed-forwards side by side, each between norms of its own.

    Args:
        parts: The feed-forwards, at least one.
    """

    parts: tuple[FeedForwardPart, ...]

    def part(self, rank: Rank) -> tuple[ParallelFeedForwardConfig, Parts]:
        """Each feed-forward is cut."""
        parts: dict[str, Held] = {}
        cut = []
        for each in self.parts:
            own, held = each.feed_forward.part(rank)
            cut.append(replace(each, feed_forward=own))
            parts |= under(f"parts.{each.name}", held)
        return ParallelFeedForwardConfig(tuple(cut)), parts

    def build(self) -> ParallelFeedForward:
        """The module, with uninitialised parameters."""
        return ParallelFeedForward(self)


def feed_forwards_of(config: FeedForwardConfig | None) -> tuple[FeedForwardConfig, ...]:
    """The feed-forwards of a layer: those side by side, the one, or none."""
    if isinstance(config, ParallelFeedForwardConfig):
        return tuple(part.feed_forward for part in config.parts)
    return () if config is None else (config,)


class ParallelFeedForward(Joined, FeedForward):
    """The sum of its parts, such as an MLP and experts (Gemma 4)."""

    def __init__(self, config: ParallelFeedForwardConfig) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({part.name: part.feed_forward.build() for part in config.parts})
        norms = {part.name: part.norm.build() for part in config.parts if part.norm is not None}
        self.norms = nn.ModuleDict(norms)
        self.post_norms = nn.ModuleDict(
            {part.name: part.post_norm.build() for part in config.parts}
        )

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        out = None
        for name, part in self.parts.items():
            seen = self.norms[name](x) if name in self.norms else x
            # the norm is of what all ranks put out
            normed = self.post_norms[name](self.ranks.sum(part(seen)))
            out = normed if out is None else add(out, normed)
        assert out is not None
        # what ranks put out is added up, and this is whole on each
        return torch.zeros_like(out) if self.ranks.rank.number else out
