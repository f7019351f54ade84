"""Mamba-2 [arXiv:2405.21060] as a plain recurrence, a token at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blazr.bench.reference.convolution import causal_convolution
from blazr.bench.reference.norms import gated_rms_norm, silu
from blazr.bench.reference.weights import Weights, linear


@dataclass(frozen=True, kw_only=True)
class Mamba2Sizes:
    """What tensors do not say.

    Args:
        states: N.
        groups: Heads that are neighbours share B and C.
        limits: The least and the most that a step size may be.
        eps: Of the gated norm.
        norm_groups: Channels of a group are normed together.
        gate_first: Whether the gate is applied before the norm.
        multipliers: Of the gate, x, B, C and the step sizes (Falcon-H1).
    """

    states: int
    groups: int
    limits: tuple[float, float] = (0.0, math.inf)
    eps: float
    norm_groups: int = 1
    gate_first: bool = True
    multipliers: tuple[float, ...] = (1.0,) * 5


def mamba2(x: Tensor, w: Weights, s: Mamba2Sizes, rates: Tensor) -> Tensor:
    """(T, C) to (T, C); ``rates`` are those of decay, (H), below 0."""
    heads = len(rates)
    maps = s.groups * s.states
    projected = linear(x, w, "in_proj")
    inner = (projected.shape[1] - 2 * maps - heads) // 2
    parts = projected.split((inner, inner, maps, maps, heads), -1)
    gate, u, b, c, steps = (p * m for p, m in zip(parts, s.multipliers, strict=True))
    mixed = silu(causal_convolution(torch.cat((u, b, c), -1), w))
    u, b, c = mixed.split((inner, maps, maps), -1)
    steps = softplus(steps + w["dt_bias"], threshold=1e9).clamp(*s.limits)
    values = u.unflatten(-1, (heads, -1))  # (T, H, P)
    b, c = (per_head(part, s.groups, heads) for part in (b, c))  # (T, H, N)
    y = ssd(values, b, c, (steps * rates).exp(), steps)
    y = (y + w["D"].flatten()[:, None] * values).flatten(1)
    weight = w.get("norm.weight")
    weight = None if weight is None else weight.flatten()
    y = gated_rms_norm(y, gate, weight, s.eps, s.norm_groups, gate_first=s.gate_first)
    return linear(y, w, "out_proj")


def per_head(x: Tensor, groups: int, heads: int) -> Tensor:
    """(T, G * N) to (T, H, N)."""
    return x.unflatten(-1, (groups, -1)).repeat_interleave(heads // groups, 1)


def ssd(values: Tensor, b: Tensor, c: Tensor, kept: Tensor, steps: Tensor) -> Tensor:
    """``h <- kept h + steps values b^T``, ``y = h c``, a token at a time.

    Args:
        values: (T, H, P).
        b: (T, H, N).
        c: (T, H, N).
        kept: What is left of the state, (T, H).
        steps: How much is added, (T, H).
    """
    state = values.new_zeros(*values.shape[1:], b.shape[-1])  # (H, P, N)
    outputs = []
    for t in range(len(values)):
        added = (steps[t, :, None] * values[t])[..., None] * b[t, :, None]
        state = kept[t, :, None, None] * state + added
        outputs.append((state @ c[t, ..., None]).squeeze(-1))
    return torch.stack(outputs)
