"""One layer: the residual stream around a mixer and a feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import FeedForwardConfig, MixerConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.norm import NormConfig
from blazr.nn.ops.pointwise import add
from blazr.nn.ops.replay import recordable


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """Any mixer with any feed-forward, or none.

    Args:
        mixer: Mixes tokens.
        mixer_norm: Before the mixer, or None.
        feed_forward: Mixes channels; None for layers that are a mixer alone.
        feed_forward_norm: Before the feed-forward, or None.
        mixer_post_norm: Of what the mixer puts out, or None.
        feed_forward_post_norm: Of what the feed-forward puts out, or None.
        residual_multiplier: Applied to what both add to the residual stream.
        joins_embedding: Whether the mixer sees the embedded tokens beside the residual stream, as
            2 * C channels (Zamba2).
        shares_layer: Index of an earlier layer whose mixer owns what this one's uses, too.
    """

    mixer: MixerConfig
    mixer_norm: NormConfig | None
    feed_forward: FeedForwardConfig | None = None
    feed_forward_norm: NormConfig | None = None
    mixer_post_norm: NormConfig | None = None
    feed_forward_post_norm: NormConfig | None = None
    residual_multiplier: float = 1.0
    joins_embedding: bool = False
    shares_layer: int | None = None


class DecoderLayer(nn.Module):
    """``x + mixer(norm(x))``, then ``x + feed_forward(norm(x))``; norms may stand behind, too."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.residual_multiplier = config.residual_multiplier
        self.joins_embedding = config.joins_embedding
        self.mixer_norm = _build(config.mixer_norm)
        self.mixer = config.mixer.build()
        self.mixer_post_norm = _build(config.mixer_post_norm)
        self.has_feed_forward = config.feed_forward is not None
        if config.feed_forward is not None:
            self.feed_forward_norm = _build(config.feed_forward_norm)
            self.feed_forward = config.feed_forward.build()
            self.feed_forward_post_norm = _build(config.feed_forward_post_norm)

    def forward(
        self, x: Tensor, batch: ForwardBatch, cache: LayerCache, embedded: Tensor | None = None
    ) -> Tensor:
        """One serving step, (T, C) to (T, C); ``embedded`` is what the first layer saw."""
        return self._residual(
            x, recordable(self.mixer, self._pre_norm(x, embedded), batch, cache, like=x)
        )

    def forward_sequences(self, x: Tensor, embedded: Tensor | None = None) -> Tensor:
        """Whole sequences from nothing, (B, T, C) to (B, T, C)."""
        return self._residual(x, self.mixer.forward_sequences(self._pre_norm(x, embedded)))

    def _pre_norm(self, x: Tensor, embedded: Tensor | None) -> Tensor:
        if self.joins_embedding:
            assert embedded is not None
            wide = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
            x = recordable(lambda *both: torch.cat(both, -1), x, embedded, like=wide)
        return recordable(self.mixer_norm, x, like=x)

    def _residual(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = self._add(x, recordable(self.mixer_post_norm, mixed, like=x))
        if not self.has_feed_forward:
            return x
        fed = recordable(self.feed_forward, recordable(self.feed_forward_norm, x, like=x), like=x)
        return self._add(x, recordable(self.feed_forward_post_norm, fed, like=x))

    def _add(self, x: Tensor, change: Tensor) -> Tensor:
        return add(x, change, self.residual_multiplier)


def _build(norm: NormConfig | None) -> nn.Module:
    return nn.Identity() if norm is None else norm.build()
