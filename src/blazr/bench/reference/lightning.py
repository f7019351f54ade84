"""Lightning attention [arXiv:2401.04658] as a plain recurrence, a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.bench.reference.mlp import activate
from blazr.bench.reference.norms import rms_norm
from blazr.bench.reference.weights import Weights, linear


@dataclass(frozen=True, kw_only=True)
class LightningSizes:
    """What tensors do not say.

    Args:
        rates: What the logarithm of a head's state loses with each token.
        eps: Of the norm at the end.
        activation: Of queries, keys and values.
    """

    rates: Sequence[float]
    eps: float
    activation: str


def minimax_rates(heads: int, index: int, layers: int) -> list[float]:
    """Of the heads of a layer."""
    share = 1 - index / (layers - 1 + 1e-5) + 1e-5
    return [2 ** (-8 * (head + 1) / heads) * share for head in range(heads)]


def minimax_attention(x: Tensor, w: Weights, s: LightningSizes) -> Tensor:
    """MiniMax's, whose queries, keys and values are together by head: (T, C) to (T, C)."""
    qkv = activate(linear(x, w, "qkv_proj"), s.activation)
    q, k, v = qkv.unflatten(-1, (len(s.rates), 3, -1)).unbind(2)
    y = rms_norm(_recurrence(q, k, v, s.rates).flatten(1), w["norm.weight"], s.eps)
    return linear(y * linear(x, w, "output_gate").sigmoid(), w, "out_proj")


def _recurrence(q: Tensor, k: Tensor, v: Tensor, rates: Sequence[float]) -> Tensor:
    """``S <- e^-rate S + k v^T``, ``y = S^T q``; all (T, H, D)."""
    fade = (-torch.tensor(rates, dtype=q.dtype)).exp()[:, None, None]
    state = q.new_zeros(q.shape[1], q.shape[2], v.shape[2])
    outputs = []
    for t in range(len(q)):
        state = fade * state + k[t, :, :, None] * v[t, :, None]
        outputs.append(torch.einsum("hnp,hn->hp", state, q[t]))
    return torch.stack(outputs)
