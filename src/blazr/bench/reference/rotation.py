"""Rotary position embedding [arXiv:2104.09864] and the ways of stretching it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """How the channels of a head are rotated.

    Args:
        frequencies: Radians per position of every pair of channels, for a sequence of so many
            tokens; float64.
        factor: What cosines and sines are multiplied with.
        interleaved: Whether channels 2j and 2j + 1 are a pair, and not j and j + half.
        long: Tokens of a sequence above which there is another such factor, and that one.
        order: Channels of a head in the order that pairs are about, where the file has another.
        temperature: Ministral 3's ``beta`` and length: queries grow with the position.
    """

    frequencies: Callable[[int], Tensor]
    factor: float = 1.0
    interleaved: bool = False
    long: tuple[int, float] | None = None
    order: Tensor | None = None
    temperature: tuple[float, float] | None = None


def plain(dim: int, theta: float, factors: Tensor | float = 1.0) -> Tensor:
    """``theta^(-2j / dim) / factors``, (dim / 2)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    return theta**-exponents / factors


def proportional(head_dim: int, theta: float, factor: float, share: float) -> Tensor:
    """The first share of all pairs turns, and the others stand still."""
    speeds = plain(head_dim, theta, factor)
    speeds[int(share * head_dim // 2) :] = 0
    return speeds


def fixed(frequencies: Tensor) -> Callable[[int], Tensor]:
    """The same frequencies for sequences of every length."""
    return lambda _: frequencies


def rotate(x: Tensor, rotation: Rotation | None) -> Tensor:
    """(T, H, D) with the first channels of every head rotated by their positions 0, 1, ...

    Channels may come out in another order, the same for queries and keys.
    """
    if rotation is None:
        return x
    x = x if rotation.order is None else x[..., rotation.order]
    speeds = rotation.frequencies(len(x)).to(x.dtype)
    angles = torch.arange(len(x), dtype=x.dtype)[:, None, None] * speeds  # (T, 1, pairs)
    factor = rotation.factor
    if rotation.long is not None and len(x) > rotation.long[0]:
        factor = rotation.long[1]
    cos, sin = angles.cos() * factor, angles.sin() * factor
    moved = x[..., : 2 * len(speeds)]
    rest = x[..., 2 * len(speeds) :]
    if rotation.interleaved:
        first, second = moved[..., ::2], moved[..., 1::2]
        pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
        return torch.cat((pairs.flatten(-2), rest), -1)
    first, second = moved.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def grown(queries: Tensor, scale: float, length: float, *, first: int = 0) -> Tensor:
    """(T, H, D) multiplied with ``1 + scale log(1 + floor(position / length))``."""
    positions = torch.arange(len(queries), dtype=queries.dtype)[:, None, None] + first
    return queries * (1 + scale * torch.log1p(torch.floor(positions / length)))


def temper(queries: Tensor, rotation: Rotation | None) -> Tensor:
    """(T, H, D), as `grown` has it where the rotation says so."""
    if rotation is None or rotation.temperature is None:
        return queries
    return grown(queries, *rotation.temperature)


def llama3(
    dim: int, theta: float, factor: float, low: float, high: float, trained: float
) -> Tensor:
    """Llama 3.1's: slow channels are slowed down by ``factor``, fast ones are left alone."""
    speeds = plain(dim, theta)
    above = trained * speeds / (2 * math.pi) - low
    kept = (above / (high - low)).clamp(0, 1) if high > low else (above >= 0).double()
    return speeds * (kept + (1 - kept) / factor)


def yarn(
    dim: int,
    theta: float,
    factor: float,
    trained: float,
    *,
    fast: float = 32.0,
    slow: float = 1.0,
    whole: bool = True,
) -> Tensor:
    """YaRN [arXiv:2309.00071]; ``whole`` rounds the ends of its ramp over channels."""

    def channel(turns: float) -> float:
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = channel(fast), channel(slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    pairs = torch.arange((dim + 1) // 2, dtype=torch.float64)
    ramp = ((pairs - low) / ((high - low) or 0.001)).clamp(0, 1)
    speeds = plain(dim, theta)
    return speeds / factor * ramp + speeds * (1 - ramp)


def dynamic(dim: int, theta: float, factor: float, trained: int, length: int) -> Tensor:
    """The base grows with sequences that are longer than those of training."""
    stretch = factor * max(length, trained) / trained - (factor - 1)
    return plain(dim, theta * stretch ** (dim / (dim - 2)))


def mscale(factor: float, weight: float = 1.0) -> float:
    """How much larger YaRN makes scores, for each side of the product."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0
