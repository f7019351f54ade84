"""Normalisation layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from blazr.nn.ops.norm import layer_norm, rms_norm


@dataclass(frozen=True, slots=True)
class NormConfig:
    """A normalisation over the last dimension.

    Args:
        size: C.
        eps: Added to the mean square or the variance.
        kind: ``"rms"`` (weight only) or ``"layer"`` (mean removed, weight and bias).
        unit_offset: Whether an RMSNorm's weight is stored less one.
    """

    size: int
    eps: float
    kind: Literal["rms", "layer"] = "rms"
    unit_offset: bool = False

    def build(self) -> Norm:
        """The module, with uninitialised parameters."""
        return Norm(self)


class Norm(nn.Module):
    """RMSNorm or LayerNorm, as its config says."""

    bias: nn.Parameter | None

    def __init__(self, config: NormConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.unit_offset = config.unit_offset
        self.weight = nn.Parameter(torch.empty(config.size))
        self.bias = nn.Parameter(torch.empty(config.size)) if config.kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        if self.bias is None:
            return rms_norm(x, self.weight, self.eps, unit_offset=self.unit_offset)
        return layer_norm(x, self.weight, self.bias, self.eps)
