"""Mamba-3's recurrence."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.recurrent import Mamba3Memory, Mamba3Rows, Mamba3Weights
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.norm import rms_norm
from blazr.nn.ops.op import op
from blazr.nn.ops.rope import rotate_pairs
from blazr.nn.ops.sequences import States, carry
from blazr.nn.ops.ssd import ssd_output, ssd_state, state_output, step_sizes


@op
def mamba3(
    x: Tensor, rows: Mamba3Rows, weights: Mamba3Weights, memory: Mamba3Memory, table: StepTable
) -> Tensor:
    """State space with a trapezoidal rule: each step adds this input and the one before.

        h[t] = e[t] h[t-1] + (1 - l[t]) dt[t] e[t] x[t-1] (outer) b[t-1]
               + l[t] dt[t] x[t] (outer) b[t]

    with ``e = exp(a dt)`` and ``l = sigmoid(mix)``; ``y = h . c + d x``.

    Args:
        x: Inputs, (T, H * width).
        rows: What else follows from the tokens.
        weights: The recurrence's.
        memory: What sequences carry along; written.
        table: The step.

    Returns:
        (T, H * width), in the dtype of x.
    """
    carried = [memory.state, memory.x, memory.b]
    packed = [x, rows.b, rows.c, rows.dt, rows.mix]
    if memory.angle is not None:
        assert rows.theta is not None
        carried.append(memory.angle)
        packed.append(rows.theta)
    return carry(table, carried, partial(_advance, weights), packed, like=x)


def _advance(weights: Mamba3Weights, rows: list[Tensor], states: States) -> tuple[Tensor, States]:
    """The two terms of the trapezoid are two sums with the same decays."""
    x, b, c, dt, mix, *theta = (each.float() for each in rows)
    heads = len(weights.a)
    x = (F.silu(x) if weights.silu else x).unflatten(-1, (heads, -1))  # (B, T, H, width)
    b, c = _expand(b, weights.b_bias, weights), _expand(c, weights.c_bias, weights)
    dt, mix = step_sizes(dt, weights.dt_bias, weights.dt_limits), mix.sigmoid()
    state, x_last, b_last, *angles = states
    if theta:
        turns = theta[0].unflatten(-1, (heads, -1)) * dt.unsqueeze(-1)
        angle = angles[0][:, None] + turns.cumsum(1)
        b, c = (rotate_pairs(each, angle.cos(), angle.sin()) for each in (b, c))
        angles = [angle[:, -1]]

    log_decay = dt * weights.a
    x_before = torch.cat((x_last[:, None], x[:, :-1]), 1)
    b_before = torch.cat((b_last[:, None], b[:, :-1]), 1)
    now, before = mix * dt, (1 - mix) * dt * log_decay.exp()
    y = ssd_output(x, now, log_decay, b, c, state_output(c, state))
    y = y + ssd_output(x_before, before, log_decay, b_before, c) + x * weights.d[:, None]
    after = ssd_state(x, now, log_decay, b, state)
    after = after + ssd_state(x_before, before, log_decay, b_before, torch.zeros_like(state))
    return y.flatten(-2), [after, x[:, -1], b[:, -1], *angles]


def _expand(maps: Tensor, bias: Tensor, weights: Mamba3Weights) -> Tensor:
    """Normalised maps, one for each head: (B, T, H, N)."""
    maps = maps.unflatten(-1, (weights.groups, -1))
    maps = maps.repeat_interleave(len(weights.a) // weights.groups, -2)
    return rms_norm(maps, weights.norm, weights.eps) + bias
