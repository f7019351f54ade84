"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from blazr.nn.ops.op import Op


def _rotary_tables(frequencies: Tensor, positions: Tensor, factor: float = 1.0) -> Tensor:
    """Cosine and sine of ``position * frequency``, the product rounded to float32.

    Args:
        frequencies: Radians per position, (pairs,), float32.
        positions: (T,), int64.
        factor: Applied to both.

    Returns:
        (2, T, pairs), float32.
    """
    angles = positions.float()[:, None] * frequencies.float()
    return torch.stack((angles.cos(), angles.sin())) * factor


def _rotary_samples(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for count, pairs in ((1, 1), (3, 32), (0, 4), (40, 7)):
        positions = torch.randint(0, 100_000, (count,))
        yield 10000 ** -torch.rand(pairs).to(dtype), positions
        yield torch.rand(pairs).to(dtype), positions, 1.25


rotary_tables = Op("rotary_tables", reference=_rotary_tables, samples=_rotary_samples)


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
