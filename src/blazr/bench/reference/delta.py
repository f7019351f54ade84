"""Gated delta networks [arXiv:2412.06464]: Qwen's, OLMo's, and Kimi's with decays by channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blazr.bench.reference.convolution import causal_convolution
from blazr.bench.reference.mamba1 import decay
from blazr.bench.reference.norms import rms_norm, silu
from blazr.bench.reference.weights import Weights, linear

_L2_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class DeltaSizes:
    """What tensors do not say.

    Args:
        key_heads: Heads of queries and keys.
        heads: Heads of values.
        key_dim: Channels of a key.
        eps: Of the norm at the end.
        tiled: Whether values that share a key lie ``key_heads`` heads apart (Qwen3.5 in GGUF).
        beta: What the sigmoid of beta is multiplied with.
        least: Logarithms of decays lie between it and 0; None for no limit (Ling 3).
    """

    key_heads: int
    heads: int
    key_dim: int
    eps: float
    tiled: bool = False
    beta: float = 1.0
    least: float | None = None


def gated_delta(x: Tensor, w: Weights, s: DeltaSizes) -> Tensor:
    """Qwen3-Next's and Qwen3.5's: (T, C) to (T, C)."""
    keys = s.key_heads * s.key_dim
    per_key = s.heads // s.key_heads
    value_dim = w.shape("out_proj.weight")[1] // s.heads
    if "in_proj_qkvz.weight" in w:  # by heads of keys
        sizes = (s.key_dim, s.key_dim, per_key * value_dim, per_key * value_dim)
        parts = linear(x, w, "in_proj_qkvz").unflatten(-1, (s.key_heads, -1)).split(sizes, -1)
        q, k, v, gate = (part.flatten(1) for part in parts)
        qkv = torch.cat((q, k, v), -1)
    else:
        qkv, gate = linear(x, w, "in_proj_qkv"), linear(x, w, "in_proj_z")
    if "in_proj_ba.weight" in w:
        both = linear(x, w, "in_proj_ba").unflatten(-1, (s.key_heads, -1))
        beta, steps = (part.flatten(1) for part in both.chunk(2, -1))
    else:
        beta, steps = linear(x, w, "in_proj_b"), linear(x, w, "in_proj_a")
    qkv = silu(causal_convolution(qkv, w))
    q, k, v = qkv.split((keys, keys, s.heads * value_dim), -1)
    q, k = (_unit(part.unflatten(-1, (s.key_heads, -1))) for part in (q, k))
    q, k = (
        part.repeat(1, per_key, 1) if s.tiled else part.repeat_interleave(per_key, 1)
        for part in (q, k)
    )
    logs = decay(w).flatten() * softplus(steps + w["dt_bias"], threshold=1e9)
    y = _recurrence(q, k, v.unflatten(-1, (s.heads, -1)), logs[..., None], beta.sigmoid())
    y = rms_norm(y, w["norm.weight"], s.eps) * silu(gate.unflatten(-1, (s.heads, -1)))
    return linear(y.flatten(1), w, "out_proj")


def olmo_delta(x: Tensor, w: Weights, s: DeltaSizes) -> Tensor:
    """OLMo Hybrid's: (T, C) to (T, C)."""
    qkv = torch.cat([linear(x, w, f"{n}_proj") for n in "qkv"], -1)
    names = ("conv1d",) if "conv1d.weight" in w else tuple(f"{n}_conv1d" for n in "qkv")
    parts = qkv.split([w.shape(f"{name}.weight")[0] for name in names], -1)
    pairs = zip(parts, names, strict=True)
    qkv = silu(torch.cat([causal_convolution(part, w, name) for part, name in pairs], -1))
    keys = s.key_heads * s.key_dim
    q, k, v = qkv.split((keys, keys, qkv.shape[1] - 2 * keys), -1)
    share = s.heads // s.key_heads
    q, k = (
        _unit(part.unflatten(-1, (s.key_heads, -1))).repeat_interleave(share, 1) for part in (q, k)
    )
    logs = decay(w) * softplus(linear(x, w, "a_proj") + w["dt_bias"], threshold=1e9)
    beta = s.beta * linear(x, w, "b_proj").sigmoid()
    y = _recurrence(q, k, v.unflatten(-1, (s.heads, -1)), logs[..., None], beta)
    gate = linear(x, w, "g_proj").unflatten(-1, (s.heads, -1))
    y = rms_norm(y, w["o_norm.weight"], s.eps) * silu(gate)
    return linear(y.flatten(1), w, "o_proj")


def kimi_delta(x: Tensor, w: Weights, s: DeltaSizes) -> Tensor:
    """Kimi Linear's [arXiv:2510.26692], and Ling 3's with full matrices: (T, C) to (T, C)."""
    shape = (s.heads, -1)
    q, k, v = (
        silu(causal_convolution(linear(x, w, f"{n}_proj"), w, f"{n}_conv1d")).unflatten(-1, shape)
        for n in "qkv"
    )

    def projected(name: str) -> Tensor:
        if f"{name}_proj.weight" in w:
            return linear(x, w, f"{name}_proj")
        return linear(linear(x, w, f"{name}_a_proj"), w, f"{name}_b_proj")

    steps = (projected("f") + w["dt_bias"]).unflatten(-1, shape)
    rates = decay(w).flatten()[:, None]
    if s.least is None:
        logs = rates * softplus(steps, threshold=1e9)
    else:
        logs = s.least * (-rates * steps).sigmoid()
    beta = linear(x, w, "b_proj").sigmoid()
    y = _recurrence(_unit(q), _unit(k), v, logs, beta)
    gate = projected("g").unflatten(-1, shape)
    y = rms_norm(y, w["o_norm.weight"].flatten(), s.eps) * gate.sigmoid()
    return linear(y.flatten(1), w, "o_proj")


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + _L2_EPS).sqrt()


def _recurrence(q: Tensor, k: Tensor, v: Tensor, logs: Tensor, beta: Tensor) -> Tensor:
    """``S <- e^logs S``, then ``S <- S + k (beta (v - S^T k))^T``, ``y = S^T q / sqrt(N)``.

    Args:
        q: (T, H, N).
        k: (T, H, N).
        v: (T, H, P).
        logs: (T, H, N), or (T, H, 1) where all channels decay alike.
        beta: (T, H).
    """
    state = q.new_zeros(q.shape[1], q.shape[2], v.shape[2])
    outputs = []
    for t in range(len(q)):
        state = state * logs[t, ..., None].exp()
        missing = v[t] - torch.einsum("hnp,hn->hp", state, k[t])
        state = state + k[t, ..., None] * (beta[t, :, None] * missing)[:, None]
        outputs.append(torch.einsum("hnp,hn->hp", state, q[t]) * q.shape[2] ** -0.5)
    return torch.stack(outputs)
