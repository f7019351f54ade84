"""Mamba-1's and Mamba-3's recurrences, token by token.

One program walks through the tokens of a sequence, with its part of the state in registers. So a
row is the same however a prompt was cut, and whatever else is in the step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import rounded, softplus
from blazr.nn.kernels.triton.sequences import (
    dense,
    keep_state,
    load_carried,
    span_of,
    working_of,
)
from blazr.nn.operands.recurrent import (
    Mamba1Rows,
    Mamba1Weights,
    Mamba3Memory,
    Mamba3Rows,
    Mamba3Weights,
)
from blazr.nn.operands.step import GRID, Carried, StepTable

MAX_STATE_1, MAX_STATE_3 = 64, 16384
# Of Mamba-1, that a program takes.
_CHANNELS = 32


@triton.jit
def _mamba1(
    u_ptr,
    dt_ptr,
    b_ptr,
    c_ptr,
    gate_ptr,
    a_ptr,
    d_ptr,
    out_ptr,
    kept_ptr,
    working_ptr,
    spans_ptr,
    checkpoints_ptr,
    u_row,
    dt_row,
    b_row,
    c_row,
    gate_row,
    out_row,
    kept_slot,
    working_run,
    inner,
    limit,
    HAS_LIMIT: tl.constexpr,
    STATE: tl.constexpr,
    STATE_BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Some channels of one sequence."""
    sequence = tl.program_id(0)
    span = span_of(spans_ptr, sequence, SPAN)
    first, length, logged, _, _ = span
    before, after = working_of(spans_ptr, sequence, SPAN)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    numbers = tl.arange(0, STATE_BLOCK)
    is_channel, is_number = channels < inner, numbers < STATE
    places = channels[:, None] * STATE + numbers[None, :]
    is_place = is_channel[:, None] & is_number[None, :]
    a = tl.load(a_ptr + places, mask=is_place, other=0)
    d = tl.load(d_ptr + channels, mask=is_channel, other=0)
    state = load_carried(
        kept_ptr, working_ptr, kept_slot, working_run, span, before, places, is_place
    )
    for at in range(length):
        token = first + at
        u = tl.load(u_ptr + token * u_row + channels, mask=is_channel, other=0).to(tl.float32)
        dt = tl.load(dt_ptr + token * dt_row + channels, mask=is_channel, other=0)
        dt = softplus(dt.to(tl.float32))
        b = tl.load(b_ptr + token * b_row + numbers, mask=is_number, other=0).to(tl.float32)
        c = tl.load(c_ptr + token * c_row + numbers, mask=is_number, other=0).to(tl.float32)
        state = tl.exp(dt[:, None] * a) * state + (dt * u)[:, None] * b[None, :]
        if HAS_LIMIT:
            state = tl.minimum(tl.maximum(state, -limit), limit)
        y = tl.sum(state * c[None, :], 1) + d * u
        gate = tl.load(gate_ptr + token * gate_row + channels, mask=is_channel, other=0)
        gate = gate.to(tl.float32)
        y = rounded(y * gate * tl.sigmoid(gate), out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * out_row + channels, y, mask=is_channel)
        if (logged + at + 1) % PAGE == 0:
            state = keep_state(
                state,
                at + 1,
                kept_ptr,
                kept_slot,
                spans_ptr,
                checkpoints_ptr,
                sequence,
                places,
                is_place,
                SPAN,
            )
    tl.store(working_ptr + after * working_run + places, state, mask=is_place)


def _fits_mamba1(_: Tensor, __: Mamba1Rows, weights: Mamba1Weights, *___: object) -> bool:
    return weights.a.shape[1] <= MAX_STATE_1


@limited_to(_fits_mamba1)
def mamba1(
    u: Tensor, rows: Mamba1Rows, weights: Mamba1Weights, state: Carried, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.mamba1.mamba1``."""
    out = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    if not out.numel():
        return out
    (inner, states), numbers = weights.a.shape, table.numbers
    made = tuple(map(dense, (u, rows.dt, rows.b, rows.c, rows.gate)))
    _mamba1[len(table.spans), triton.cdiv(inner, _CHANNELS)](
        *made,
        weights.a,
        weights.d,
        out,
        state.kept,
        state.working,
        numbers.spans,
        numbers.checkpoints,
        *(each.stride(0) for each in made),
        out.stride(0),
        state.kept.stride(0),
        state.working.stride(0),
        inner,
        weights.limit,
        HAS_LIMIT=weights.limit > 0,
        STATE=states,
        STATE_BLOCK=triton.next_power_of_2(states),
        CHANNELS=_CHANNELS,
        PAGE=GRID,
        SPAN=numbers.spans.stride(0),
        num_warps=1,
    )
    return out


@triton.jit
def _maps_of(
    maps_ptr,
    norm_ptr,
    bias_ptr,
    cos,
    sin,
    eps,
    STATE: tl.constexpr,
    STATE_BLOCK: tl.constexpr,
    IS_ROTATED: tl.constexpr,
):
    """A token's b or c of a head, from pointers to what it is made of."""
    numbers = tl.arange(0, STATE_BLOCK)
    is_number = numbers < STATE
    raw = tl.load(maps_ptr + numbers, mask=is_number, other=0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(raw * raw, 0) / STATE + eps)
    norm = tl.load(norm_ptr + numbers, mask=is_number, other=0)
    found = raw * inverse * norm + tl.load(bias_ptr + numbers, mask=is_number, other=0)
    if IS_ROTATED:  # pairs lie side by side
        partner = numbers ^ 1
        raw = tl.load(maps_ptr + partner, mask=is_number, other=0).to(tl.float32)
        norm = tl.load(norm_ptr + partner, mask=is_number, other=0)
        other = raw * inverse * norm + tl.load(bias_ptr + partner, mask=is_number, other=0)
        found = found * cos + other * tl.where(numbers % 2 == 0, -sin, sin)
    return found


@triton.jit
def _mamba3(
    x_ptr,
    b_ptr,
    c_ptr,
    dt_ptr,
    mix_ptr,
    theta_ptr,
    norm_ptr,
    b_bias_ptr,
    c_bias_ptr,
    dt_bias_ptr,
    a_ptr,
    d_ptr,
    out_ptr,
    kept_ptr,
    kept_x_ptr,
    kept_b_ptr,
    kept_angle_ptr,
    working_ptr,
    working_x_ptr,
    working_b_ptr,
    working_angle_ptr,
    spans_ptr,
    checkpoints_ptr,
    x_row,
    b_row,
    c_row,
    dt_row,
    mix_row,
    theta_row,
    out_row,
    kept_slot,
    kept_x_slot,
    kept_b_slot,
    kept_angle_slot,
    working_run,
    working_x_run,
    working_b_run,
    working_angle_run,
    eps,
    least,
    most,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    STATE: tl.constexpr,
    STATE_BLOCK: tl.constexpr,
    IS_ROTATED: tl.constexpr,
    SILU: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """One head of one sequence."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    span = span_of(spans_ptr, sequence, SPAN)
    first, length, logged, _, _ = span
    before, after = working_of(spans_ptr, sequence, SPAN)
    channels, numbers = tl.arange(0, WIDTH_BLOCK), tl.arange(0, STATE_BLOCK)
    is_channel, is_number = channels < WIDTH, numbers < STATE
    columns, maps = head * WIDTH + channels, head * STATE + numbers
    pairs = head * (STATE // 2) + numbers // 2
    is_pair = is_number & (numbers % 2 == 0)  # each angle is held twice, and written once
    places = columns[:, None] * STATE + numbers[None, :]
    is_place = is_channel[:, None] & is_number[None, :]

    state = load_carried(
        kept_ptr, working_ptr, kept_slot, working_run, span, before, places, is_place
    )
    x_last = load_carried(
        kept_x_ptr, working_x_ptr, kept_x_slot, working_x_run, span, before, columns, is_channel
    )
    b_last = load_carried(
        kept_b_ptr, working_b_ptr, kept_b_slot, working_b_run, span, before, maps, is_number
    )
    angle, cos, sin = b_last * 0, b_last, b_last
    if IS_ROTATED:
        angle = load_carried(
            kept_angle_ptr,
            working_angle_ptr,
            kept_angle_slot,
            working_angle_run,
            span,
            before,
            pairs,
            is_number,
        )
    a, d = tl.load(a_ptr + head), tl.load(d_ptr + head)
    dt_bias = tl.load(dt_bias_ptr + head)
    group = head // SHARE * STATE
    for at in range(length):
        token = first + at
        x = tl.load(x_ptr + token * x_row + columns, mask=is_channel, other=0).to(tl.float32)
        if SILU:
            x = x * tl.sigmoid(x)
        dt = softplus(tl.load(dt_ptr + token * dt_row + head).to(tl.float32) + dt_bias)
        dt = tl.minimum(tl.maximum(dt, least), most)
        mix = tl.sigmoid(tl.load(mix_ptr + token * mix_row + head).to(tl.float32))
        if IS_ROTATED:
            theta = tl.load(theta_ptr + token * theta_row + pairs, mask=is_number, other=0)
            angle += theta.to(tl.float32) * dt
            cos, sin = tl.cos(angle), tl.sin(angle)
        b = _maps_of(
            b_ptr + token * b_row + group,
            norm_ptr,
            b_bias_ptr + head * STATE,
            cos,
            sin,
            eps,
            STATE,
            STATE_BLOCK,
            IS_ROTATED,
        )
        c = _maps_of(
            c_ptr + token * c_row + group,
            norm_ptr,
            c_bias_ptr + head * STATE,
            cos,
            sin,
            eps,
            STATE,
            STATE_BLOCK,
            IS_ROTATED,
        )
        decay = tl.exp(dt * a)
        state = state * decay + ((1 - mix) * dt * decay * x_last)[:, None] * b_last[None, :]
        state += (mix * dt * x)[:, None] * b[None, :]
        y = rounded(tl.sum(state * c[None, :], 1) + d * x, out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * out_row + columns, y, mask=is_channel)
        x_last, b_last = x, b
        if (logged + at + 1) % PAGE == 0:
            state = keep_state(
                state,
                at + 1,
                kept_ptr,
                kept_slot,
                spans_ptr,
                checkpoints_ptr,
                sequence,
                places,
                is_place,
                SPAN,
            )
            x_last = keep_state(
                x_last,
                at + 1,
                kept_x_ptr,
                kept_x_slot,
                spans_ptr,
                checkpoints_ptr,
                sequence,
                columns,
                is_channel,
                SPAN,
            )
            b_last = keep_state(
                b_last,
                at + 1,
                kept_b_ptr,
                kept_b_slot,
                spans_ptr,
                checkpoints_ptr,
                sequence,
                maps,
                is_number,
                SPAN,
            )
            if IS_ROTATED:
                angle = keep_state(
                    angle,
                    at + 1,
                    kept_angle_ptr,
                    kept_angle_slot,
                    spans_ptr,
                    checkpoints_ptr,
                    sequence,
                    pairs,
                    is_pair,
                    SPAN,
                )
    tl.store(working_ptr + after * working_run + places, state, mask=is_place)
    tl.store(working_x_ptr + after * working_x_run + columns, x_last, mask=is_channel)
    tl.store(working_b_ptr + after * working_b_run + maps, b_last, mask=is_number)
    if IS_ROTATED:
        angles = working_angle_ptr + after * working_angle_run + pairs
        tl.store(angles, angle, mask=is_pair)


def _fits_mamba3(
    _: Tensor, __: Mamba3Rows, ___: Mamba3Weights, memory: Mamba3Memory, ____: StepTable
) -> bool:
    width, states = (triton.next_power_of_2(size) for size in memory.state.kept.shape[2:])
    return width * states <= MAX_STATE_3


@limited_to(_fits_mamba3)
def mamba3(
    x: Tensor, rows: Mamba3Rows, weights: Mamba3Weights, memory: Mamba3Memory, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.mamba3.mamba3``."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    numbers = table.numbers
    _, heads, width, states = memory.state.kept.shape
    theta = rows.dt if rows.theta is None else rows.theta
    made = tuple(map(dense, (x, rows.b, rows.c, rows.dt, rows.mix, theta)))
    angle = memory.b if memory.angle is None else memory.angle
    carried = (memory.state, memory.x, memory.b, angle)
    _mamba3[len(table.spans), heads](
        *made,
        weights.norm,
        weights.b_bias,
        weights.c_bias,
        weights.dt_bias,
        weights.a,
        weights.d,
        out,
        *(each.kept for each in carried),
        *(each.working for each in carried),
        numbers.spans,
        numbers.checkpoints,
        *(each.stride(0) for each in made),
        out.stride(0),
        *(each.kept.stride(0) for each in carried),
        *(each.working.stride(0) for each in carried),
        weights.eps,
        *weights.dt_limits,
        SHARE=heads // weights.groups,
        WIDTH=width,
        WIDTH_BLOCK=triton.next_power_of_2(width),
        STATE=states,
        STATE_BLOCK=triton.next_power_of_2(states),
        IS_ROTATED=rows.theta is not None,
        SILU=weights.silu,
        PAGE=GRID,
        SPAN=numbers.spans.stride(0),
        num_warps=4,
    )
    return out
