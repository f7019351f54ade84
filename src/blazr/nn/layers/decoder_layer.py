"""One layer: the residual stream around a mixer and a feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from blazr.nn.layers.base import FeedForwardConfig, MixerConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.norm import NormConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """Any mixer with any feed-forward, or none.

    Args:
        mixer: Mixes tokens.
        mixer_norm: Before the mixer.
        feed_forward: Mixes channels; None for layers that are a mixer alone.
        feed_forward_norm: Before the feed-forward.
    """

    mixer: MixerConfig
    mixer_norm: NormConfig
    feed_forward: FeedForwardConfig | None = None
    feed_forward_norm: NormConfig | None = None


class DecoderLayer(nn.Module):
    """``x + mixer(norm(x))``, then ``x + feed_forward(norm(x))``."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.mixer_norm = config.mixer_norm.build()
        self.mixer = config.mixer.build()
        self.has_feed_forward = config.feed_forward is not None
        if config.feed_forward is not None and config.feed_forward_norm is not None:
            self.feed_forward_norm = config.feed_forward_norm.build()
            self.feed_forward = config.feed_forward.build()

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """One serving step, (T, C) to (T, C)."""
        return self._feed(x + self.mixer(self.mixer_norm(x), batch, cache))

    def forward_sequences(self, x: Tensor) -> Tensor:
        """Whole sequences from nothing, (B, T, C) to (B, T, C)."""
        return self._feed(x + self.mixer.forward_sequences(self.mixer_norm(x)))

    def _feed(self, x: Tensor) -> Tensor:
        if not self.has_feed_forward:
            return x
        return x + self.feed_forward(self.feed_forward_norm(x))
