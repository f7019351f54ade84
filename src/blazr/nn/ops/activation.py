"""What stands between the matrices of a feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.core.table import Table

ACTIVATIONS: Table[Callable[[Tensor], Tensor]] = Table(
    "activation",
    {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "relu": F.relu,
        "relu2": lambda x: F.relu(x).square(),
    },
)


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """``alpha_p x^2 + beta x`` above 0, ``alpha_n (expm1(min(x, eps)) - x) + beta x`` below.

    Args:
        x: (..., I).
        alpha_p: (1,), before its softplus.
        alpha_n: (1,), the same; beta is added to it.
        beta: (), the slope at 0.
        eps: (), a little below 0.

    Returns:
        (..., I) in the dtype of x.

    Source: Huang 2024, arXiv:2411.13010.
    """
    wide, slope = x.float(), beta.float()
    above = F.softplus(alpha_p.float()) * wide.square()
    below = (slope + F.softplus(alpha_n.float())) * (torch.expm1(torch.min(wide, eps)) - wide)
    return (torch.where(wide > 0, above, below) + slope * wide).to(x.dtype)


def clamped_swiglu(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """``gate * sigmoid(alpha * gate) * (up + 1)`` of clamped inputs.

    Args:
        gate: (..., I), clamped from above.
        up: (..., I), clamped from both sides.
        alpha: Steepness of the sigmoid.
        limit: Where to clamp.

    Returns:
        (..., I) in the dtype of the inputs.

    Source: OpenAI 2025, gpt-oss model card.
    """
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)
