"""Several residual streams, of which a layer computes one and corrects the others (Gemma 3n).

Source: Baykal et al. 2023, "Alternating Updates for Efficient Transformers", arXiv:2301.13310.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import DecoderLayer, LayerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.linear import Linear
from blazr.nn.ops.pointwise import add, dense, scaled
from blazr.nn.ops.replay import recordable

_LEAST_SQUARE = 1e-5  # a mean square that is divided by at least


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """How one stream becomes several, and several become one.

    Args:
        hidden_size: C.
        count: N, how many there are.
    """

    hidden_size: int
    count: int

    def build(self) -> Streams:
        """The module, with uninitialised parameters."""
        return Streams(self)


class Streams(nn.Module):
    """Projections of the first stream to the others, and back; all keep its magnitude."""

    def __init__(self, config: StreamsConfig) -> None:
        super().__init__()
        self.count = config.count
        size = (config.count - 1, config.hidden_size, config.hidden_size)
        self.projections = nn.Parameter(torch.empty(size))
        self.unembed_projections = nn.Parameter(torch.empty(size))

    def split(self, x: Tensor) -> Tensor:
        """(..., C) to (..., N, C)."""
        others = torch.einsum("...c,nec->...ne", x, self.projections)
        return torch.cat((x.unsqueeze(-2), _as_large(others, x)), -2)

    def join(self, x: Tensor) -> Tensor:
        """(..., N, C) to (..., C), their mean."""
        first = x[..., 0, :]
        others = torch.einsum("...nc,nec->...ne", x[..., 1:, :], self.unembed_projections)
        return torch.cat((first.unsqueeze(-2), _as_large(others, first)), -2).mean(-2)


def _as_large(others: Tensor, first: Tensor) -> Tensor:
    """Vectors, (..., N, C), with the root mean square of the first one, (..., C)."""
    wanted = first.square().mean(-1, keepdim=True).sqrt().unsqueeze(-2)
    found = others.square().mean(-1, keepdim=True).clamp(min=_LEAST_SQUARE).sqrt()
    return others * wanted / found


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUpLayerConfig(LayerConfig):
    """A layer of several streams.

    Args:
        num_streams: N.
        active: Which of them the layer computes.
        norm: Of what the router sees, and behind the low-rank residual.
        laurel_rank: Of the residual beside the mixer [arXiv:2411.07501].
        scales_correction: Whether what `token_input` sees has a stored factor a channel.
    """

    num_streams: int
    active: int
    norm: NormConfig
    laurel_rank: int
    scales_correction: bool

    def build(self) -> AltUpLayer:
        """The module, with uninitialised parameters."""
        return AltUpLayer(self)


class AltUpLayer(DecoderLayer):
    """Predicts all streams, computes one of them as other layers do, and corrects the others."""

    def __init__(self, config: AltUpLayerConfig) -> None:
        super().__init__(config)
        self.config = config
        hidden, count = config.norm.size, config.num_streams
        self.prediction = Linear(count, count * count)
        self.correction = Linear(count, count)
        self.stream_router = Linear(hidden, count)
        self.router_norm = config.norm.build()
        self.laurel_left = Linear(hidden, config.laurel_rank)
        self.laurel_right = Linear(config.laurel_rank, hidden)
        self.laurel_norm = config.norm.build()
        self.correction_scale = None
        if config.scales_correction:
            self.correction_scale = nn.Parameter(torch.empty(hidden))

    def forward(
        self,
        x: Tensor,
        batch: ForwardBatch,
        cache: LayerCache,
        embedded: Tensor | None = None,
        *,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """One serving step, (T, N, C) to (T, N, C)."""
        del embedded
        streams, normed = self._begin(x)
        mixed = recordable(self.mixer, normed, batch, cache, like=normed)
        return self._end(streams, normed, mixed, vectors)

    def forward_sequences(
        self,
        x: Tensor,
        embedded: Tensor | None = None,
        *,
        vectors: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Whole sequences from nothing, (B, T, N, C) to (B, T, N, C)."""
        del embedded
        streams, normed = self._begin(x)
        mixed = self.mixer.forward_sequences(normed, cache)
        return self._end(streams, normed, mixed, vectors)

    # What a part of a recorded step puts out lasts until the next part is done. So parts put out
    # what is added, and what is needed for longer is the sum.

    def _begin(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """All streams as they are predicted, and what the mixer sees."""
        streams = add(x, recordable(self._prediction, x, like=x))
        normed: Tensor = self.mixer_norm(self._active(streams))
        return streams, normed

    def _end(
        self, streams: Tensor, normed: Tensor, mixed: Tensor, vectors: Tensor | None
    ) -> Tensor:
        active = self._active(streams)
        mixed = recordable(self.mixer_post_norm, self.ranks.sum(mixed), like=active)
        x = add(active, mixed)
        x = scaled(add(x, recordable(self._laurel, normed, like=x)), 1 / math.sqrt(2))
        fed = recordable(self.feed_forward, self.feed_forward_norm(x), like=x)
        x = add(x, recordable(self.feed_forward_post_norm, self.ranks.sum(fed), like=x))
        streams = add(streams, recordable(self._correction, streams, x, like=streams))
        assert self.token_input is not None
        seen = self._active(streams)
        if self.correction_scale is not None:
            seen = recordable(self._scaled, seen, like=seen)
        added = recordable(self.token_input, seen, vectors, like=seen)
        return add(streams, recordable(self._to_others, added, like=streams))

    def _active(self, streams: Tensor) -> Tensor:
        """That which the layer computes, (..., C)."""
        return dense(streams[..., self.config.active, :])

    def _laurel(self, x: Tensor) -> Tensor:
        """A residual of low rank beside the mixer."""
        normed: Tensor = self.laurel_norm(self.laurel_right(self.laurel_left(x)))
        return x + normed

    def _scaled(self, x: Tensor) -> Tensor:
        assert self.correction_scale is not None
        return x * self.correction_scale

    def _modalities(self, x: Tensor) -> Tensor:
        """(..., C) to (..., N)."""
        routed = self.stream_router(self.router_norm(x) * x.shape[-1] ** -1.0)
        return torch.tanh(routed.float() if routed.dtype.itemsize < 4 else routed).to(x.dtype)

    def _prediction(self, x: Tensor) -> Tensor:
        """What other streams add to each."""
        coefficients = self.prediction(self._modalities(x[..., self.config.active, :]))
        return coefficients.unflatten(-1, (self.config.num_streams, -1)) @ x

    def _correction(self, streams: Tensor, x: Tensor) -> Tensor:
        """What each stream learns from the one that was computed."""
        change = (x - streams[..., self.config.active, :]).unsqueeze(-2)
        return change * (self.correction(self._modalities(x)) + 1).unsqueeze(-1)

    def _to_others(self, added: Tensor) -> Tensor:
        """The same for all streams but the first: (..., C) to (..., N, C)."""
        added = added.unsqueeze(-2)
        others = [added] * (self.config.num_streams - 1)
        return torch.cat([torch.zeros_like(added), *others], -2)
