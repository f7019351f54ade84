"""Mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor, nn

from blazr.nn.device import fetch
from blazr.nn.layers.base import FeedForward, FeedForwardConfig, NormConfig
from blazr.nn.layers.linear import Linear, Matrix
from blazr.nn.layers.lora import ExpertLoras
from blazr.nn.layers.mlp import Mlp, MlpConfig
from blazr.nn.layers.ranks import FirstRank, Held, Parts, Rank, Rows, under
from blazr.nn.operands.experts import ExpertGroups, ExpertMlps, Routing, Stack
from blazr.nn.ops.lora import lora_expand
from blazr.nn.ops.matmul import wide_linear
from blazr.nn.ops.moe import experts, route
from blazr.nn.ops.pointwise import add, scaled, sigmoid_gate, widen
from blazr.nn.ops.replay import recordable
from blazr.nn.quant.weight import Weight

Scoring = Literal["softmax", "sigmoid", "sigmoid of chosen", "sparse mixer"]


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
        activation: A name of ACTIVATIONS.
        gated: Whether the activation of a second projection is multiplied in.
        scoring: What makes scores of the router's logits; or they choose, and a sigmoid weighs, or
            each that is chosen is weighed among those close to it (SparseMixer).
        jitter: Half of how much less than the best one, as a share, those close to it may be.
        norm_topk_prob: Whether a token's weights are divided by their sum.
        routed_scaling_factor: Applied to the weights.
        weighs_input: Whether experts are given the weighted token, and what they make of it is
            added up as it is (Llama 4).
        groups: Only experts of a token's best groups are chosen; None for all.
        correction_bias: Whether a bias is added to the scores for the choice (DeepSeek-V3).
        router_bias: Whether the router has a bias.
        expert_bias: Whether the experts' matrices have biases (GPT-OSS).
        dense_bias: Whether the matrices that every token goes through have biases: those of the
            shared expert and those around the latent channels.
        swiglu_limit: Clamps the inner activations (GPT-OSS); None for none.
        swiglu_alpha: Steepness of the clamped form.
        latent_size: Experts work on so many channels, projected from C and back (Nemotron 3);
            None for C itself.
        router_norm: Of what the router sees alone, or None (Gemma 4).
        router_multiplier: Applied to that.
        router_softcap: Its logits z become ``softcap * tanh(z / softcap)``; None leaves them.
        expert_norm: Of what the experts see, or None.
        expert_scale: Whether each expert's output has a factor.
        output_multiplier: Applied to what comes out.
        held: Of the experts, those whose matrices are here; None for all.
    """

    hidden_size: int
    intermediate_size: int
    num_experts: int
    experts_per_token: int
    shared_expert: bool = False
    shared_intermediate_size: int | None = None
    shared_expert_gate: bool = False
    activation: str = "silu"
    gated: bool = True
    scoring: Scoring = "softmax"
    jitter: float = 0.0
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    weighs_input: bool = False
    groups: ExpertGroups | None = None
    correction_bias: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    dense_bias: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.0
    latent_size: int | None = None
    router_norm: NormConfig | None = None
    router_multiplier: float = 1.0
    router_softcap: float | None = None
    expert_norm: NormConfig | None = None
    expert_scale: bool = False
    output_multiplier: float = 1.0
    held: range | None = None

    @property
    def shared_mlp(self) -> MlpConfig:
        """The expert of all tokens."""
        return MlpConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.shared_intermediate_size or self.intermediate_size,
            activation=self.activation,
            gated=self.gated,
            bias=self.dense_bias,
        )

    @property
    def routing(self) -> Routing:
        """How experts are chosen."""
        is_softmax = self.scoring == "softmax" and self.norm_topk_prob
        is_free = self.groups is None and not self.correction_bias
        # the logits of the chosen experts alone tell their weights
        of_chosen = is_softmax and is_free and self.routed_scaling_factor == 1
        scoring = self.scoring
        return Routing(
            self.experts_per_token,
            scoring if scoring in {"softmax", "sigmoid"} and not of_chosen else "softmax of chosen",
            self.norm_topk_prob,
            self.groups,
            self.routed_scaling_factor,
        )

    def part(self, rank: Rank) -> tuple[MoeConfig, Parts]:
        """Experts are shared out, and the one of all tokens is cut; every rank has the router."""
        own = rank.run(self.num_experts, "experts")
        names = [f"{name}_{kind}" for name in ("gate", "up", "down") for kind in ("proj", "bias")]
        parts: dict[str, Held] = {f"experts.{name}": Rows((own,)) for name in names}
        parts["latent_up_proj.bias"] = FirstRank()
        size = self.shared_intermediate_size
        if self.shared_expert:
            mlp, held = self.shared_mlp.part(rank)
            size = mlp.intermediate_size
            parts |= under("shared_expert", held)
        return replace(self, held=own, shared_intermediate_size=size), parts

    def build(self) -> Moe:
        """The module, with uninitialised parameters."""
        return Moe(self)


class Experts(nn.Module):
    """The stacked matrices of all experts.

    Attributes:
        loras: What adapters change.
        stays: Whether they are where they are whatever happens to the network: on the CPU, as they
            are too large for the GPU.
    """

    stays: bool = False

    gate_proj: Matrix
    up_proj: Matrix
    down_proj: Matrix
    gate_bias: nn.Parameter
    up_bias: nn.Parameter

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        experts = config.num_experts if config.held is None else len(config.held)
        self.loras = ExpertLoras(experts)
        inner = config.intermediate_size
        hidden = config.latent_size or config.hidden_size
        upward = ("gate", "up") if config.gated else ("up",)
        for name in upward:
            setattr(self, f"{name}_proj", nn.Parameter(torch.empty(experts, inner, hidden)))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))
        if config.expert_bias:
            for name in upward:
                setattr(self, f"{name}_bias", nn.Parameter(torch.empty(experts, inner)))
            self.down_bias = nn.Parameter(torch.empty(experts, hidden))

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Each token through its experts that are here: see ``blazr.nn.ops.moe.experts``."""
        if not self.config.weighs_input:
            return self._run_held(x, weights, chosen)
        ones = torch.ones_like(weights[:, :1])
        found = [
            self._run_held((x * share[:, None]).to(x.dtype), ones, each[:, None])
            for share, each in zip(weights.unbind(1), chosen.unbind(1), strict=True)
        ]
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)

    def _run_held(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        held = self.config.held
        if held is None:
            return self._run(x, weights, chosen)
        tokens, place = ((chosen >= held.start) & (chosen < held.stop)).nonzero(as_tuple=True)
        each = torch.zeros(*chosen.shape, x.shape[-1], device=x.device)
        if len(tokens):
            pairs = weights[tokens, place, None], chosen[tokens, place, None] - held.start
            each[tokens, place] = self._run(x[tokens], *pairs).to(each.dtype)
        return each.sum(1).to(self.down_proj.dtype)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.down_proj.device

    def begin(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Callable[[], Tensor]:
        """`forward`, to be asked for when all else is under way that can be computed beside it."""
        if self.device == x.device:
            return partial(self, x, weights, chosen)
        fetched = fetch((x, weights, chosen), self.device)
        return lambda: self(*fetched()).to(x.device, non_blocking=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        return self if self.stays else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _run(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        config, dtype = self.config, self.down_proj.dtype
        bias = config.expert_bias
        mlps = ExpertMlps(
            up=_stack(self.up_proj),
            down=_stack(self.down_proj),
            gate=_stack(self.gate_proj) if config.gated else None,
            activation=config.activation,
            up_bias=self.up_bias if bias else None,
            gate_bias=self.gate_bias if bias and config.gated else None,
            down_bias=self.down_bias if bias else None,
            limit=config.swiglu_limit,
            alpha=config.swiglu_alpha,
            adapters=self.loras.adapters(),
        )
        return experts(x.to(dtype), weights, chosen, mlps)


def _stack(matrix: Matrix) -> Stack:
    return matrix.operand or matrix if isinstance(matrix, Weight) else matrix


class Router(Linear):
    """A matrix that decides, in float32: a rounded logit could choose another expert."""

    @property
    def adapter_dtype(self) -> torch.dtype:
        """What adapters are multiplied in."""
        return torch.float32

    def forward(self, x: Tensor) -> Tensor:
        """(T, C) to (T, E), float32."""
        matrix, bias = self.weight, self.bias
        weight: Tensor = matrix.dequantize(torch.float32) if isinstance(matrix, Weight) else matrix
        if weight.dtype != x.dtype:
            x, weight = widen(x), weight.float()
        logits = wide_linear(x, weight, None if bias is None else bias.to(weight.dtype))
        delta = None if self.lora is None else self.lora.delta(widen(x))
        if delta is None:
            return logits
        return lora_expand(logits, delta, None if bias is None else widen(bias))


class Moe(FeedForward):
    """Top-k routed experts, and perhaps a shared one that is always added."""

    def __init__(self, config: MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config.hidden_size, config.num_experts, bias=config.router_bias)
        self.correction_bias = None
        if config.correction_bias:
            self.correction_bias = nn.Parameter(torch.empty(config.num_experts))
        self.router_norm = config.router_norm.build() if config.router_norm else None
        self.expert_norm = config.expert_norm.build() if config.expert_norm else None
        self.expert_scale = None
        if config.expert_scale:
            self.expert_scale = nn.Parameter(torch.empty(config.num_experts))
        self.experts = Experts(config)
        if config.latent_size is not None:
            sizes, bias = (config.hidden_size, config.latent_size), config.dense_bias
            self.latent_down_proj = Linear(*sizes, bias=bias)
            self.latent_up_proj = Linear(*sizes[::-1], bias=bias)
        if config.shared_expert:
            self.shared_expert = Mlp(config.shared_mlp)
        if config.shared_expert_gate:
            self.shared_expert_gate = Linear(config.hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        rows = x.flatten(0, -2)
        seen = rows if self.router_norm is None else self.router_norm(rows)
        logits = self.router(scaled(seen, self.config.router_multiplier))
        if self.config.router_softcap is not None:
            logits = widen(logits, cap=self.config.router_softcap)
        correction = None if self.correction_bias is None else widen(self.correction_bias)
        weights, chosen = route(logits, self.config.routing, correction)
        if self.config.scoring == "sigmoid of chosen":
            weights = recordable(self._sigmoids, logits, chosen, like=weights)
        elif self.config.scoring == "sparse mixer":
            weights = recordable(self._shares, logits, chosen, like=weights)
        if self.expert_scale is not None:
            weights = recordable(self._scaled, weights, chosen, like=weights)
        has_latent = self.config.latent_size is not None
        inner = rows if self.expert_norm is None else self.expert_norm(rows)
        inner = self.latent_down_proj(inner) if has_latent else inner
        finish = self.experts.begin(inner, weights, chosen)
        shared = None
        if self.config.shared_expert:  # beside the others, where those are on the CPU
            shared = self.shared_expert(x)
            if self.config.shared_expert_gate:
                shared = sigmoid_gate(shared, self.shared_expert_gate(x))
        out = finish()
        out = (self.latent_up_proj(out) if has_latent else out).view_as(x)
        out = out if shared is None else add(out, shared)
        return scaled(out, self.config.output_multiplier)

    def _sigmoids(self, logits: Tensor, chosen: Tensor) -> Tensor:
        found = logits.gather(-1, chosen).float()
        # torch's sigmoid rounds a number otherwise beside others
        weights = sigmoid_gate(torch.ones_like(found), found)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.config.routed_scaling_factor

    def _shares(self, logits: Tensor, chosen: Tensor) -> Tensor:
        """Of each chosen expert among those close to it that were not chosen before it.

        Source: Liu et al. 2024, "GRIN", arXiv:2409.12136.
        """
        logits, shares = logits.float(), []
        left = logits
        for each in chosen.split(1, -1):
            best = left.gather(-1, each)
            distance = (best - logits) / logits.abs().clamp(min=best)
            close = left.masked_fill(distance > 2 * self.config.jitter, float("-inf"))
            shares.append(close.softmax(-1).gather(-1, each))
            left = left.scatter(-1, each, float("-inf"))
        return torch.cat(shares, -1)

    def _scaled(self, weights: Tensor, chosen: Tensor) -> Tensor:
        assert self.expert_scale is not None
        return weights * self.expert_scale[chosen].to(weights.dtype)
