"""Mixture of experts: choosing, and running the chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.operands.experts import ExpertMlps, Matrix, Routing, Stack
from blazr.nn.operands.packing import Packed
from blazr.nn.ops.activation import ACTIVATIONS, clamped_swiglu
from blazr.nn.ops.matmul import gated_linear, linear
from blazr.nn.ops.op import op
from blazr.nn.ops.packed import packed_gated_linear, packed_linear

_Matrix = Tensor | Packed | Matrix


def route(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Choose experts, and weigh them. Ties go to the lower index.

    Args:
        logits: (T, E).
        routing: How.
        bias: See `choose_experts`.

    Returns:
        Weights (T, k) float32 and expert indices (T, k) int64, best first.
    """
    top = min(routing.k, logits.shape[-1])
    chosen = torch.empty(len(logits), top, dtype=torch.int64, device=logits.device)
    return choose_experts(logits, chosen, routing, bias), chosen


@op
def choose_experts(
    logits: Tensor, chosen: Tensor, routing: Routing, bias: Tensor | None = None
) -> Tensor:
    """Take k experts by their scores. Ties go to the lower index.

    Args:
        logits: (T, E).
        chosen: (T, k), int64: where the experts' indices go, best first.
        routing: How.
        bias: (E,), added to the scores for the choice alone [arXiv:2408.15664].

    Returns:
        Weights (T, k), float32.
    """
    wide, top = torch.promote_types(logits.dtype, torch.float32), chosen.shape[-1]
    logits = logits.to(wide)
    if routing.scoring == "softmax of chosen":
        values, order = logits.sort(dim=-1, descending=True, stable=True)
        chosen.copy_(order[:, :top])
        return values[:, :top].softmax(-1)
    scores = logits.softmax(-1) if routing.scoring == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias.to(wide)
    if routing.groups is not None:
        # whoever is not in the best groups is out of the question
        grouped = choice.unflatten(-1, (routing.groups.count, -1))  # (T, groups, E / groups)
        judged = min(routing.groups.judged_by, grouped.shape[-1])
        group_scores = grouped.topk(judged, -1).values.sum(-1)
        order = group_scores.sort(dim=-1, descending=True, stable=True).indices
        is_hidden = torch.ones_like(group_scores, dtype=torch.bool).scatter(
            -1, order[:, : routing.groups.kept], value=False
        )
        choice = grouped.masked_fill(is_hidden.unsqueeze(-1), float("-inf")).flatten(-2)
    chosen.copy_(choice.sort(dim=-1, descending=True, stable=True).indices[:, :top])
    weights = scores.gather(-1, chosen)
    if routing.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * routing.scale


@op
def experts(x: Tensor, weights: Tensor, chosen: Tensor, mlps: ExpertMlps) -> Tensor:
    """Run each token through its experts' MLPs and add up the weighted outputs.

    Args:
        x: (T, C).
        weights: (T, k), float32.
        chosen: (T, k), int64, below E.
        mlps: The experts, in the dtype of x.

    Returns:
        (T, C) in the dtype of x; the sum over experts is taken in float32.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    for expert in chosen.unique().tolist():
        tokens, place = (chosen == expert).nonzero(as_tuple=True)
        hidden = _hidden(x[tokens], mlps, expert)
        share = _product(hidden, _matrix(mlps.down, expert), mlps.down_bias, expert).to(wide)
        out = out.index_add(0, tokens, share * weights[tokens, place, None].to(wide))
    return out.to(x.dtype)


def _hidden(x: Tensor, mlps: ExpertMlps, expert: int) -> Tensor:
    """What an expert's down projection is given."""
    up = _matrix(mlps.up, expert)
    if mlps.gate is None:
        return ACTIVATIONS[mlps.activation](_product(x, up, mlps.up_bias, expert))
    gate = _matrix(mlps.gate, expert)
    has_bias = mlps.gate_bias is not None or mlps.up_bias is not None
    if mlps.activation == "silu" and mlps.limit is None and not has_bias:
        # one operation does both products and what joins them
        if isinstance(gate, Tensor) and isinstance(up, Tensor):
            return gated_linear(x, gate.to(x.dtype), up.to(x.dtype))
        if isinstance(gate, Packed) and isinstance(up, Packed) and gate.packing is up.packing:
            return packed_gated_linear(x, gate, up)
    gates = _product(x, gate, mlps.gate_bias, expert)
    ups = _product(x, up, mlps.up_bias, expert)
    if mlps.limit is not None:
        return clamped_swiglu(gates, ups, alpha=mlps.alpha, limit=mlps.limit)
    return ACTIVATIONS[mlps.activation](gates) * ups


def _matrix(stack: Stack, expert: int) -> _Matrix:
    return stack[expert] if isinstance(stack, Tensor) else stack.select(expert)


def _product(x: Tensor, matrix: _Matrix, biases: Tensor | None, expert: int) -> Tensor:
    bias = None if biases is None else biases[expert].to(x.dtype)
    if isinstance(matrix, Tensor):
        return linear(x, matrix.to(x.dtype), bias)
    if isinstance(matrix, Packed):
        return packed_linear(x, matrix, bias)
    return matrix.matmul(x, bias)
