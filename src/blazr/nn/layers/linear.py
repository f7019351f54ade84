"""A matrix, perhaps with a bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """``y = x weight.T + bias``; parameters are uninitialised until loaded.

    Args:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        bias: Whether there is one.
    """

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out), in the weight's dtype."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class DepthwiseConv(nn.Module):
    """Parameters of a causal convolution with one filter per channel.

    Args:
        channels: Filters.
        kernel: Taps of each.
    """

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, kernel))
        self.bias = nn.Parameter(torch.empty(channels))
