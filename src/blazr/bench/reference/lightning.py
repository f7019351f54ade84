"""Lightning attention [arXiv:2401.04658] as a plain recurrence, a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.bench.reference.mlp import activate
from blazr.bench.reference.norms import rms_norm
from blazr.bench.reference.rotation import Rotation, rotate
from blazr.bench.reference.weights import Weights, linear


@dataclass(frozen=True, kw_only=True)
class LightningSizes:
    """What tensors do not say.

    Args:
        rates: What the logarithm of a head's state loses with each token.
        eps: Of the norm at the end.
        activation: Of queries, keys and values, or None.
        groups: The norm is taken over each of so many groups of channels.
        rotation: Of queries and keys, or None.
    """

    rates: Sequence[float]
    eps: float
    activation: str | None
    groups: int = 1
    rotation: Rotation | None = None


def minimax_rates(heads: int, index: int, layers: int) -> list[float]:
    """Of the heads of a layer."""
    share = 1 - index / (layers - 1 + 1e-5) + 1e-5
    return [2 ** (-8 * (head + 1) / heads) * share for head in range(heads)]


def minimax_attention(x: Tensor, w: Weights, s: LightningSizes) -> Tensor:
    """MiniMax's, whose queries, keys and values are together by head: (T, C) to (T, C)."""
    qkv = activate(linear(x, w, "qkv_proj"), s.activation or "silu")
    q, k, v = qkv.unflatten(-1, (len(s.rates), 3, -1)).unbind(2)
    y = rms_norm(_recurrence(q, k, v, s.rates).flatten(1), w["norm.weight"], s.eps)
    return linear(y * linear(x, w, "output_gate").sigmoid(), w, "out_proj")


def ring_rates(heads: int, index: int, layers: int) -> list[float]:
    """Of the heads of a layer; where they are no power of two, those of twice as many fill up."""

    def slopes(count: int) -> list[float]:
        if count & (count - 1) == 0:
            return [2 ** (-8 * (head + 1) / count) for head in range(count)]
        power = 2 ** (count.bit_length() - 1)
        return slopes(power) + slopes(2 * power)[::2][: count - power]

    share = 1 - (index - 1) / max(1, layers - 1) + 1e-5
    return [slope * share for slope in slopes(heads)]


def ring_attention(x: Tensor, w: Weights, s: LightningSizes) -> Tensor:
    """Ring's: (T, C) to (T, C)."""
    qkv = linear(x, w, "query_key_value")
    qkv = qkv if s.activation is None else activate(qkv, s.activation)
    q, k, v = (each.unflatten(-1, (len(s.rates), -1)) for each in qkv.chunk(3, -1))
    if "query_layernorm.weight" in w:
        q = rms_norm(q, w["query_layernorm.weight"], s.eps)
        k = rms_norm(k, w["key_layernorm.weight"], s.eps)
    q, k = rotate(q, s.rotation), rotate(k, s.rotation)
    y = _recurrence(q * q.shape[-1] ** -0.5, k, v, s.rates).flatten(1).unflatten(-1, (s.groups, -1))
    weight = w["g_norm.weight"].unflatten(-1, (s.groups, -1))
    y = rms_norm(y, weight, s.eps).flatten(1)
    return linear(y * linear(x, w, "g_proj").sigmoid(), w, "dense")


def _recurrence(q: Tensor, k: Tensor, v: Tensor, rates: Sequence[float]) -> Tensor:
    """``S <- e^-rate S + k v^T``, ``y = S^T q``; all (T, H, D)."""
    fade = (-torch.tensor(rates, dtype=q.dtype)).exp()[:, None, None]
    state = q.new_zeros(q.shape[1], q.shape[2], v.shape[2])
    outputs = []
    for t in range(len(q)):
        state = fade * state + k[t, :, :, None] * v[t, :, None]
        outputs.append(torch.einsum("hnp,hn->hp", state, q[t]))
    return torch.stack(outputs)
