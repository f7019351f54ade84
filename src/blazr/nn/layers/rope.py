"""Rotary position embedding: its configuration, its tables and the rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from blazr.nn.operands.attention import AttentionTemperature
from blazr.nn.ops.rope import rotary_tables

ScalingKind = Literal["linear", "factors", "dynamic", "yarn", "longrope", "llama3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the frequencies are stretched to reach beyond the trained context.

    - ``"linear"`` divides all of them by ``factor`` [arXiv:2306.15595].
    - ``"factors"`` divides each by its own of ``factors`` (GGUF).
    - ``"dynamic"`` raises theta for sequences longer than ``original_max_seq_len`` (NTK-aware).
    - ``"llama3"`` divides the slow ones, with a ramp in between, or a step (Llama 4 Scout).
    - ``"yarn"`` does the same with a ramp over channels, and scales the tables [arXiv:2309.00071].
    - ``"longrope"`` divides by ``factors``, too, but by ``long_factors`` in sequences that may
      become longer than ``original_max_seq_len`` [arXiv:2402.13753].

    Args:
        kind: One of these.
        factor: By how much.
        original_max_seq_len: The trained context, in tokens.
        low_freq_factor: Waves longer than ``original_max_seq_len`` over this are stretched whole.
        high_freq_factor: Waves shorter than ``original_max_seq_len`` over this are left alone.
        beta_fast: Channels that turn more often than this within the trained context stay.
        beta_slow: Channels that turn less often than this are stretched whole.
        truncate: Whether the ends of the ramp over channels are whole numbers.
        attention_factor: Applied to cosine and sine.
        long_attention_factor: The same for long sequences, where it is another (Phi-3.5-MoE).
        factors: A divisor per frequency.
        long_factors: The same for long sequences.
    """

    kind: ScalingKind
    factor: float = 1.0
    original_max_seq_len: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    long_attention_factor: float | None = None
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotation of the first ``dim`` channels of every head.

    Args:
        dim: Channels rotated; those behind them stay. An odd one means one more.
        theta: Base of the frequencies.
        scaling: Context extension, or None.
        interleaved: Whether the channels of a pair lie side by side, not half of ``dim`` apart.
        temperature: How scores grow with the position of the query, or None (Ministral 3).
        axes: Which of a token's three positions turns each pair, 0 to 2: those of an image differ
            (M-RoPE of Qwen2-VL, arXiv:2409.12191). Empty where a token has one.
        backwards: Whether pairs turn the other way (nanochat).
    """

    dim: int
    theta: float = 10000.0
    scaling: RopeScaling | None = None
    interleaved: bool = False
    temperature: AttentionTemperature | None = None
    axes: tuple[int, ...] = ()
    backwards: bool = False

    @property
    def num_pairs(self) -> int:
        """Pairs of channels that are rotated."""
        return -(-self.dim // 2)

    def length_class(self, length: int) -> int:
        """The length that decides how a sequence that may become this long is rotated.

        Long sequences may be rotated otherwise than short ones from their first token on. What
        counts is how long one may become, so that nothing changes on the way.

        Args:
            length: Most tokens the sequence may ever have.
        """
        scaling = self.scaling
        if scaling is None or scaling.kind not in {"dynamic", "longrope"}:
            return 0
        trained = scaling.original_max_seq_len
        if length <= trained:
            return trained
        return length if scaling.kind == "dynamic" else trained + 1

    def frequencies(self, length: int = 0) -> Tensor:
        """Radians per position, (pairs,), float32, rounded as the models were trained with.

        Args:
            length: Tokens of the sequence, for scalings that depend on it.
        """
        exponents = torch.arange(0, self.dim, 2).float() / self.dim
        scaling, theta = self.scaling, self.theta
        if scaling is None:
            return 1 / theta**exponents
        trained = scaling.original_max_seq_len
        if scaling.kind == "dynamic" and self.dim > 2:
            stretch = scaling.factor * max(length, trained) / trained
            theta *= (stretch - (scaling.factor - 1)) ** (self.dim / (self.dim - 2))
        frequencies = 1 / theta**exponents
        match scaling.kind:
            case "dynamic":
                return frequencies
            case "linear":
                return frequencies / scaling.factor
            case "factors" | "longrope":
                is_long = scaling.kind == "longrope" and length > trained
                factors = scaling.long_factors if is_long else scaling.factors
                return frequencies / torch.tensor(factors, dtype=torch.float32)
            case "llama3":
                turns = trained * frequencies / (2 * math.pi)
                span = scaling.high_freq_factor - scaling.low_freq_factor
                above = turns - scaling.low_freq_factor
                keep = (above / span).clamp(0, 1) if span else (above >= 0).float()
            case "yarn":
                keep = 1 - _yarn_ramp(scaling, self)
        return frequencies * (keep + (1 - keep) / scaling.factor)

    def tables(self, positions: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cosine and sine at these positions, (T, pairs) each, float32.

        Args:
            positions: (T,), or one row for each of three axes, (3, T), int64.
            lengths: (T,), int64, how long each token's sequence may become; None: to the last of
                these positions. Only some scalings look at it.
        """
        if positions.ndim > 1:
            by_axis = torch.stack([torch.stack(self.tables(row, lengths)) for row in positions])
            axes = torch.tensor(self.axes, device=positions.device).expand(1, *by_axis.shape[1:])
            cos, sin = by_axis.gather(0, axes)[0]
            return cos, sin
        if self.length_class(1) == 0:
            return self._tables(positions, 0)
        if lengths is None:
            lengths = (positions.max() + 1).expand(len(positions))
        cos = positions.new_empty((len(positions), self.num_pairs), dtype=torch.float32)
        sin = torch.empty_like(cos)
        for length in lengths.unique().tolist():
            rows = lengths == length
            cos[rows], sin[rows] = self._tables(positions[rows], self.length_class(length))
        return cos, sin

    def _tables(self, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
        frequencies = _frequencies_on(self, length, positions.device)
        factor, scaling = 1.0, self.scaling
        if scaling is not None:
            factor = scaling.attention_factor
            is_long = length > scaling.original_max_seq_len
            if is_long and scaling.long_attention_factor is not None:
                factor = scaling.long_attention_factor
        both = rotary_tables(frequencies, positions, factor)
        return both[0], both[1]


class Positions:
    """Where the tokens of a step stand, and the tables of rotation there, made once for all layers.

    Args:
        positions: (T,) or (3, T), int64.
        lengths: (T,), int64, how long each token's sequence may become. Both are as
            `RopeConfig.tables` takes them.
    """

    def __init__(self, positions: Tensor, lengths: Tensor | None = None) -> None:
        self._positions = positions
        self._lengths = lengths
        self._tables: dict[RopeConfig, tuple[Tensor, Tensor]] = {}

    def tables(self, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        """Cosine and sine, (T, pairs) each, float32."""
        if rope not in self._tables:
            self._tables[rope] = rope.tables(self._positions, self._lengths)
        return self._tables[rope]


def _yarn_ramp(scaling: RopeScaling, rope: RopeConfig) -> Tensor:
    """0 for channels that stay, 1 for those that are stretched, and a ramp in between."""

    def channel(turns: float) -> float:
        """The one that turns this often within the trained context."""
        waves = math.log(scaling.original_max_seq_len / (turns * 2 * math.pi))
        return rope.dim * waves / (2 * math.log(rope.theta))

    low, high = channel(scaling.beta_fast), channel(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    high = high + 0.001 if low == high else high
    channels = torch.arange(rope.dim // 2, dtype=torch.float32)
    return ((channels - low) / (high - low)).clamp(0, 1)


@lru_cache(maxsize=1024)
def _frequencies_on(config: RopeConfig, length: int, device: torch.device) -> Tensor:
    """They depend on the config alone, so every layer of a model shares one tensor."""
    frequencies = config.frequencies(length).to(device)
    return -frequencies if config.backwards else frequencies
