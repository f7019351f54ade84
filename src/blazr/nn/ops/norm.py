"""Normalisation over the last dimension, in float32."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.ops.op import Op


def _rms_norm(x: Tensor, weight: Tensor, eps: float, *, unit_offset: bool = False) -> Tensor:
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
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (normed * (1 + weight.float())).to(x.dtype)
    return normed.to(x.dtype) * weight


def _rms_norm_samples(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, float]]:
    for rows, size in ((1, 16), (3, 40), (2, 7), (5, 1), (0, 8), (300, 300)):
        yield torch.randn(rows, size).to(dtype), torch.randn(size).to(dtype), 1e-5
    yield torch.randn(2, 3, 24).to(dtype), torch.randn(24).to(dtype), 0.1
    yield torch.randn(4, 20).to(dtype)[:, 3:12], torch.randn(9).to(dtype), 1e-6
    yield torch.zeros(2, 8).to(dtype), torch.randn(8).to(dtype), 1e-6


rms_norm = Op("rms_norm", reference=_rms_norm, samples=_rms_norm_samples)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
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


def _layer_norm_samples(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for x, weight, eps in _rms_norm_samples(dtype):
        yield x + 3, weight, torch.randn(len(weight)).to(dtype), eps


layer_norm = Op("layer_norm", reference=_layer_norm, samples=_layer_norm_samples)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    *,
    groups: int = 1,
    gate_first: bool = True,
) -> Tensor:
    """RMSNorm of ``x * silu(gate)``, or ``silu(gate)`` times the RMSNorm of x.

    Args:
        x: (..., C), float32.
        gate: (..., C).
        weight: (C,).
        eps: Added to the mean square.
        groups: The mean is taken over the channels of each of so many groups.
        gate_first: Whether the gate comes before the norm.

    Returns:
        (..., C), float32.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 7.1.
    """
    factor = F.silu(gate.float())
    grouped = (x * factor if gate_first else x).unflatten(-1, (groups, -1))
    mean = grouped.square().mean(-1, keepdim=True)
    normed = (grouped * torch.rsqrt(mean + eps)).flatten(-2) * weight.float()
    return normed if gate_first else normed * factor
