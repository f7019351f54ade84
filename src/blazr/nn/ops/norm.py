"""Normalisation over the last dimension, in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.recurrent import GatedNorm
from blazr.nn.ops.op import op
from blazr.nn.ops.pointwise import add


@op
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, unit_offset: bool = False) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight``, cast to x's dtype before the weight is applied.

    Args:
        x: (..., C).
        weight: (C,), in the dtype of x.
        eps: Added to the mean square.
        unit_offset: Whether the weight is stored less one (Gemma); it is then applied in float32,
            as one plus a small weight would be rounded in anything narrower.

    Returns:
        (..., C) in the dtype of x.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    mean = x.float().square().mean(-1, keepdim=True)
    return scale_rms(x, mean, weight, eps, unit_offset=unit_offset)


def scale_rms(
    x: Tensor, mean: Tensor, weight: Tensor, eps: float, *, unit_offset: bool = False
) -> Tensor:
    """`rms_norm` by a mean square, (..., 1) float32, that is known already."""
    normed = x.float() * torch.rsqrt(mean + eps)
    if unit_offset:
        return (normed * (1 + weight.float())).to(x.dtype)
    return normed.to(x.dtype) * weight


@op
def add_rms_norm(
    x: Tensor,
    change: Tensor,
    weight: Tensor,
    eps: float,
    factor: float = 1.0,
    *,
    unit_offset: bool = False,
) -> Tensor:
    """``x + change * factor``, as `add` rounds it, and the `rms_norm` of that, read once.

    Args:
        x: (..., C).
        change: (..., C), in the dtype of x.
        weight: See `rms_norm`.
        eps: See `rms_norm`.
        factor: 1 leaves the change.
        unit_offset: See `rms_norm`.

    Returns:
        (2, ..., C) in the dtype of x.
    """
    total = add(x, change, factor)
    return torch.stack((total, rms_norm(total, weight, eps, unit_offset=unit_offset)))


@op
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` with the biased variance.

    Args:
        x: (..., C).
        weight: (C,).
        bias: (C,).
        eps: Added to the variance.

    Returns:
        (..., C) in the dtype of x.

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, norm: GatedNorm) -> Tensor:
    """RMSNorm of ``x * silu(gate)``, or the gate's activation times the RMSNorm of x.

    Args:
        x: (..., C).
        gate: (..., C).
        norm: In which order, and its weight; without one there is the gate alone, or not even that.

    Returns:
        (..., C), float32.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 7.1.
    """
    if norm.order == "ungated":
        return x.float()
    gate = gate.float()
    factor = gate.sigmoid() if norm.order == "norm_sigmoid" else F.silu(gate)
    if norm.weight is None:
        return x.float() * factor
    is_gate_first = norm.order == "gate_first"
    grouped = (x.float() * factor if is_gate_first else x.float()).unflatten(-1, (norm.groups, -1))
    mean = grouped.square().mean(-1, keepdim=True)
    normed = (grouped * torch.rsqrt(mean + norm.eps)).flatten(-2) * norm.weight.float()
    return normed if is_gate_first else normed * factor


@op
def gated_norm(x: Tensor, gate: Tensor, norm: GatedNorm) -> Tensor:
    """See :func:`gated_rms_norm`: (T, C) to (T, C), in the dtype of x."""
    return gated_rms_norm(x, gate, norm).to(x.dtype)
