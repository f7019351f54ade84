"""Norms."""

from __future__ import annotations

from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def gated_rms_norm(
    y: Tensor, gate: Tensor, weight: Tensor | None, eps: float, groups: int, *, gate_first: bool
) -> Tensor:
    """The norm at the end of a Mamba-2 mixer, over the channels of each group: (T, channels)."""
    y = y * silu(gate) if gate_first else y
    if weight is not None:
        y = rms_norm(y.unflatten(-1, (groups, -1)), None, eps).flatten(-2) * weight
    return y if gate_first else y * silu(gate)


def silu(x: Tensor) -> Tensor:
    """``x sigmoid(x)``."""
    return x * x.sigmoid()
