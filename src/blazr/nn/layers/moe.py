"""Mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.base import FeedForward, FeedForwardConfig
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.mlp import Mlp, MlpConfig
from blazr.nn.ops.moe import experts_mlp, route_top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(FeedForwardConfig):
    """Sizes of a mixture of experts.

    Args:
        hidden_size: C.
        intermediate_size: I, of every expert and of the shared one.
        num_experts: E.
        experts_per_token: Experts each token runs through; 0 leaves the shared expert alone.
        shared_expert: Whether one more expert serves every token.
    """

    hidden_size: int
    intermediate_size: int
    num_experts: int
    experts_per_token: int
    shared_expert: bool = False

    def build(self) -> Moe:
        """The module, with uninitialised parameters."""
        return Moe(self)


class Experts(nn.Module):
    """The stacked matrices of all experts."""

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        wide = (config.num_experts, config.intermediate_size, config.hidden_size)
        self.gate_proj = nn.Parameter(torch.empty(wide))
        self.up_proj = nn.Parameter(torch.empty(wide))
        self.down_proj = nn.Parameter(torch.empty(wide[0], wide[2], wide[1]))


class Moe(FeedForward):
    """Top-k routed experts, and perhaps a shared one that is always added."""

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Linear(config.hidden_size, config.num_experts)
        self.experts = Experts(config)
        if config.shared_expert:
            self.shared_expert = Mlp(
                MlpConfig(
                    hidden_size=config.hidden_size, intermediate_size=config.intermediate_size
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        rows = x.flatten(0, -2)
        # the router decides in float32: a rounded logit could choose another expert
        logits = F.linear(rows.float(), self.router.weight.float())
        weights, chosen = route_top_k(logits, self.config.experts_per_token)
        experts = self.experts
        out = experts_mlp(
            rows, weights, chosen, experts.gate_proj, experts.up_proj, experts.down_proj
        )
        out = out.view_as(x)
        return out + self.shared_expert(x) if self.config.shared_expert else out
