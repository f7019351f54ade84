"""Mamba-3 as oxidizr trains it: trapezoids, turning states, and several inputs at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blazr.bench.reference.convolution import causal_convolution
from blazr.bench.reference.mamba2 import per_head, ssd
from blazr.bench.reference.norms import gated_rms_norm, rms_norm, silu
from blazr.bench.reference.weights import Weights, linear

EPS = 1e-6
LEAST_STEP = 0.001
LARGEST_STEP = 0.1


def mamba3(x: Tensor, w: Weights, rates: Tensor) -> Tensor:
    """(T, C) to (T, C); ``rates`` are those of decay, (H), below 0."""
    heads, states = w["b_bias"].shape
    inner = len(w["norm.weight"])
    projected = linear(x, w, "in_proj")
    maps = (projected.shape[1] - 2 * inner - heads) // 2
    gate, u, b, c, steps = projected.split((inner, inner, maps, maps, heads), -1)
    if "conv1d.weight" in w:
        mixed = silu(causal_convolution(torch.cat((u, b, c), -1), w))
        u, b, c = mixed.split((inner, maps, maps), -1)
    else:
        u = silu(u)
    share = linear(x, w, "lambda_proj").sigmoid()
    b, c = (per_head(part, maps // states, heads) for part in (b, c))
    b = rms_norm(b, w["bc_norm.weight"], EPS) + w["b_bias"]
    c = rms_norm(c, w["bc_norm.weight"], EPS) + w["c_bias"]
    steps = softplus(steps + w["dt_bias"], threshold=1e9).clamp(LEAST_STEP, LARGEST_STEP)
    if "theta_proj.weight" in w:
        speeds = linear(x, w, "theta_proj").unflatten(-1, (heads, -1))
        angles = (speeds * steps[..., None]).cumsum(0)
        b, c = _turned(b, angles), _turned(c, angles)
    values = u.unflatten(-1, (heads, -1))
    if "mimo_x_up.weight" in w:
        values = linear(values, w, "mimo_x_up")
    kept = (rates * steps).exp()
    now = ssd(values, b, c, kept, share * steps)
    before = ssd(_shifted(values), _shifted(b), c, kept, (1 - share) * steps * kept)
    y = now + before + w["D"][:, None] * values
    if "mimo_x_down.weight" in w:
        y = linear(y, w, "mimo_x_down")
    y = gated_rms_norm(y.flatten(1), gate, w["norm.weight"], EPS, 1, gate_first=True)
    return linear(y, w, "out_proj")


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Channels 2j and 2j + 1 turned by angle j: (T, H, N)."""
    first, second = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)


def _shifted(x: Tensor) -> Tensor:
    """The token before, nothing for the first."""
    return torch.cat((torch.zeros_like(x[:1]), x[:-1]))
