"""Rotary position embedding, and the writing of keys and values that goes with it."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.operands.attention import Rotation
from blazr.nn.operands.kv_dtype import write_entries
from blazr.nn.ops.op import op


@op
def rotary_tables(frequencies: Tensor, positions: Tensor, factor: float = 1.0) -> Tensor:
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


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the first channels of every head, those behind them stay.

    Args:
        x: (T, H, D).
        rotation: Of at most D channels.

    Returns:
        (T, H, D) in the dtype of x.
    """
    channels = 2 * rotation.cos.shape[-1]
    rotated = x[..., :channels] if channels < x.shape[-1] else x
    if rotation.interleaved:
        cos, sin = rotation.cos.unsqueeze(-2), rotation.sin.unsqueeze(-2)
        rotated = rotate_pairs(rotated.float(), cos, sin).to(x.dtype)
    else:
        rotated = rotate_half(rotated, rotation.cos, rotation.sin)
    return rotated if channels == x.shape[-1] else torch.cat((rotated, x[..., channels:]), -1)


@op
def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    keys: Tensor,
    values: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """Rotate queries and keys, and put keys and values at their places in the pages.

    Args:
        q: Queries, (T, H, D).
        k: Keys, (T, K, D); K may be 0, so that queries alone are rotated.
        v: Values, (T, K, E).
        rotation: How they are rotated, and where keys and values go.
        keys: (pages, GRID, K, D), or what D numbers take in the dtype of keys and values; written.
        values: (pages, GRID, K, E), or the same; written.
        out: (T, H, D), where the queries go, perhaps a part of a wider tensor; None for anywhere.

    Returns:
        The queries, (T, H, D).
    """
    write_entries(keys, rotation.slots, rotate(k, rotation))
    write_entries(values, rotation.slots, v)
    rotated = rotate(q, rotation)
    return rotated if out is None else out.copy_(rotated)
