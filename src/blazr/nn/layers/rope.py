"""Rotary position embedding: its configuration and its tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the frequencies are stretched to reach beyond the trained context.

    Args:
        kind: ``"linear"`` divides all of them; ``"llama3"`` only the slow ones, with a ramp.
        factor: By how much.
        low_freq_factor: Waves longer than ``original_max_seq_len`` over this are stretched whole.
        high_freq_factor: Waves shorter than ``original_max_seq_len`` over this are left alone.
        original_max_seq_len: The trained context, in tokens.
    """

    kind: Literal["linear", "llama3"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_seq_len: int = 8192


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotation of ``dim`` channels of every head.

    Args:
        dim: Channels rotated, even.
        theta: Base of the frequencies.
        scaling: Context extension, or None.
    """

    dim: int
    theta: float = 10000.0
    scaling: RopeScaling | None = None

    def frequencies(self) -> Tensor:
        """Radians per position, (dim / 2,), float32, computed in float64."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim
        frequencies = self.theta**-exponents
        if self.scaling is not None:
            frequencies = _scale(frequencies, self.scaling)
        return frequencies.float()

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine at these positions, (T, dim / 2) each, float32.

        Args:
            positions: (T,), int64.
        """
        frequencies = _frequencies_on(self, positions.device)
        angles = positions.float()[:, None] * frequencies
        return angles.cos(), angles.sin()


def _scale(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_seq_len * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (keep + (1 - keep) / scaling.factor)


@cache
def _frequencies_on(config: RopeConfig, device: torch.device) -> Tensor:
    """They depend on the config alone, so every layer of a model shares one tensor."""
    return config.frequencies().to(device)
