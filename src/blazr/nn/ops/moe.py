"""Mixture of experts: choosing, and running the chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from blazr.nn.ops.matmul import gated_linear, linear


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Experts in groups of equal size, one after the other.

    Args:
        count: Groups.
        kept: Groups that a token may choose from.
        judged_by: A group is as good as the sum of this many of its best experts.
    """

    count: int
    kept: int
    judged_by: int = 1


def route_top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Take the k largest router logits and weigh them by a softmax over those k alone.

    Ties go to the lower index.

    Args:
        logits: (T, E).
        k: Experts per token; more than E means all.

    Returns:
        Weights (T, k) float32 and expert indices (T, k) int64, best first.
    """
    values, order = logits.float().sort(dim=-1, descending=True, stable=True)
    k = min(k, logits.shape[-1])
    return values[:, :k].softmax(-1), order[:, :k]


def route(
    logits: Tensor,
    k: int,
    *,
    scoring: Literal["softmax", "sigmoid"] = "softmax",
    normalize: bool = True,
    bias: Tensor | None = None,
    groups: ExpertGroups | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Take k experts by their scores. Ties go to the lower index.

    Args:
        logits: (T, E).
        k: Experts per token; more than E means all.
        scoring: What makes scores of logits, over all experts.
        normalize: Whether the weights of a token are divided by their sum.
        bias: (E,), added to the scores for the choice alone [arXiv:2408.15664].
        groups: Only experts of the best groups are chosen [arXiv:2405.04434, section 2.2.2].
        scale: Applied to the weights.

    Returns:
        Weights (T, k) float32 and expert indices (T, k) int64, best first.
    """
    logits = logits.float()
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias.float()
    if groups is not None:
        choice = _best_groups_only(choice, groups)
    chosen = choice.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(-1, chosen)
    if normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * scale, chosen


def _best_groups_only(choice: Tensor, groups: ExpertGroups) -> Tensor:
    grouped = choice.unflatten(-1, (groups.count, -1))  # (T, groups, E / groups)
    judged = min(groups.judged_by, grouped.shape[-1])
    merits = grouped.topk(judged, -1).values.sum(-1)
    order = merits.sort(dim=-1, descending=True, stable=True).indices
    hidden = torch.ones_like(merits, dtype=torch.bool).scatter(
        -1, order[:, : groups.kept], value=False
    )
    return grouped.masked_fill(hidden.unsqueeze(-1), float("-inf")).flatten(-2)


def experts_mlp(
    x: Tensor, weights: Tensor, chosen: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    """Run each token through its experts' gated MLPs and add up the weighted outputs.

    Args:
        x: (T, C).
        weights: (T, k), float32.
        chosen: (T, k), int64.
        gate: (E, I, C).
        up: (E, I, C).
        down: (E, C, I).

    Returns:
        (T, C) in the dtype of x; the sum over experts is taken in float32, in expert order.
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in chosen.unique().tolist():
        tokens, place = (chosen == expert).nonzero(as_tuple=True)
        rows = x[tokens]
        hidden = gated_linear(rows, gate[expert], up[expert])
        share = linear(hidden, down[expert]).float() * weights[tokens, place, None]
        out = out.index_add(0, tokens, share)
    return out.to(x.dtype)
