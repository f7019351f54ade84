"""Parameters that inputs are multiplied with: a matrix, or the filters of a convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.derived import DerivedModule, derived
from blazr.nn.layers.lora import Lora
from blazr.nn.operands.lora import UNCHANGED
from blazr.nn.operands.recurrent import Filter
from blazr.nn.ops.matmul import gated_linear, linear
from blazr.nn.quant.weight import Weight

Matrix = nn.Parameter | Weight


def multiply(
    x: Tensor, weight: Tensor | Weight, bias: Tensor | None = None, lora: Lora | None = None
) -> Tensor:
    """``x weight.T + bias`` in the weight's dtype, however the weight is stored."""
    x = x.to(weight.dtype)
    delta = None if lora is None else lora.delta(x)
    if isinstance(weight, Weight):
        return weight.matmul(x, bias) if delta is None else weight.adapted(x, delta, bias)
    return linear(x, weight, bias) if delta is None else linear(x, weight, bias, delta)


def multiply_gated(x: Tensor, gate: Linear, up: Linear) -> Tensor:
    """``silu(gate(x)) * up(x)`` of two projections without biases, however they are stored."""
    first, second = gate.weight, up.weight
    if isinstance(first, Weight) != isinstance(second, Weight):
        return F.silu(gate(x)) * up(x)
    x = x.to(first.dtype)
    loras = UNCHANGED
    if gate.lora is not None or up.lora is not None:
        first_delta, second_delta = (
            None if each.lora is None else each.lora.delta(x) for each in (gate, up)
        )
        loras = first_delta, second_delta
    if isinstance(first, Weight) and isinstance(second, Weight):
        return first.gated(x, second, loras)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    return gated_linear(x, first, second, loras)


class Linear(nn.Module):
    """``y = x weight.T + bias``; parameters are uninitialised until loaded.

    Loading may put a packed weight in the parameter's place. ``lora`` is what adapters change,
    where there are any.

    Args:
        in_features: Columns of the weight.
        out_features: Rows of the weight.
        bias: Whether there is one.
    """

    weight: Matrix
    bias: nn.Parameter | None
    lora: Lora | None = None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    @property
    def adapter_dtype(self) -> torch.dtype:
        """What adapters are multiplied in."""
        return self.weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out), in the weight's dtype."""
        return multiply(x, self.weight, self.bias, self.lora)


class DepthwiseConv(DerivedModule):
    """Parameters of a causal convolution with one filter per channel.

    Args:
        channels: Filters.
        kernel: Taps of each.
        bias: Whether there is one.
        silu: Whether SiLU follows, where there are no gates.
    """

    bias: nn.Parameter | None

    def __init__(self, channels: int, kernel: int, *, bias: bool = True, silu: bool = True) -> None:
        super().__init__()
        self.silu = silu
        self.weight = nn.Parameter(torch.empty(channels, kernel))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    @derived
    def filter(self) -> Filter:
        """As operations take it."""
        weight = self.weight.float().t().contiguous()
        bias = weight.new_zeros(weight.shape[1]) if self.bias is None else self.bias.float()
        return Filter(weight, bias, self.silu)
