"""Causal depthwise convolution."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``y[t] = bias + sum_j weight[:, j] * x[t + j]``, one filter per channel.

    Args:
        x: (..., K - 1 + T, channels): the K - 1 inputs before the first output, then T more.
        weight: (channels, K).
        bias: (channels,), or None.

    Returns:
        (..., T, channels), float32.
    """
    windows = x.float().unfold(-2, weight.shape[1], 1)  # (..., T, channels, K)
    y = (windows * weight.float()).sum(-1)
    return y if bias is None else y + bias.float()


def causal_conv1d_sequences(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same over whole sequences that start from nothing, fast in training.

    Args:
        x: (B, T, channels).
        weight: (channels, K).
        bias: (channels,), or None.

    Returns:
        (B, T, channels), float32.
    """
    kernel = weight.shape[1]
    padded = F.pad(x.float().transpose(1, 2), (kernel - 1, 0))
    wide = None if bias is None else bias.float()
    out = F.conv1d(padded, weight.float().unsqueeze(1), wide, groups=weight.shape[0])
    return out.transpose(1, 2)
