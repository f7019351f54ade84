"""A layer: norms, the interfaces of its two halves, and the residual stream around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from blazr.nn.layers.batch import ForwardBatch, LayerCache, whole_sequences
from blazr.nn.layers.cache_spec import CacheSpec
from blazr.nn.layers.derived import DerivedModule, derived
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.ranks import ALONE, Joined, Parts, Rank, mean_square, under
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.norm import add_rms_norm, layer_norm, rms_norm, scale_rms
from blazr.nn.ops.pointwise import activate, add, scaled
from blazr.nn.ops.replay import recordable


@dataclass(frozen=True, slots=True)
class NormConfig:
    """A normalisation over the last dimension.

    Args:
        size: C.
        eps: Added to the mean square or the variance.
        kind: ``"rms"`` (weight only) or ``"layer"`` (mean removed, weight and bias).
        unit_offset: Whether the weight is stored less one.
        is_cut: Whether ranks have equal parts of the channels of an RMSNorm.
        has_weight: Whether there is a weight; without one there is no bias either (OLMo).
        has_bias: Whether a LayerNorm has a bias (Cohere's have none).
    """

    size: int
    eps: float
    kind: Literal["rms", "layer"] = "rms"
    unit_offset: bool = False
    is_cut: bool = False
    has_weight: bool = True
    has_bias: bool = True

    def build(self) -> Norm:
        """The module, with uninitialised parameters."""
        return Norm(self) if self.has_weight else PlainNorm(self)


class Norm(Joined, DerivedModule):
    """RMSNorm or LayerNorm, as its config says."""

    bias: nn.Parameter | None

    def __init__(self, config: NormConfig) -> None:
        super().__init__()
        self.size = config.size
        self.eps = config.eps
        self.is_layer_norm = config.kind == "layer"
        self.is_cut = config.is_cut
        self.unit_offset = config.unit_offset
        if config.has_weight:
            self.weight = nn.Parameter(torch.empty(config.size))
        has_bias = self.is_layer_norm and config.has_weight and config.has_bias
        self.bias = nn.Parameter(torch.empty(config.size)) if has_bias else None

    @derived
    def factors(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of a LayerNorm, as the operation takes them."""
        weight = self.weight + 1 if self.unit_offset else self.weight
        return weight, torch.zeros_like(weight) if self.bias is None else self.bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        if self.is_layer_norm:
            return layer_norm(x, *self.factors, self.eps)
        if self.is_cut and self.ranks is not ALONE:
            mean = mean_square(x.float(), self.ranks)
            return scale_rms(x, mean, self.weight, self.eps, unit_offset=self.unit_offset)
        return rms_norm(x, self.weight, self.eps, unit_offset=self.unit_offset)

    def after(self, x: Tensor, change: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """``x + change * factor``, and what this makes of it, (..., C) each."""
        is_whole_rms = not self.is_layer_norm and not (self.is_cut and self.ranks is not ALONE)
        # recorded steps of a CPU have the addition in the product before it
        if is_whole_rms and x.is_cuda:
            offset = self.unit_offset
            both = add_rms_norm(x, change, self.weight, self.eps, factor, unit_offset=offset)
            return both[0], both[1]
        x = add(x, change, factor)
        return x, recordable(self, x, like=x)


class PlainNorm(Norm):
    """One without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        ones = x.new_ones(self.size)
        if self.is_layer_norm:
            return layer_norm(x, ones, torch.zeros_like(ones), self.eps)
        return rms_norm(x, ones, self.eps)

    def after(self, x: Tensor, change: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """See `Norm.after`."""
        x = add(x, change, factor)
        return x, recordable(self, x, like=x)


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
    def part(self, rank: Rank) -> tuple[Self, Parts]:
        """The mixer of a rank, what of this one's parameters it holds.

        What the mixers of all ranks put out adds up to what this one does.

        Raises:
            ConfigError: It cannot be cut in so many.
        """

    @abstractmethod
    def build(self) -> Mixer:
        """The module, with uninitialised parameters."""


class Mixer(Joined, DerivedModule, ABC):
    """Mixes information between tokens."""

    config: MixerConfig

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """One serving step: (T, C) to (T, C). Reads and writes its own cache, nothing else."""

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """Bring working states up to the end of the log, by the recurrence alone.

        Mixers without working states have nothing to do.

        Args:
            table: B sequences, from where their checkpoints or working states stand, and how many
                of the tokens since count. They are in the log. No checkpoint is written.
            cache: The layer's memory.
        """

    def forward_sequences(self, x: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Whole sequences from nothing, (B, T, C) to (B, T, C), differentiable: for training.

        Args:
            x: The sequences.
            cache: Empty memory, or that of an earlier layer which this one reads; None for memory
                that nobody else reads.
        """
        count, length = x.shape[:2]
        spec = self.config.cache_spec(x.dtype)
        batch, own = whole_sequences(count, length, spec, x.device)
        out: Tensor = self(x.flatten(0, 1), batch, own if cache is None else cache)
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
    def part(self, rank: Rank) -> tuple[Self, Parts]:
        """The feed-forward of a rank; see `MixerConfig.part`."""

    @abstractmethod
    def build(self) -> FeedForward:
        """The module, with uninitialised parameters."""


class FeedForward(nn.Module, ABC):
    """Mixes the channels of each token."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """(T, C) to (T, C)."""


@dataclass(frozen=True, slots=True)
class NormedResidual:
    """The sum behind a half of a layer whose residual stream leaves behind the norm (MiniMax).

    Args:
        kept: What the half's input is multiplied with.
        added: What its output is multiplied with.
    """

    kept: float
    added: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputConfig:
    """A part that lets a vector of each token, made for this layer, into the residual stream.

    Args:
        size: P, channels of the vectors.
        activation: A name of ACTIVATIONS.
        norm: Of what is added.
    """

    size: int
    activation: str
    norm: NormConfig

    def build(self) -> TokenInput:
        """The module, with uninitialised parameters."""
        return TokenInput(self)


class TokenInput(nn.Module):
    """``norm(projection(act(gate(x)) * vector))`` (Gemma 3n)."""

    def __init__(self, config: TokenInputConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.gate = Linear(config.norm.size, config.size)
        self.projection = Linear(config.size, config.norm.size)
        self.norm = config.norm.build()

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        """(..., C) and (..., P) to (..., C)."""
        inner = activate(self.gate(x), self.activation, vectors.to(x.dtype))
        added: Tensor = self.norm(self.projection(inner))
        return added


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
        is_parallel: Whether the feed-forward sees the layer's input, not what the mixer has added
            to it; through the mixer's norm, where it has none of its own.
        joins_embedding: Whether the mixer sees the embedded tokens beside the residual stream, as
            2 * C channels (Zamba2).
        shares_layer: Index of an earlier layer whose mixer owns what this one's uses, too.
        token_input: Behind the feed-forward, or None.
        output_scale: Whether a stored factor scales the residual stream behind the layer (Gemma 4).
        normed_residuals: How input and output of the mixer and of the feed-forward are added up,
            where residuals leave behind the norm; None where they leave before it.
    """

    mixer: MixerConfig
    mixer_norm: NormConfig | None
    feed_forward: FeedForwardConfig | None = None
    feed_forward_norm: NormConfig | None = None
    mixer_post_norm: NormConfig | None = None
    feed_forward_post_norm: NormConfig | None = None
    residual_multiplier: float = 1.0
    is_parallel: bool = False
    joins_embedding: bool = False
    shares_layer: int | None = None
    token_input: TokenInputConfig | None = None
    output_scale: bool = False
    normed_residuals: tuple[NormedResidual, NormedResidual] | None = None

    def part(self, rank: Rank) -> tuple[LayerConfig, Parts]:
        """The layer of a rank; see `MixerConfig.part`."""
        mixer, held = self.mixer.part(rank)
        parts = under("mixer", held)
        feed = self.feed_forward
        if feed is not None:
            feed, held = feed.part(rank)
            parts |= under("feed_forward", held)
        return replace(self, mixer=mixer, feed_forward=feed), parts

    def build(self) -> DecoderLayer:
        """The module, with uninitialised parameters."""
        return DecoderLayer(self)


class DecoderLayer(Joined, DerivedModule):
    """``x + mixer(norm(x))``, then ``x + feed_forward(norm(x))``; norms may stand behind, too.

    Where both are parallel, ``x + mixer(norm(x)) + feed_forward(norm(x))``. Where residuals leave
    behind the norm, x is ``norm(x)``, and both summands are weighted.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.residual_multiplier = config.residual_multiplier
        self.is_parallel = config.is_parallel
        self.shares_norm = config.is_parallel and config.feed_forward_norm is None
        self.normed_residuals = config.normed_residuals
        self.joins_embedding = config.joins_embedding
        self.mixer_norm = _build(config.mixer_norm)
        self.mixer = config.mixer.build()
        self.mixer_post_norm = _build(config.mixer_post_norm)
        self.has_feed_forward = config.feed_forward is not None
        if config.feed_forward is not None:
            self.feed_forward_norm = _build(config.feed_forward_norm)
            self.feed_forward = config.feed_forward.build()
            self.feed_forward_post_norm = _build(config.feed_forward_post_norm)
        token_input, scale = config.token_input, config.output_scale
        self.token_input = None if token_input is None else token_input.build()
        self.output_scale = nn.Parameter(torch.empty(1)) if scale else None

    def forward(
        self,
        x: Tensor,
        batch: ForwardBatch,
        cache: LayerCache,
        embedded: Tensor | None = None,
        *,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """One serving step, (T, C) to (T, C).

        Args:
            x: The residual stream.
            batch: The step.
            cache: The layer's memory.
            embedded: What the first layer saw, (T, C).
            vectors: What `token_input` takes, (T, P).
        """
        normed = self._pre_norm(x, embedded)
        mixed = recordable(self.mixer, normed, batch, cache, like=x)
        return self.after_mixer(normed if self.normed_residuals else x, mixed, vectors)

    def remember(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """The mixer alone, (T, C) to (T, C): it writes what later tokens need of these."""
        return recordable(self.mixer, self._pre_norm(x, None), batch, cache, like=x)

    def forward_sequences(
        self,
        x: Tensor,
        embedded: Tensor | None = None,
        *,
        vectors: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Whole sequences from nothing, (B, T, C) to (B, T, C); see `Mixer.forward_sequences`."""
        normed = self._pre_norm(x, embedded)
        mixed = self.mixer.forward_sequences(normed, cache)
        return self.after_mixer(normed if self.normed_residuals else x, mixed, vectors)

    def _pre_norm(self, x: Tensor, embedded: Tensor | None) -> Tensor:
        if self.joins_embedding:
            assert embedded is not None
            wide = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
            x = recordable(lambda *both: torch.cat(both, -1), x, embedded, like=wide)
        return recordable(self.mixer_norm, x, like=x)

    def after_mixer(self, x: Tensor, mixed: Tensor, vectors: Tensor | None = None) -> Tensor:
        """Add what the mixer put out to the residual stream, and all that follows: (T, C)."""
        mixed = self.ranks.sum(mixed)
        if self.normed_residuals is not None:
            around_mixer, around_feed = self.normed_residuals
            x = add(scaled(x, around_mixer.kept), mixed, around_mixer.added)
            x = recordable(self.feed_forward_norm, x, like=x)
            fed = self.ranks.sum(recordable(self.feed_forward, x, like=x))
            return add(scaled(x, around_feed.kept), fed, around_feed.added)
        mixed = recordable(self.mixer_post_norm, mixed, like=x)
        x = self._feed(x, mixed) if self.has_feed_forward else self._add(x, mixed)
        if self.token_input is not None:
            x = add(x, recordable(self.token_input, x, vectors, like=x))
        return x if self.output_scale is None else scaled(x, self._output_factor)

    @derived
    def _output_factor(self) -> float:
        assert self.output_scale is not None
        return self.output_scale.item()

    def _feed(self, x: Tensor, mixed: Tensor) -> Tensor:
        if self.is_parallel:
            norm = self.mixer_norm if self.shares_norm else self.feed_forward_norm
            x, normed = self._add(x, mixed), recordable(norm, x, like=x)
        elif isinstance(self.feed_forward_norm, Norm):
            x, normed = self.feed_forward_norm.after(x, mixed, self.residual_multiplier)
        else:
            x = normed = self._add(x, mixed)
        fed = recordable(self.feed_forward, normed, like=x)
        fed = self.ranks.sum(fed)
        return self._add(x, recordable(self.feed_forward_post_norm, fed, like=x))

    def _add(self, x: Tensor, change: Tensor) -> Tensor:
        return add(x, change, self.residual_multiplier)


def _build(norm: NormConfig | None) -> nn.Module:
    return nn.Identity() if norm is None else norm.build()
