"""What operations between the projections of recurrent mixers are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from blazr.nn.operands.step import Carried

# SiLU of the gate before the norm or behind it; a sigmoid behind it; no norm; no gate and no norm.
GateOrder = Literal["gate_first", "norm_first", "norm_sigmoid", "none", "ungated"]


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """How a recurrence's output meets its gate.

    Args:
        order: Whether the gate comes first.
        weight: (C,), float32; None where there is no norm.
        eps: Added to the mean square.
        groups: The mean is taken over each of so many groups of channels.
    """

    order: GateOrder
    weight: Tensor | None
    eps: float
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Filter:
    """A causal convolution; float32, dense.

    Args:
        weight: (K, channels).
        bias: (channels,).
        silu: Whether SiLU follows, where there are no gates.
    """

    weight: Tensor
    bias: Tensor
    silu: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Weights:
    """What lies between a Mamba-2 mixer's projections; float32, dense.

    Args:
        heads: H.
        head_dim: P.
        state_size: N.
        groups: G.
        conv: The convolution over x, B and C, with SiLU behind it; None takes them as they are.
        dt_bias: (H,).
        a: (H,), negative.
        d: (H,).
        norm: Of all heads' output.
        dt_limits: Least and most that a step size may be.
        multipliers: Of all that is projected, or None.
    """

    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv: Filter | None
    dt_bias: Tensor
    a: Tensor
    d: Tensor
    norm: GatedNorm
    dt_limits: tuple[float, float]
    multipliers: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Memory:
    """A Mamba-2 layer's memory: checkpoints (slots, ...) and logs (runs, GRID, ...).

    States are float32 or bfloat16, to which they are rounded at every grid edge. Without a
    convolution nothing is remembered of its inputs.
    """

    states: Tensor
    conv_states: Tensor | None
    log_raw: Tensor | None
    log_xb: Tensor
    log_dt: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1Rows:
    """What Mamba-1's recurrence takes of T tokens beside its input.

    Args:
        dt: Step sizes before softplus, (T, inner).
        b: (T, N).
        c: (T, N).
        gate: (T, inner).
    """

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


@dataclass(frozen=True, slots=True)
class RgLruRows:
    """What the RG-LRU takes of T tokens beside its input.

    Args:
        input_gate: Before its bias and the sigmoid, (T, width).
        decay_gate: The same of the decay.
    """

    input_gate: Tensor
    decay_gate: Tensor


@dataclass(frozen=True, slots=True)
class RgLruWeights:
    """Of the RG-LRU; float32, dense, (width,) each.

    Args:
        input_bias: Of the input's gate.
        decay_bias: Of the decay's gate.
        a: Decay rates, negative.
    """

    input_bias: Tensor
    decay_bias: Tensor
    a: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba3Rows:
    """What Mamba-3's recurrence takes of T tokens beside its input.

    Args:
        b: (T, G * N).
        c: (T, G * N), beside b.
        dt: Step sizes before softplus, (T, H).
        mix: Before the sigmoid, (T, H).
        theta: Angles per step size, (T, H * N / 2), or None.
    """

    b: Tensor
    c: Tensor
    dt: Tensor
    mix: Tensor
    theta: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba3Weights:
    """Of Mamba-3's recurrence; float32, dense.

    Args:
        groups: G.
        norm: Of b and c, (N,).
        eps: Of this norm.
        b_bias: (H, N).
        c_bias: (H, N).
        dt_bias: (H,).
        a: (H,), negative.
        d: (H,).
        dt_limits: Least and most that a step size may be.
        silu: Whether x is still to be activated.
    """

    groups: int
    norm: Tensor
    eps: float
    b_bias: Tensor
    c_bias: Tensor
    dt_bias: Tensor
    a: Tensor
    d: Tensor
    dt_limits: tuple[float, float]
    silu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba3Memory:
    """What Mamba-3's recurrence carries along; float32, but for the states that are kept.

    Args:
        state: (..., H, width, N).
        x: Of the token before, (..., H, width).
        b: Of the token before, (..., H, N).
        angle: (..., H, N / 2), or None.
    """

    state: Carried
    x: Carried
    b: Carried
    angle: Carried | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRows:
    """What a gated delta network's recurrence takes of T tokens beside its values.

    Args:
        q: (T, key heads * N).
        k: (T, key heads * N), beside q, and before the values.
        decay: Before softplus, (T, H) or (T, H * N).
        beta: Before the sigmoid, (T, H).
        gate: Before its activation, (T, H * P).
    """

    q: Tensor
    k: Tensor
    decay: Tensor
    beta: Tensor
    gate: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaWeights:
    """Of a gated delta network's recurrence; float32, dense.

    Args:
        heads: H.
        key_heads: Heads of queries and keys; those of values that share one lie side by side.
        dt_bias: (H,) or (H * N,).
        a: (H,), negative.
        norm: Of each head's output.
        beta_scale: What the sigmoid of beta is multiplied with.
        least: Logarithms of decays lie between it and 0; 0 for no limit.
    """

    heads: int
    key_heads: int
    dt_bias: Tensor
    a: Tensor
    norm: GatedNorm
    beta_scale: float = 1.0
    least: float = 0.0
