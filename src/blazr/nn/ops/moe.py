"""Mixture of experts: choosing, and running the chosen."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
        hidden = F.silu(F.linear(rows, gate[expert])) * F.linear(rows, up[expert])
        share = F.linear(hidden, down[expert]).float() * weights[tokens, place, None]
        out = out.index_add(0, tokens, share)
    return out.to(x.dtype)
