"""What kernels that do a whole step of a mixer are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

# What is gated with silu, or at last with a sigmoid, and normalised.
GatedNorm = Literal["gate_first", "norm_first", "norm_sigmoid", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """What a step computes, sequence by sequence, as numbers in memory.

    Args:
        spans: (B, 8), int64: first row, length, tokens before, tokens since the checkpoint,
            checkpoint's slot, run slot, first of its rows in ``checkpoints``, how many.
        checkpoints: (n, 2), int64: after how many tokens of the step, slot to write.
        block_tables: (B, M), int64, page ids.
        longest: The largest length.
    """

    spans: Tensor
    checkpoints: Tensor
    block_tables: Tensor
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Weights:
    """What lies between a Mamba-2 mixer's projections; float32, dense.

    Args:
        heads: H.
        head_dim: P.
        state_size: N.
        groups: G.
        conv_weight: (K, channels).
        conv_bias: (channels,).
        dt_bias: (H,).
        a: (H,), negative.
        d: (H,).
        norm: (H * P,), or None where ``order`` has no norm.
        order: How the output is gated and normalised.
        norm_groups: The norm is taken over each of so many groups of channels.
        eps: Of the gated norm.
        dt_min: Step sizes are at least this.
        dt_max: And at most this.
        multipliers: Of all that is projected, or None.
    """

    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_weight: Tensor
    conv_bias: Tensor
    dt_bias: Tensor
    a: Tensor
    d: Tensor
    norm: Tensor | None
    order: GatedNorm
    norm_groups: int
    eps: float
    dt_min: float
    dt_max: float
    multipliers: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Memory:
    """A Mamba-2 layer's memory: checkpoints (slots, ...) and logs (runs, GRID, ...)."""

    states: Tensor
    conv_states: Tensor
    log_raw: Tensor
    log_xb: Tensor
    log_dt: Tensor


@dataclass(frozen=True, slots=True)
class Carried:
    """A tensor that sequences carry along from step to step.

    Args:
        kept: As it was at grid edges, (slots, ...).
        working: As it stands, (runs, ...); right after a grid edge what was kept there counts.
    """

    kept: Tensor
    working: Tensor


@dataclass(frozen=True, slots=True)
class Filter:
    """A causal convolution; float32, dense.

    Args:
        weight: (K, channels).
        bias: (channels,).
    """

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1Rows:
    """What Mamba-1's recurrence takes of T tokens.

    Args:
        u: (T, inner).
        dt: Step sizes before softplus, (T, inner).
        b: (T, N).
        c: (T, N).
        gate: (T, inner).
    """

    u: Tensor
    dt: Tensor
    b: Tensor
    c: Tensor
    gate: Tensor


@dataclass(frozen=True, slots=True)
class Mamba1Weights:
    """Of Mamba-1's recurrence; float32, dense.

    Args:
        a: Decay rates, (inner, N).
        d: (inner,).
        limit: Numbers of the state are at most this, up or down; 0 for no limit.
    """

    a: Tensor
    d: Tensor
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What queries attend to, (pages, GRID, K, size), and how.

    Args:
        keys: Keys, or their first part.
        more_keys: The second part, or None.
        values: May be ``keys``.
        scale: Applied to the scores.
        window: Sliding window in tokens, or None.
        softcap: Scores z become ``softcap * tanh(z / softcap)``; None leaves them.
        sinks: (H,), float32, or None.
    """

    keys: Tensor
    values: Tensor
    scale: float
    more_keys: Tensor | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How heads are rotated, and where keys and values go.

    Args:
        cos: (T, pairs), float32.
        sin: (T, pairs), float32.
        interleaved: Whether the channels of a pair lie side by side, not ``pairs`` apart.
        slots: (T,), int64, page id * GRID + offset.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    slots: Tensor
