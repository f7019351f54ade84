"""A model as the reference has it: an embedding, functions for layers, a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.bench.reference.norms import layer_norm, rms_norm
from blazr.bench.reference.weights import Weights

Function = Callable[[Tensor], Tensor]
# From the residual stream and the embedded tokens, both (T, C), to the residual stream.
Layer = Callable[[Tensor, Tensor], Tensor]
# Rows of the head at a time.
_TILE = 2**13


@dataclass(frozen=True, kw_only=True)
class ReferenceModel:
    """A language model in plain formulas.

    Args:
        kind: What it is, for people.
        embed: Token ids (T) to (T, C).
        layers: In their order.
        logits: (T, C) to (T, V).
        split: Makes several residual streams of embedded tokens, (T, C) to (T, N, C), if there are
            several; layers and `logits` then take these.
    """

    kind: str
    embed: Function
    layers: Sequence[Layer]
    logits: Function
    split: Function | None = None


def norm_of(
    w: Weights, name: str, eps: float, *, offset: float = 0.0, centred: bool = False
) -> Function:
    """RMSNorm, or LayerNorm where there is a bias.

    Args:
        w: Where its tensors are.
        name: Its name.
        eps: Its eps.
        offset: What is added to the stored weight.
        centred: Whether it is a LayerNorm where there is no bias, too.
    """

    def apply(x: Tensor) -> Tensor:
        own = w.get(name + ".weight")
        weight = x.new_ones(x.shape[-1]) if own is None else own + offset
        bias = w.get(name + ".bias")
        if bias is None and centred:
            bias = torch.zeros_like(weight)
        if bias is not None:
            return layer_norm(x, weight, bias, eps)
        return rms_norm(x, weight, eps)

    return apply


@dataclass(frozen=True, kw_only=True)
class Half:
    """``x + scale * after(inner(before(x)))``, or ``kept * before(x) + ...`` (MiniMax)."""

    inner: Function
    before: Function | None = None
    after: Function | None = None
    scale: float = 1.0
    kept: float | None = None

    def change(self, x: Tensor) -> Tensor:
        """What is added, (T, C)."""
        y = self.inner(x if self.before is None else self.before(x))
        return self.scale * (y if self.after is None else self.after(y))

    def __call__(self, x: Tensor) -> Tensor:
        """(T, C) to (T, C)."""
        change = self.change(x)
        if self.kept is None:
            return x + change
        return self.kept * (x if self.before is None else self.before(x)) + change


def layer_of(*halves: Half) -> Layer:
    """A layer of parts behind each other."""

    def apply(x: Tensor, embedded: Tensor) -> Tensor:
        del embedded
        for half in halves:
            x = half(x)
        return x

    return apply


def parallel_layer(*halves: Half) -> Layer:
    """A layer of parts that all see its input."""

    def apply(x: Tensor, embedded: Tensor) -> Tensor:
        del embedded
        return x + sum((half.change(x) for half in halves), torch.zeros_like(x))

    return apply


def model_of(
    kind: str,
    layers: Sequence[Layer],
    w: Weights,
    *,
    embedding: str,
    norm: Function,
    head: str,
    embedding_norm: Function | None = None,
    embedding_scale: float = 1.0,
    logits_scale: float = 1.0,
    softcap: float | None = None,
) -> ReferenceModel:
    """A model from its layers.

    Args:
        kind: What it is, for people.
        layers: Its layers.
        w: All tensors.
        embedding: Name of the embedding.
        norm: Of what the last layer puts out.
        head: Name of the head; where there is none, the embedding is the head.
        embedding_norm: Of embedded tokens, or None (nanochat).
        embedding_scale: What embedded tokens are multiplied with.
        logits_scale: What logits are multiplied with.
        softcap: ``cap tanh(logits / cap)``, or None.
    """
    bias = w.get(head.removesuffix("weight") + "bias")
    head = head if head in w else embedding

    def logits(hidden: Tensor) -> Tensor:
        x = norm(hidden)
        starts = range(0, w.shape(head)[0], _TILE)
        tiles = (w.rows(head, slice(start, start + _TILE)) for start in starts)
        scores = torch.cat([x @ tile.T for tile in tiles], -1)
        scores = (scores if bias is None else scores + bias) * logits_scale
        return scores if softcap is None else softcap * torch.tanh(scores / softcap)

    def embed(ids: Tensor) -> Tensor:
        x = w.rows(embedding, ids) * embedding_scale
        return x if embedding_norm is None else embedding_norm(x)

    return ReferenceModel(
        kind=kind,
        embed=embed,
        layers=layers,
        logits=logits,
    )
