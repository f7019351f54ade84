"""Mixture of experts: choosing, and running the chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blazr.nn.operands.experts import ExpertAdapters, ExpertMlps, Matrix, Routing, Stack
from blazr.nn.operands.floats import StoredMatrix
from blazr.nn.operands.lora import LoraDelta
from blazr.nn.operands.packing import Packed
from blazr.nn.ops.activation import ACTIVATIONS, clamped_swiglu
from blazr.nn.ops.lora import lora_expand, lora_shrink
from blazr.nn.ops.matmul import gated_linear, linear
from blazr.nn.ops.op import op
from blazr.nn.ops.packed import packed_gated_linear, packed_linear
from blazr.nn.ops.stored import stored_linear

_Matrix = Tensor | Packed | StoredMatrix | Matrix
# Tokens that go through the experts all at once, on a CPU and elsewhere: on a GPU a look at which
# experts were chosen costs more than multiplying with some that were not.
_MOST_AT_ONCE, _MOST_AT_ONCE_ELSEWHERE = 8, 256


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
    if mlps.adapters is not None:
        return _adapted_experts(x, weights, chosen, mlps, mlps.adapters)
    most = _MOST_AT_ONCE if x.device.type == "cpu" else _MOST_AT_ONCE_ELSEWHERE
    stacks = (mlps.up, mlps.down, mlps.gate)
    if len(x) <= most and all(each is None or isinstance(each, Tensor) for each in stacks):
        return _few_tokens(x, weights, chosen, mlps)
    return _one_by_one(x, weights, chosen, mlps)


def _few_tokens(x: Tensor, weights: Tensor, chosen: Tensor, mlps: ExpertMlps) -> Tensor:
    """The same where the host does not look at which were chosen.

    Their matrices are gathered, or those of all are multiplied where that is less to read.
    """
    assert isinstance(mlps.down, Tensor)
    (tokens, top), count = chosen.shape, len(mlps.down)
    wide = torch.promote_types(x.dtype, torch.float32)
    if tokens * top < count:
        numbers = chosen.flatten()
        rows = x.repeat_interleave(top, 0)[:, None]  # (T * k, 1, C)
        found = _many(rows, mlps, numbers)[:, 0].unflatten(0, (tokens, top))
        shares = weights
    else:
        found = _many(x.expand(count, *x.shape), mlps, None).transpose(0, 1)  # (T, E, C)
        is_chosen = torch.zeros(tokens, count, dtype=torch.bool, device=x.device)
        is_chosen = is_chosen.scatter(1, chosen, value=True)
        found = found.where(is_chosen[..., None], 0)
        shares = torch.zeros_like(is_chosen, dtype=weights.dtype).scatter(1, chosen, weights)
    return (found.to(wide) * shares[..., None].to(wide)).sum(1).to(x.dtype)


def _many(x: Tensor, mlps: ExpertMlps, numbers: Tensor | None) -> Tensor:
    """Some rows through each of n experts, (n, t, C) to (n, t, C).

    Args:
        x: The rows.
        mlps: The experts.
        numbers: Which of them, (n,); None for all.
    """

    def multiply(x: Tensor, stack: Stack, biases: Tensor | None) -> Tensor:
        assert isinstance(stack, Tensor)
        matrices = stack if numbers is None else stack[numbers]
        y = x @ matrices.to(x.dtype).mT
        if biases is not None:
            own = biases if numbers is None else biases[numbers]
            y = y + own.to(x.dtype)[:, None]
        return y

    gates = None if mlps.gate is None else multiply(x, mlps.gate, mlps.gate_bias)
    hidden = _hidden(mlps, gates, multiply(x, mlps.up, mlps.up_bias))
    return multiply(hidden, mlps.down, mlps.down_bias)


def _hidden(mlps: ExpertMlps, gates: Tensor | None, ups: Tensor) -> Tensor:
    """What the down projection is given, by what the others have made."""
    if gates is not None and mlps.limit is not None:
        return clamped_swiglu(gates, ups, alpha=mlps.alpha, limit=mlps.limit)
    activate = ACTIVATIONS[mlps.activation]
    return activate(ups) if gates is None else activate(gates) * ups


def _adapted_experts(
    x: Tensor, weights: Tensor, chosen: Tensor, mlps: ExpertMlps, adapters: ExpertAdapters
) -> Tensor:
    """The same where some tokens have adapters; the others' bits are those without any."""
    used = {slot for table in adapters.tables.values() for slot in table.factors}
    is_changed = torch.isin(adapters.slots, adapters.slots.new_tensor(sorted(used)))
    changed, others = (each.nonzero(as_tuple=True)[0] for each in (is_changed, ~is_changed))
    own = replace(mlps, adapters=replace(adapters, slots=adapters.slots[changed]))
    out = torch.empty_like(x)
    out[changed] = _one_by_one(x[changed], weights[changed], chosen[changed], own)
    if len(others):
        plain = replace(mlps, adapters=None)
        out[others] = experts(x[others], weights[others], chosen[others], plain)
    return out


def _one_by_one(x: Tensor, weights: Tensor, chosen: Tensor, mlps: ExpertMlps) -> Tensor:
    """The same, expert by expert."""
    adapters = mlps.adapters
    wide = torch.promote_types(x.dtype, torch.float32)
    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    for number in chosen.unique().tolist():
        tokens, place = (chosen == number).nonzero(as_tuple=True)
        slots = None if adapters is None else adapters.slots[tokens]
        expert = _Expert(mlps, number, slots)
        share = expert.down(expert.hidden(x[tokens])).to(wide)
        out = out.index_add(0, tokens, share * weights[tokens, place, None].to(wide))
    return out.to(x.dtype)


@dataclass(frozen=True, slots=True)
class _Expert:
    """One expert for some tokens, with the slots of their adapters, (n,), if there are any."""

    mlps: ExpertMlps
    number: int
    slots: Tensor | None

    def hidden(self, x: Tensor) -> Tensor:
        """What the down projection is given."""
        mlps = self.mlps
        if mlps.gate is None:
            return _hidden(mlps, None, self._multiply(x, "up", mlps.up, mlps.up_bias))
        has_bias = mlps.gate_bias is not None or mlps.up_bias is not None
        if mlps.activation == "silu" and mlps.limit is None and not has_bias and not mlps.adapters:
            # one operation does both products and what joins them
            gate, up = (_matrix(stack, self.number) for stack in (mlps.gate, mlps.up))
            if isinstance(gate, Tensor) and isinstance(up, Tensor):
                return gated_linear(x, gate.to(x.dtype), up.to(x.dtype))
            if isinstance(gate, Packed) and isinstance(up, Packed) and gate.packing is up.packing:
                return packed_gated_linear(x, gate, up)
        gates = self._multiply(x, "gate", mlps.gate, mlps.gate_bias)
        return _hidden(mlps, gates, self._multiply(x, "up", mlps.up, mlps.up_bias))

    def down(self, hidden: Tensor) -> Tensor:
        """What the expert puts out."""
        return self._multiply(hidden, "down", self.mlps.down, self.mlps.down_bias)

    def _multiply(self, x: Tensor, name: str, stack: Stack, biases: Tensor | None) -> Tensor:
        matrix = _matrix(stack, self.number)
        bias = None if biases is None else biases[self.number].to(x.dtype)
        if isinstance(matrix, Tensor):
            y = linear(x, matrix.to(x.dtype), bias)
        elif isinstance(matrix, Packed):
            y = packed_linear(x, matrix, bias)
        elif isinstance(matrix, StoredMatrix):
            y = stored_linear(x, matrix, bias)
        else:
            y = matrix.matmul(x, bias)
        adapters = self.mlps.adapters
        table = None if adapters is None else adapters.tables.get((name, self.number))
        if table is None or self.slots is None:
            return y
        delta = LoraDelta(table, self.slots, lora_shrink(x, table, self.slots))
        return lora_expand(y.contiguous(), delta, bias)


def _matrix(stack: Stack, expert: int) -> _Matrix:
    return stack[expert] if isinstance(stack, Tensor) else stack.select(expert)
