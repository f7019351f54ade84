"""Mamba-1 [arXiv:2312.00752], and what oxidizr trains under that name."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blazr.bench.reference.convolution import causal_convolution
from blazr.bench.reference.norms import rms_norm, silu
from blazr.bench.reference.weights import Weights, linear


def decay(w: Weights) -> Tensor:
    """The rates of decay: stored as logarithms, or as they are (GGUF)."""
    return w["A"] if "A" in w else -w["A_log"].exp()


def mamba1(x: Tensor, w: Weights, *, inner_eps: float | None = None) -> Tensor:
    """(T, C) to (T, C).

    Args:
        x: The input.
        w: The mixer's tensors.
        inner_eps: Of the norms of step sizes, B and C (FalconMamba without weights, Jamba with);
            None where there are none.
    """
    return _scan(x, w, decay(w), w["D"].flatten(), inner_eps=inner_eps)


def oxidizr_mamba1(x: Tensor, w: Weights) -> Tensor:
    """The same with a state that grows, held between -30 and 30: (T, C) to (T, C)."""
    return _scan(x, w, (-w["a_log"]).exp(), w["d"], limit=30)


def _scan(
    x: Tensor,
    w: Weights,
    rates: Tensor,
    skip: Tensor,
    *,
    inner_eps: float | None = None,
    limit: float = math.inf,
) -> Tensor:
    states = rates.shape[1]
    rank = w.shape("dt_proj.weight")[1]
    u, gate = linear(x, w, "in_proj").chunk(2, -1)
    u = silu(causal_convolution(u, w))
    steps, b, c = linear(u, w, "x_proj").split((rank, states, states), -1)
    if inner_eps is not None:
        names = ("dt_layernorm", "b_layernorm", "c_layernorm")
        steps, b, c = (
            rms_norm(part, w.get(name + ".weight"), inner_eps)
            for part, name in zip((steps, b, c), names, strict=True)
        )
    steps = softplus(linear(steps, w, "dt_proj"), threshold=1e9)
    y = selective_scan(u, steps, b, c, rates, limit=limit) + skip * u
    return linear(y * silu(gate), w, "out_proj")


def selective_scan(
    u: Tensor, steps: Tensor, b: Tensor, c: Tensor, rates: Tensor, *, limit: float = math.inf
) -> Tensor:
    """``h <- e^(step rates) h + step u b^T``, ``y = h c``: (T, C) to (T, C).

    Args:
        u: (T, C).
        steps: (T, C).
        b: (T, N).
        c: (T, N).
        rates: (C, N).
        limit: Of the state's numbers, up and down.
    """
    state = torch.zeros_like(rates)
    outputs = []
    for t in range(len(u)):
        grown = (steps[t, :, None] * rates).exp() * state
        state = (grown + (steps[t] * u[t])[:, None] * b[t]).clamp(-limit, limit)
        outputs.append(state @ c[t])
    return torch.stack(outputs)
