"""Mamba-1's and Mamba-3's recurrences and the RG-LRU, token by token.

One program walks through the tokens of a sequence, with its part of the state in registers. So a
row is the same however a prompt was cut, and whatever else is in the step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import expm1, rounded, softplus
from blazr.nn.kernels.triton.sequences import (
    carried_rows,
    keep_state,
    load_carried,
    span_of,
    store_working,
)
from blazr.nn.kernels.triton.tensors import dense, load_row, rows_of
from blazr.nn.operands.recurrent import (
    Mamba1Rows,
    Mamba1Weights,
    Mamba3Memory,
    Mamba3Rows,
    Mamba3Weights,
    RgLruRows,
    RgLruWeights,
)
from blazr.nn.operands.step import GRID, Carried, StepTable

MAX_STATE_1, MAX_STATE_3 = 64, 16384
# Of Mamba-1 and of the RG-LRU, that a program takes. Of the latter a thread has two: to load ahead
# takes four bytes a thread.
_CHANNELS, _LRU_CHANNELS = 32, 64


@triton.jit
def _mamba1(
    u_rows,
    dt_rows,
    b_rows,
    c_rows,
    gate_rows,
    a_ptr,
    d_ptr,
    out,
    memory,
    spans_ptr,
    checkpoints_ptr,
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
    span = span_of(spans_ptr, tl.program_id(0), SPAN)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    numbers = tl.arange(0, STATE_BLOCK)
    is_channel, is_number = channels < inner, numbers < STATE
    places = channels[:, None] * STATE + numbers[None, :]
    is_place = is_channel[:, None] & is_number[None, :]
    a = tl.load(a_ptr + places, mask=is_place, other=0)
    d = tl.load(d_ptr + channels, mask=is_channel, other=0)
    state = load_carried(memory, span, places, is_place)
    out_ptr, out_row = out
    for at in range(span.length):
        token = span.first + at
        u = load_row(u_rows, token, channels, is_channel)
        dt = softplus(load_row(dt_rows, token, channels, is_channel))
        b = load_row(b_rows, token, numbers, is_number)
        c = load_row(c_rows, token, numbers, is_number)
        state = tl.exp(dt[:, None] * a) * state + (dt * u)[:, None] * b[None, :]
        if HAS_LIMIT:
            state = tl.minimum(tl.maximum(state, -limit), limit)
        y = tl.sum(state * c[None, :], 1) + d * u
        gate = load_row(gate_rows, token, channels, is_channel)
        y = rounded(y * gate * tl.sigmoid(gate), out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * out_row + channels, y, mask=is_channel)
        if (span.logged + at + 1) % PAGE == 0:
            state = keep_state(state, at + 1, memory[0], checkpoints_ptr, span, places, is_place)
    store_working(state, memory, span, places, is_place)


@limited_to(lambda _, __, weights, *___: weights.a.shape[1] <= MAX_STATE_1)
def mamba1(
    u: Tensor, rows: Mamba1Rows, weights: Mamba1Weights, state: Carried, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.mamba1.mamba1``."""
    out = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    if not out.numel():
        return out
    (inner, states), numbers = weights.a.shape, table.numbers
    made = (u, rows.dt, rows.b, rows.c, rows.gate)
    _mamba1[len(table.spans), triton.cdiv(inner, _CHANNELS)](
        *(rows_of(dense(each)) for each in made),
        weights.a,
        weights.d,
        rows_of(out),
        carried_rows(state),
        numbers.spans,
        numbers.checkpoints,
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
    x_rows,
    b_rows,
    c_rows,
    dt_rows,
    mix_rows,
    theta_rows,
    norm_ptr,
    b_bias_ptr,
    c_bias_ptr,
    dt_bias_ptr,
    a_ptr,
    d_ptr,
    out,
    states,
    last_x,
    last_b,
    angles,
    spans_ptr,
    checkpoints_ptr,
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
    span, head = span_of(spans_ptr, tl.program_id(0), SPAN), tl.program_id(1)
    channels, numbers = tl.arange(0, WIDTH_BLOCK), tl.arange(0, STATE_BLOCK)
    is_channel, is_number = channels < WIDTH, numbers < STATE
    columns, maps = head * WIDTH + channels, head * STATE + numbers
    pairs = head * (STATE // 2) + numbers // 2
    is_pair = is_number & (numbers % 2 == 0)  # each angle is held twice, and written once
    places = columns[:, None] * STATE + numbers[None, :]
    is_place = is_channel[:, None] & is_number[None, :]

    state = load_carried(states, span, places, is_place)
    x_last = load_carried(last_x, span, columns, is_channel)
    b_last = load_carried(last_b, span, maps, is_number)
    angle, cos, sin = b_last * 0, b_last, b_last
    if IS_ROTATED:
        angle = load_carried(angles, span, pairs, is_number)
    a, d = tl.load(a_ptr + head), tl.load(d_ptr + head)
    dt_bias = tl.load(dt_bias_ptr + head)
    group, bias = head // SHARE * STATE, head * STATE
    (b_ptr, b_row), (c_ptr, c_row), (out_ptr, out_row) = b_rows, c_rows, out
    (dt_ptr, dt_row), (mix_ptr, mix_row) = dt_rows, mix_rows
    for at in range(span.length):
        token = span.first + at
        x = load_row(x_rows, token, columns, is_channel)
        if SILU:
            x = x * tl.sigmoid(x)
        dt = tl.load(dt_ptr + token * dt_row + head).to(tl.float32)
        dt = tl.minimum(tl.maximum(softplus(dt + dt_bias), least), most)
        mix = tl.sigmoid(tl.load(mix_ptr + token * mix_row + head).to(tl.float32))
        if IS_ROTATED:
            angle += load_row(theta_rows, token, pairs, is_number) * dt
            cos, sin = tl.cos(angle), tl.sin(angle)
        maps_ptr = b_ptr + token * b_row + group
        b = _maps_of(
            maps_ptr, norm_ptr, b_bias_ptr + bias, cos, sin, eps, STATE, STATE_BLOCK, IS_ROTATED
        )
        maps_ptr = c_ptr + token * c_row + group
        c = _maps_of(
            maps_ptr, norm_ptr, c_bias_ptr + bias, cos, sin, eps, STATE, STATE_BLOCK, IS_ROTATED
        )
        decay = tl.exp(dt * a)
        state = state * decay + ((1 - mix) * dt * decay * x_last)[:, None] * b_last[None, :]
        state += (mix * dt * x)[:, None] * b[None, :]
        y = rounded(tl.sum(state * c[None, :], 1) + d * x, out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * out_row + columns, y, mask=is_channel)
        x_last, b_last = x, b
        if (span.logged + at + 1) % PAGE == 0:
            done = at + 1
            state = keep_state(state, done, states[0], checkpoints_ptr, span, places, is_place)
            x_last = keep_state(x_last, done, last_x[0], checkpoints_ptr, span, columns, is_channel)
            b_last = keep_state(b_last, done, last_b[0], checkpoints_ptr, span, maps, is_number)
            if IS_ROTATED:
                angle = keep_state(angle, done, angles[0], checkpoints_ptr, span, pairs, is_pair)
    store_working(state, states, span, places, is_place)
    store_working(x_last, last_x, span, columns, is_channel)
    store_working(b_last, last_b, span, maps, is_number)
    if IS_ROTATED:
        store_working(angle, angles, span, pairs, is_pair)


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
    angle = memory.b if memory.angle is None else memory.angle
    _mamba3[len(table.spans), heads](
        *(rows_of(dense(each)) for each in (x, rows.b, rows.c, rows.dt, rows.mix, theta)),
        weights.norm,
        weights.b_bias,
        weights.c_bias,
        weights.dt_bias,
        weights.a,
        weights.d,
        rows_of(out),
        *map(carried_rows, (memory.state, memory.x, memory.b, angle)),
        numbers.spans,
        numbers.checkpoints,
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


@triton.jit
def _rg_lru(
    x_rows,
    input_rows,
    decay_rows,
    input_bias_ptr,
    decay_bias_ptr,
    a_ptr,
    out,
    memory,
    spans_ptr,
    checkpoints_ptr,
    width,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Some channels of one sequence."""
    span = span_of(spans_ptr, tl.program_id(0), SPAN)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channels < width
    input_bias = tl.load(input_bias_ptr + channels, mask=is_channel, other=0)
    decay_bias = tl.load(decay_bias_ptr + channels, mask=is_channel, other=0)
    a = tl.load(a_ptr + channels, mask=is_channel, other=0)
    state = load_carried(memory, span, channels, is_channel)
    start = tl.load(span.numbers + 2)
    out_ptr, out_row = out
    # rows of the next three tokens are copied to shared memory meanwhile
    for at in tl.range(span.length, num_stages=4):
        token = span.first + at
        gate = tl.sigmoid(load_row(decay_rows, token, channels, is_channel) + decay_bias)
        log_decay = a * gate
        # the first token of a sequence enters whole
        share = tl.where(start + at == 0, 1.0, tl.sqrt(-expm1(2 * log_decay)))
        gate = tl.sigmoid(load_row(input_rows, token, channels, is_channel) + input_bias)
        entering = share * gate * load_row(x_rows, token, channels, is_channel)
        state = tl.exp(log_decay) * state + entering
        h = rounded(state, out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * out_row + channels, h, mask=is_channel)
        if (span.logged + at + 1) % PAGE == 0:
            state = keep_state(
                state, at + 1, memory[0], checkpoints_ptr, span, channels, is_channel
            )
    store_working(state, memory, span, channels, is_channel)


def rg_lru(
    x: Tensor, rows: RgLruRows, weights: RgLruWeights, state: Carried, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.rg_lru.rg_lru``."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    width, numbers = x.shape[1], table.numbers
    _rg_lru[len(table.spans), triton.cdiv(width, _LRU_CHANNELS)](
        *(rows_of(dense(each)) for each in (x, rows.input_gate, rows.decay_gate)),
        weights.input_bias,
        weights.decay_bias,
        weights.a,
        rows_of(out),
        carried_rows(state),
        numbers.spans,
        numbers.checkpoints,
        width,
        CHANNELS=_LRU_CHANNELS,
        PAGE=GRID,
        SPAN=numbers.spans.stride(0),
        num_warps=1,
    )
    return out
