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
