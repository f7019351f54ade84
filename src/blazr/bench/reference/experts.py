"""Mixtures of experts: every expert is asked by itself, for the tokens that chose it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from blazr.bench.reference.mlp import activate, mlp
from blazr.bench.reference.model import Function
from blazr.bench.reference.weights import Weights, linear

# Names of an expert's matrices, upward ones first: Mixtral's, and everybody else's.
NUMBERED = tuple(f"experts.{{}}.{name}.weight" for name in ("w1", "w3", "w2"))
NAMED = tuple(f"experts.{{}}.{name}_proj.weight" for name in ("gate", "up", "down"))


@dataclass(frozen=True, kw_only=True)
class Router:
    """How a token's experts are chosen and weighed.

    Args:
        chosen: Experts of a token.
        scoring: What makes scores of the router's logits.
        normalise: Whether a token's weights are made to sum to 1.
        scale: What they are multiplied with.
        groups: Groups of experts, kept groups, and how many experts judge a group; None for no
            groups.
        floor: Added to the sum before dividing by it.
        cap: Logits z become ``cap tanh(z / cap)``, or None.
        jitter: Each chosen expert is weighed among those that are less by twice this share at most,
            and were not chosen before it (Phi-3.5-MoE); None for all.
        by_logits: Whether logits choose, whatever weighs (Cohere).
    """

    chosen: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: tuple[int, int, int] | None = None
    floor: float = 0.0
    cap: float | None = None
    by_logits: bool = False
    jitter: float | None = None


def route(logits: Tensor, router: Router, bias: Tensor | None = None) -> Tensor:
    """The weight of every expert for every token, 0 for those that were not chosen: (T, E).

    ``bias`` takes part in choosing and not in weighing (DeepSeek-V3).
    """
    if router.jitter is not None:
        return _sparse_mixer(logits, router.chosen, router.jitter)
    if router.cap is not None:
        logits = router.cap * torch.tanh(logits / router.cap)
    scores = logits.softmax(-1) if router.scoring == "softmax" else logits.sigmoid()
    wanted = logits if router.by_logits else scores if bias is None else scores + bias
    if router.groups is not None:
        count, kept, judges = router.groups
        grouped = wanted.unflatten(-1, (count, -1))
        best = grouped.topk(judges, -1).values.sum(-1).topk(kept, -1).indices
        is_kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool).scatter(-1, best, value=True)
        wanted = grouped.masked_fill(~is_kept[..., None], -torch.inf).flatten(-2)
    # the first of equals wins
    chosen = wanted.argsort(dim=-1, descending=True, stable=True)[..., : router.chosen]
    scores = scores.masked_fill(wanted == -torch.inf, 0.0)
    weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    if router.normalise and router.chosen:
        weights = weights / (weights.sum(-1, keepdim=True) + router.floor)
    return weights * router.scale


def _sparse_mixer(logits: Tensor, chosen: int, jitter: float) -> Tensor:
    """Phi-3.5-MoE's [arXiv:2409.12136]."""
    weights, left = torch.zeros_like(logits), logits
    for _ in range(chosen):
        best, index = left.max(-1, keepdim=True)
        is_far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * jitter
        shares = left.masked_fill(is_far, -torch.inf).softmax(-1)
        weights = weights.scatter(-1, index, shares.gather(-1, index))
        left = left.scatter(-1, index, -torch.inf)
    return weights


def mixture(
    x: Tensor,
    weights: Tensor,
    expert: Callable[[int, Tensor], Tensor],
    *,
    weighs_input: bool = False,
) -> Tensor:
    """``sum_e weights_e expert_e(x)``, or ``expert_e(weights_e x)``; each for its tokens alone."""
    y = torch.zeros_like(x)
    for e in range(weights.shape[1]):
        rows = weights[:, e].nonzero().squeeze(-1)
        if len(rows):
            given = weights[rows, e, None]
            seen = x[rows] * given if weighs_input else x[rows]
            y[rows] += expert(e, seen) if weighs_input else given * expert(e, seen)
    return y


def expert_mlp(
    x: Tensor, gate: Tensor | None, up: Tensor, down: Tensor, activation: str = "silu"
) -> Tensor:
    """One expert: matrices (out, in); without a gate, what goes up is activated."""
    if gate is None:
        return activate(x @ up.T, activation) @ down.T
    return (activate(x @ gate.T, activation) * (x @ up.T)) @ down.T


def clamped_expert(gate: Tensor, up: Tensor, steepness: float, limit: float) -> Tensor:
    """The inner half of GPT-OSS's experts."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * (steepness * gate).sigmoid() * (up + 1)


def experts(
    w: Weights,
    gate: str,
    router: Router,
    activation: str = "silu",
    names: tuple[str, ...] = NAMED,
    *,
    bias: str = "gate.e_score_correction_bias",
) -> Function:
    """Experts, and what is beside them.

    Args:
        w: Their tensors.
        gate: The router's name.
        router: How it chooses.
        activation: Inside an expert.
        names: Of an expert's matrices, with its number to be filled in.
        bias: Name of what takes part in choosing alone.
    """

    def expert(e: int, rows: Tensor) -> Tensor:
        if "experts.gate_up_proj" in w:
            gate_matrix, up = w.rows("experts.gate_up_proj", slice(e, e + 1))[0].chunk(2)
            down = w.rows("experts.down_proj", slice(e, e + 1))[0]
            return expert_mlp(rows, gate_matrix, up, down, activation)
        own = [name.format(e) for name in names]
        first = w.get(own[0])  # Nemotron's have no gate
        return expert_mlp(rows, first, w[own[1]], w[own[2]], activation)

    def apply(x: Tensor) -> Tensor:
        seen = linear(x, w, "fc1_latent_proj") if "fc1_latent_proj.weight" in w else x
        y = mixture(seen, route(linear(x, w, gate), router, w.get(bias)), expert)
        y = linear(y, w, "fc2_latent_proj") if seen is not x else y
        for name in ("shared_expert.", "shared_experts.", "shared_mlp."):
            if f"{name}down_proj.weight" in w:
                shared = mlp(x, w.under(name), activation)
                own_gate = "shared_expert_gate"
                has_gate = f"{own_gate}.weight" in w
                y = y + (linear(x, w, own_gate).sigmoid() * shared if has_gate else shared)
        return y

    return apply
