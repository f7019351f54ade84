"""The gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from blazr.nn.layers.base import FeedForward, FeedForwardConfig
from blazr.nn.layers.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig(FeedForwardConfig):
    """Sizes of a gated MLP.

    Args:
        hidden_size: C.
        intermediate_size: I.
    """

    hidden_size: int
    intermediate_size: int

    def build(self) -> Mlp:
        """The module, with uninitialised parameters."""
        return Mlp(self)


class Mlp(FeedForward):
    """``down(silu(gate(x)) * up(x))`` [arXiv:2002.05202]."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
