"""Embeddings: a row of a matrix for each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blazr.nn.layers.linear import Matrix
from blazr.nn.layers.lora import Lora
from blazr.nn.layers.ranks import Joined
from blazr.nn.ops.pointwise import embedding
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
