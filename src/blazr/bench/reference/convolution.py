"""Causal convolutions, a channel at a time, and LFM2's mixer that is nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.bench.reference.weights import Weights, linear


def causal_convolution(x: Tensor, w: Weights, name: str = "conv1d") -> Tensor:
    """``y_t = b + sum_j w_j x_(t - K + 1 + j)``, with nothing before the first token: (T, C)."""
    taps = w.shape(name + ".weight")[-1]
    weight = w[name + ".weight"].reshape(-1, taps)  # (C, K)
    padded = torch.cat((x.new_zeros(taps - 1, x.shape[1]), x))
    y = sum(padded[j : j + len(x)] * weight[:, j] for j in range(taps))
    assert isinstance(y, Tensor)
    bias = w.get(name + ".bias")
    return y if bias is None else y + bias


def short_convolution(x: Tensor, w: Weights) -> Tensor:
    """LFM2's: gated before and after, (T, C) to (T, C)."""
    before, after, value = linear(x, w, "in_proj").chunk(3, -1)
    return linear(after * causal_convolution(before * value, w, "conv"), w, "out_proj")
