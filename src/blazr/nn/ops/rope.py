"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (j, j + D/2) of every head: the split-half form of Llama and oxidizr.

    Args:
        x: (..., H, D), D even.
        cos: (..., D / 2), float32; broadcast over heads.
        sin: The same.

    Returns:
        (..., H, D) in the dtype of x.

    Source: Su et al. 2021, arXiv:2104.09864.
    """
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    first, second = x.float().chunk(2, -1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return rotated.to(x.dtype)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the interleaved pairs (2j, 2j + 1): Mamba-3's data-dependent rotation.

    Args:
        x: (..., N), N even, float32.
        cos: (..., N / 2), float32.
        sin: The same.

    Returns:
        (..., N), float32.
    """
    real, imaginary = x.unflatten(-1, (-1, 2)).unbind(-1)
    pairs = (real * cos - imaginary * sin, real * sin + imaginary * cos)
    return torch.stack(pairs, -1).flatten(-2)
