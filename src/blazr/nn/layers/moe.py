"""Mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import FeedForward, FeedForwardConfig
from blazr.nn.layers.linear import Linear, Matrix, multiply, multiply_gated
from blazr.nn.layers.mlp import Mlp, MlpConfig
from blazr.nn.ops.activation import ACTIVATIONS, clamped_swiglu
from blazr.nn.ops.matmul import linear
from blazr.nn.ops.moe import ExpertGroups, experts_mlp, route, route_top_k
from blazr.nn.quant.weight import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(FeedForwardConfig):
    """Sizes of a mixture of experts.

    Args:
        hidden_size: C.
        intermediate_size: I, of every expert.
        num_experts: E.
        experts_per_token: Experts each token runs through; 0 leaves the shared expert alone.
        shared_expert: Whether one more expert serves every token.
        shared_intermediate_size: I of the shared expert; None for that of the others.
        shared_expert_gate: Whether a sigmoid weighs the shared expert (Qwen2-MoE).
        shared_fused_gate_up: Whether its upward projections are stored as one matrix (Granite 4).
        activation: A name of ACTIVATIONS.
        gated: Whether the activation of a second projection is multiplied in.
        fused_gate_up: How both upward projections lie in one matrix, or None for two matrices.
        scoring: What makes scores of the router's logits.
        norm_topk_prob: Whether a token's weights are divided by their sum.
        routed_scaling_factor: Applied to the weights.
        groups: Only experts of a token's best groups are chosen; None for all.
        correction_bias: Whether a bias is added to the scores for the choice (DeepSeek-V3).
        router_bias: Whether the router has a bias.
        expert_bias: Whether the experts' matrices have biases (GPT-OSS).
        swiglu_limit: Clamps the inner activations (GPT-OSS); None for none.
        swiglu_alpha: Steepness of the clamped form.
        latent_size: Experts work on so many channels, projected from C and back (Nemotron 3);
            None for C itself.
    """

    hidden_size: int
    intermediate_size: int
    num_experts: int
    experts_per_token: int
    shared_expert: bool = False
    shared_intermediate_size: int | None = None
    shared_expert_gate: bool = False
    shared_fused_gate_up: bool = False
    activation: str = "silu"
    gated: bool = True
    fused_gate_up: Literal["halves", "interleaved"] | None = None
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    groups: ExpertGroups | None = None
    correction_bias: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.0
    latent_size: int | None = None

    @property
    def weighs_by_softmax_of_chosen(self) -> bool:
        """Whether the logits of the chosen experts alone tell their weights."""
        is_softmax = self.scoring == "softmax" and self.norm_topk_prob
        is_free = self.groups is None and not self.correction_bias
        return is_softmax and is_free and self.routed_scaling_factor == 1

    @property
    def is_usual(self) -> bool:
        """Whether experts are gated by silu and have two upward matrices and no biases."""
        is_odd = self.fused_gate_up is not None or self.expert_bias
        return self.gated and self.activation == "silu" and not is_odd

    def build(self) -> Moe:
        """The module, with uninitialised parameters."""
        return Moe(self)


class Experts(nn.Module):
    """The stacked matrices of all experts."""

    gate_proj: Matrix
    up_proj: Matrix
    gate_up_proj: Matrix
    down_proj: Matrix

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        experts, inner = config.num_experts, config.intermediate_size
        hidden = config.latent_size or config.hidden_size
        upward = {"gate": inner, "up": inner} if config.gated else {"up": inner}
        if config.fused_gate_up is not None:
            upward = {"gate_up": 2 * inner}
        for name, rows in upward.items():
            setattr(self, f"{name}_proj", nn.Parameter(torch.empty(experts, rows, hidden)))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))
        if config.expert_bias:
            for name, rows in upward.items():
                setattr(self, f"{name}_bias", nn.Parameter(torch.empty(experts, rows)))
            self.down_bias = nn.Parameter(torch.empty(experts, hidden))

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Each token through its experts: see `experts_mlp`."""
        if self.config.is_usual:
            gate, up, down = self.gate_proj, self.up_proj, self.down_proj
            if not (isinstance(gate, Weight) or isinstance(up, Weight) or isinstance(down, Weight)):
                return experts_mlp(x, weights, chosen, gate, up, down)
        return self._one_by_one(x, weights, chosen)

    def _one_by_one(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The same for packed matrices, decoded when their expert is chosen, and other forms."""
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in chosen.unique().tolist():
            tokens, place = (chosen == expert).nonzero(as_tuple=True)
            share = self._expert(x[tokens], expert).float()
            out = out.index_add(0, tokens, share * weights[tokens, place, None])
        return out.to(x.dtype)

    def _expert(self, x: Tensor, index: int) -> Tensor:
        fused = self.config.fused_gate_up
        if self.config.is_usual and self.config.swiglu_limit is None:
            hidden = multiply_gated(x, self._matrix("gate", index), self._matrix("up", index))
        elif fused == "halves":
            hidden = self._gate(*self._multiply(x, "gate_up", index).chunk(2, -1))
        elif fused == "interleaved":
            both = self._multiply(x, "gate_up", index)
            hidden = self._gate(both[..., ::2], both[..., 1::2])
        elif self.config.gated:
            hidden = self._gate(self._multiply(x, "gate", index), self._multiply(x, "up", index))
        else:
            hidden = self.activation(self._multiply(x, "up", index))
        return self._multiply(hidden, "down", index)

    def _multiply(self, x: Tensor, name: str, index: int) -> Tensor:
        bias = getattr(self, f"{name}_bias")[index] if self.config.expert_bias else None
        return multiply(x, self._matrix(name, index), bias)

    def _matrix(self, name: str, index: int) -> Tensor | Weight:
        stack: Matrix = getattr(self, f"{name}_proj")
        return stack.select(index) if isinstance(stack, Weight) else stack[index]

    def _gate(self, gate: Tensor, up: Tensor) -> Tensor:
        limit = self.config.swiglu_limit
        if limit is None:
            return self.activation(gate) * up
        return clamped_swiglu(gate, up, alpha=self.config.swiglu_alpha, limit=limit)


class Moe(FeedForward):
    """Top-k routed experts, and perhaps a shared one that is always added."""

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Linear(config.hidden_size, config.num_experts, bias=config.router_bias)
        self.correction_bias = None
        if config.correction_bias:
            self.correction_bias = nn.Parameter(torch.empty(config.num_experts))
        self.experts = Experts(config)
        if config.latent_size is not None:
            self.latent_down_proj = Linear(config.hidden_size, config.latent_size)
            self.latent_up_proj = Linear(config.latent_size, config.hidden_size)
        if config.shared_expert:
            self.shared_expert = Mlp(
                MlpConfig(
                    hidden_size=config.hidden_size,
                    intermediate_size=config.shared_intermediate_size or config.intermediate_size,
                    activation=config.activation,
                    gated=config.gated,
                    fused_gate_up=config.shared_fused_gate_up,
                )
            )
        if config.shared_expert_gate:
            self.shared_expert_gate = Linear(config.hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        rows = x.flatten(0, -2)
        # the router decides in float32: a rounded logit could choose another expert
        router = self.router.weight
        wide = router.dequantize(torch.float32) if isinstance(router, Weight) else router.float()
        logits = linear(rows.float(), wide)
        if self.router.bias is not None:
            logits = logits + self.router.bias.float()
        weights, chosen = self._route(logits)
        if self.config.latent_size is None:
            out = self.experts(rows, weights, chosen).view_as(x)
        else:
            latent = self.experts(self.latent_down_proj(rows), weights, chosen)
            out = self.latent_up_proj(latent).view_as(x)
        if not self.config.shared_expert:
            return out
        shared = self.shared_expert(x)
        if self.config.shared_expert_gate:
            shared = shared * self.shared_expert_gate(x).sigmoid()
        return out + shared

    def _route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        if config.weighs_by_softmax_of_chosen:
            return route_top_k(logits, config.experts_per_token)
        return route(
            logits,
            config.experts_per_token,
            scoring=config.scoring,
            normalize=config.norm_topk_prob,
            bias=self.correction_bias,
            groups=config.groups,
            scale=config.routed_scaling_factor,
        )
