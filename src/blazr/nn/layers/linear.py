"""Parameters that inputs are multiplied with: a matrix, or the filters of a convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.derived import DerivedModule, derived
from blazr.nn.operands.recurrent import Filter
from blazr.nn.ops.matmul import gated_linear, linear
from blazr.nn.quant.weight import Weight

Matrix = nn.Parameter | Weight


def multiply(x: Tensor, weight: Tensor | Weight, bias: Tensor | None = None) -> Tensor:
    """``x weight.T + bias`` in the weight's dtype, however the weight is stored."""
    x = x.to(weight.dtype)
    return weight.matmul(x, bias) if isinstance(weight, Weight) else linear(x, weight, bias)


def multiply_gated(x: Tensor, gate: Tensor | Weight, up: Tensor | Weight) -> Tensor:
    """``silu(x gate.T) * (x up.T)`` in the weights' dtype, however they are stored."""
    if isinstance(gate, Weight) and isinstance(up, Weight):
        return gate.gated(x.to(gate.dtype), up)
    if isinstance(gate, Weight) or isinstance(up, Weight):
        return F.silu(multiply(x, gate)) * multiply(x, up)
    return gated_linear(x.to(gate.dtype), gate, up)


class Linear(nn.Module):
    """``y = x weight.T + bias``; parameters are uninitialised until loaded.

    Loading may put a packed weight in the parameter's place.

    Args:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        bias: Whether there is one.
    """

    weight: Matrix
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out), in the weight's dtype."""
        return multiply(x, self.weight, self.bias)


class DepthwiseConv(DerivedModule):
    """Parameters of a causal convolution with one filter per channel.

    Args:
        channels: Filters.
        kernel: Taps of each.
        bias: Whether there is one.
    """

    bias: nn.Parameter | None

    def __init__(self, channels: int, kernel: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, kernel))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    @derived
    def filter(self) -> Filter:
        """As operations take it."""
        weight = self.weight.float().t().contiguous()
        bias = weight.new_zeros(weight.shape[1]) if self.bias is None else self.bias.float()
        return Filter(weight, bias)
