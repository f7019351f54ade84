"""Embeddings: a row of a matrix for each token, for each place, and for each token and layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import NormConfig
from blazr.nn.layers.linear import Linear, Matrix
from blazr.nn.layers.lora import Lora
from blazr.nn.layers.ranks import Joined, Rank
from blazr.nn.ops.pointwise import add, embedding, scaled
from blazr.nn.quant.weight import Weight


class Embedding(Joined, nn.Module):
    """Token embedding, (V, C). ``lora`` is what adapters change in it, where there are any.

    Args:
        vocab_size: Its rows.
        hidden_size: C.
        held: Of these rows, those that are here; None for all of them.
    """

    weight: Matrix
    lora: Lora | None = None

    def __init__(self, vocab_size: int, hidden_size: int, held: range | None = None) -> None:
        super().__init__()
        self.held = held
        rows = vocab_size if held is None else len(held)
        self.weight = nn.Parameter(torch.empty(rows, hidden_size))

    def forward(self, token_ids: Tensor) -> Tensor:
        """(...) int64 to (..., C)."""
        if self.held is None:
            return self._rows(token_ids)
        is_own = (token_ids >= self.held.start) & (token_ids < self.held.stop)
        rows = self._rows((token_ids - self.held.start).where(is_own, 0))
        return self.ranks.sum(rows.where(is_own.unsqueeze(-1), 0))

    def _rows(self, token_ids: Tensor) -> Tensor:
        if isinstance(self.weight, Weight):
            rows = self.weight.rows(token_ids)
        else:
            rows = embedding(self.weight, token_ids)
        return rows if self.lora is None else self.lora.change_rows(rows, token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPositionsConfig:
    """Sizes of a table with a vector for each place in a sequence.

    Args:
        count: Places, and so the most tokens that a sequence may have.
        hidden_size: C.
        first: The row of the first place (OPT has two before it).
    """

    count: int
    hidden_size: int
    first: int = 0

    def build(self) -> LearnedPositions:
        """The module, with uninitialised parameters."""
        return LearnedPositions(self)


class LearnedPositions(nn.Module):
    """Adds to each token the vector of its place [GPT-2].

    The table is no `Embedding`, as it is never packed: it is small, and read a row at a time.
    """

    def __init__(self, config: LearnedPositionsConfig) -> None:
        super().__init__()
        self.first = config.first
        self.weight = nn.Parameter(torch.empty(config.first + config.count, config.hidden_size))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """(..., C) and (...) int64 to (..., C)."""
        return add(x, embedding(self.weight[self.first :], positions))


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerEmbeddingConfig:
    """Sizes of the vectors that each layer takes of a token beside the residual stream.

    Args:
        vocab_size: Rows of the table.
        hidden_size: C.
        num_layers: Layers that take one.
        norm: Of what is projected, P channels.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    norm: NormConfig

    def held_rows(self, rank: Rank) -> range:
        """Which rows of the table a rank has."""
        return rank.run(self.vocab_size, "words")

    def build(self, rank: Rank) -> PerLayerEmbedding:
        """The module of a rank, with uninitialised parameters."""
        return PerLayerEmbedding(self, rank)


class PerLayerEmbedding(nn.Module):
    """A table of all layers' vectors, and a projection of the embedded tokens (Gemma 3n)."""

    def __init__(self, config: PerLayerEmbeddingConfig, rank: Rank) -> None:
        super().__init__()
        self.config = config
        width = config.num_layers * config.norm.size
        held = config.held_rows(rank) if rank.count > 1 else None
        self.embed_tokens = Embedding(config.vocab_size, width, held)
        self.projection = Linear(config.hidden_size, width)
        self.norm = config.norm.build()

    def forward(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """(...) int64 and (..., C) to (..., layers, P)."""
        config = self.config
        size = config.norm.size
        rows = self.embed_tokens(token_ids).unflatten(-1, (-1, size))
        projected = scaled(self.projection(embedded), config.hidden_size**-0.5)
        normed = self.norm(projected.unflatten(-1, (-1, size)))
        return scaled(add(normed, rows.to(normed.dtype), size**0.5), 2**-0.5)
