"""Multi-token prediction: from a token and the hidden state before it, the token after it.

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.base import DecoderLayer, LayerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import Linear
from blazr.nn.ops.mtp import join_previous, keep_last

_HIDDEN = "hidden"  # name in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpConfig:
    """A module that predicts one token further; embedding and head are the network's.

    Args:
        layer: Its only layer, of attention.
        norm: Of the embedded token, of the hidden state, and before the head.
    """

    layer: LayerConfig
    norm: NormConfig

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """What the module remembers when activations have this dtype."""
        spec = self.layer.mixer.cache_spec(dtype)
        return replace(spec, log={**spec.log, _HIDDEN: TensorSpec((self.norm.size,), dtype)})

    def build(self) -> Mtp:
        """The module, with uninitialised parameters."""
        return Mtp(self)


class Mtp(nn.Module):
    """Norms, a projection of both inputs to one, a layer, and a norm.

    What it remembers at a token's place is made of that token and the hidden state before it, never
    of what comes after: texts that begin alike share it.
    """

    def __init__(self, config: MtpConfig) -> None:
        super().__init__()
        size = config.norm.size
        self.embedding_norm = config.norm.build()
        self.hidden_norm = config.norm.build()
        self.projection = Linear(2 * size, size)
        self.layers = nn.ModuleList([DecoderLayer(config.layer)])
        self.norm = config.norm.build()

    def remember(
        self, embedded: Tensor, hidden: Tensor, batch: ForwardBatch, cache: LayerCache
    ) -> Tensor:
        """Write what later tokens attend to.

        Args:
            embedded: The step's tokens, (T, C).
            hidden: Their hidden states behind the network's final norm, (T, C).
            batch: The step.
            cache: The module's memory.

        Returns:
            What the layer's mixer put out, (T, C), of which nothing is made.
        """
        hidden = self.hidden_norm(hidden)
        x = self._join(embedded, hidden, batch, cache)
        keep_last(hidden, cache.log[_HIDDEN], batch.table)
        return self._layer.remember(x, batch, cache)

    def forward(self, embedded: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """One token of each of B sequences, whose hidden states before it are remembered.

        The hidden state that is returned stands for the token's own until that is known.

        Args:
            embedded: The tokens, (B, C).
            batch: The step.
            cache: The module's memory.

        Returns:
            Hidden states for the head, (B, C).
        """
        x = self._join(embedded, embedded, batch, cache)
        hidden: Tensor = self.norm(self._layer(x, batch, cache))
        keep_last(self.hidden_norm(hidden), cache.log[_HIDDEN], batch.table)
        return hidden

    def forward_sequences(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Whole sequences from nothing, differentiable: for training.

        Args:
            embedded: (B, T, C).
            hidden: Behind the network's final norm, (B, T, C).

        Returns:
            Hidden states for the head, (B, T, C).
        """
        previous = F.pad(self.hidden_norm(hidden), (0, 0, 1, 0))[:, :-1]
        x = self.projection(torch.cat((self.embedding_norm(embedded), previous), -1))
        return self.norm(self._layer.forward_sequences(x))

    def _join(
        self, embedded: Tensor, hidden: Tensor, batch: ForwardBatch, cache: LayerCache
    ) -> Tensor:
        embedded = self.embedding_norm(embedded)
        both = join_previous(embedded, hidden, cache.log[_HIDDEN], batch.table)
        return self.projection(both)

    @property
    def _layer(self) -> DecoderLayer:
        (layer,) = self.layers
        assert isinstance(layer, DecoderLayer)
        return layer
