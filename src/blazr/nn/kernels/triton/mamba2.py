"""The Mamba-2 mixer between its projections, in prompts and replies by one formula.

Each program walks through one head of one sequence, from its checkpoint on and a grid interval at a
time. An output is computed from the state at the interval's beginning and the rows since, whether
it is one of a prompt or a reply; so a prompt may be cut anywhere. There is no form for float32,
whose products would take more registers than there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import dot, softplus
from blazr.nn.kernels.triton.sequences import (
    convolve,
    gated_norm,
    keep_state,
    log_rows,
    span_of,
)
from blazr.nn.kernels.triton.tensors import load_row, rows_of
from blazr.nn.operands.recurrent import Mamba2Memory, Mamba2Weights
from blazr.nn.operands.step import GRID, StepTable, Window

MAX_STATE_SIZE = 256
# Channels of a head that a program takes.
_CHANNELS = 32


@triton.jit
def _step_sizes(raw_rows, bias_ptr, out_ptr, heads, least, most, HEADS: tl.constexpr):
    """Of one token: ``clip(softplus(raw + bias), least, most)``."""
    token, head = tl.program_id(0).to(tl.int64), tl.arange(0, HEADS)
    is_head = head < heads
    raw = load_row(raw_rows, token, head, is_head)
    raw += tl.load(bias_ptr + head, mask=is_head, other=0)
    steps = tl.clamp(softplus(raw), least, most)
    tl.store(out_ptr + token * heads + head, steps, mask=is_head)


@triton.jit
def _scan(
    post_ptr,
    dt_ptr,
    y_ptr,
    a_ptr,
    d_ptr,
    states,
    log_xb_ptr,
    log_dt_ptr,
    spans_ptr,
    checkpoints_ptr,
    log_run,
    log_row,
    log_dt_run,
    heads,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    STATE: tl.constexpr,
    STATE_BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Some channels of one head of one sequence."""
    span, head = span_of(spans_ptr, tl.program_id(0), SPAN), tl.program_id(1)
    first, logged, run_slot = span.first, span.logged, span.run_slot
    group = head // (heads // GROUPS)
    inner = heads * WIDTH
    maps: tl.constexpr = GROUPS * STATE
    conv = inner + 2 * maps

    rows = tl.arange(0, PAGE)
    channels = tl.program_id(2) * WIDTH_BLOCK + tl.arange(0, WIDTH_BLOCK)
    numbers = tl.arange(0, STATE_BLOCK)
    is_channel, is_number = (channels < WIDTH)[None, :], (numbers < STATE)[None, :]
    x_columns = (head * WIDTH + channels)[None, :]
    b_columns = (inner + group * STATE + numbers)[None, :]
    c_columns = b_columns + maps
    a, d = tl.load(a_ptr + head), tl.load(d_ptr + head)

    places = (head * WIDTH + channels)[:, None] * STATE + numbers[None, :]
    is_place = (channels < WIDTH)[:, None] & is_number
    state = load_row(states, span.state_slot, places, is_place)

    total = logged + span.length
    for low in range(0, total, PAGE):
        # rows since the checkpoint: the first are logged, the others are the step's
        at = (low + rows)[:, None]
        is_old, is_new = at < logged, (at >= logged) & (at < total)
        old = log_xb_ptr + run_slot * log_run + at * log_row
        new = post_ptr + (first + at - logged) * conv
        x = tl.load(new + x_columns, mask=is_new & is_channel, other=0)
        x = tl.where(is_old, tl.load(old + x_columns, mask=is_old & is_channel, other=0), x)
        b = tl.load(new + b_columns, mask=is_new & is_number, other=0)
        b = tl.where(is_old, tl.load(old + b_columns, mask=is_old & is_number, other=0), b)
        c = tl.load(new + c_columns, mask=is_new & is_number, other=0)
        at = low + rows
        dt_new = dt_ptr + (first + at - logged) * heads + head
        dt = tl.load(dt_new, mask=(at >= logged) & (at < total), other=0)
        dt_old = log_dt_ptr + run_slot * log_dt_run + at * heads + head
        dt = tl.where(at < logged, tl.load(dt_old, mask=at < logged, other=0), dt)

        decay = tl.cumsum(dt * a, 0)
        gap = tl.minimum(decay[:, None] - decay[None, :], 0)
        weights = tl.where(rows[:, None] >= rows[None, :], tl.exp(gap) * dt[None, :], 0)
        weights = dot(c, tl.trans(b), None, "tf32") * weights
        wide = x.to(tl.float32)
        y = dot(weights, wide, None, "tf32") + d * wide
        y += dot(c.to(tl.float32), tl.trans(state), None, "tf32") * tl.exp(decay)[:, None]
        outputs = y_ptr + (first + at[:, None] - logged) * inner + x_columns
        tl.store(outputs, y, mask=is_new & is_channel)

        if low + PAGE <= total:
            whole = tl.sum(dt * a, 0)
            to_end = tl.exp(tl.minimum(whole - decay, 0)) * dt
            added = dot(tl.trans(wide * to_end[:, None]), b.to(tl.float32), None, "tf32")
            state = state * tl.exp(whole) + added
            done = low + PAGE - logged
            state = keep_state(state, done, states, checkpoints_ptr, span, places, is_place)


@limited_to(lambda _, weights, *__: weights.state_size <= MAX_STATE_SIZE)
def mamba2(
    projected: Tensor, weights: Mamba2Weights, memory: Mamba2Memory, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.mamba2.mamba2``."""
    if weights.multipliers is not None:
        projected = projected * weights.multipliers.to(projected.dtype)
    heads, width = weights.heads, weights.head_dim
    inner = heads * width
    conv = projected.shape[1] - inner - heads
    z, raw, raw_dt = projected.split((inner, conv, heads), -1)
    if not len(projected):
        return torch.empty_like(z)
    numbers = table.numbers
    if weights.conv is None:
        post = raw.contiguous()
    else:
        assert memory.conv_states is not None
        assert memory.log_raw is not None
        post = convolve(raw, weights.conv, Window(memory.conv_states, memory.log_raw), table)
    dt = projected.new_empty(len(projected), heads, dtype=torch.float32)
    y = projected.new_empty(len(projected), inner, dtype=torch.float32)
    _step_sizes[(len(projected),)](
        rows_of(raw_dt),
        weights.dt_bias,
        dt,
        heads,
        *weights.dt_limits,
        HEADS=triton.next_power_of_2(heads),
        num_warps=1,
    )
    block = max(16, min(_CHANNELS, triton.next_power_of_2(width)))
    _scan[len(table.spans), heads, triton.cdiv(width, block)](
        post,
        dt,
        y,
        weights.a,
        weights.d,
        rows_of(memory.states),
        memory.log_xb,
        memory.log_dt,
        numbers.spans,
        numbers.checkpoints,
        *memory.log_xb.stride()[:2],
        memory.log_dt.stride(0),
        heads,
        WIDTH=width,
        WIDTH_BLOCK=block,
        STATE=weights.state_size,
        STATE_BLOCK=max(16, triton.next_power_of_2(weights.state_size)),
        GROUPS=weights.groups,
        PAGE=GRID,
        SPAN=numbers.spans.stride(0),
        num_warps=8,
        num_stages=1,
    )
    # what is overwritten has been read
    log_rows(post[:, : memory.log_xb.shape[2]], memory.log_xb, table)
    log_rows(dt, memory.log_dt, table)
    return gated_norm(y, z, weights.norm, projected.dtype)
