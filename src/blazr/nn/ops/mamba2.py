"""The Mamba-2 mixer between its projections."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.recurrent import Mamba2Memory, Mamba2Weights
from blazr.nn.operands.step import GRID, RecordedGroup, SequenceGroup, StepTable, Window
from blazr.nn.ops.convolution import causal_conv1d
from blazr.nn.ops.norm import gated_rms_norm
from blazr.nn.ops.op import op
from blazr.nn.ops.sequences import last_inputs, map_groups
from blazr.nn.ops.ssd import ssd_output, ssd_state, state_output, step_sizes


@op
def mamba2(
    projected: Tensor, weights: Mamba2Weights, memory: Mamba2Memory, table: StepTable
) -> Tensor:
    """Convolution, recurrence, gate and norm of packed sequences.

    Linear attention of one decay for each head is the same recurrence without a convolution: its
    values, keys and queries are x, B and C, and all its steps are 1 [arXiv:2401.04658].

    The output of a token is computed from the checkpoint at the last grid edge and the rows since,
    in decode as in prefill: one formula, so cutting a prompt elsewhere cannot change it.

    Args:
        projected: z, then x, B and C, then step sizes, (T, inner + conv + H).
        weights: The mixer's.
        memory: Checkpoints and logs; new rows are logged, and checkpoints written where the step
            says so.
        table: The step.

    Returns:
        What the output projection takes, (T, H * P), in the dtype of ``projected``.
    """
    if weights.multipliers is not None:
        projected = projected * weights.multipliers.to(projected.dtype)
    inner = weights.heads * weights.head_dim
    conv = inner + 2 * weights.groups * weights.state_size
    z, raw, dt = projected.split((inner, conv, weights.heads), -1)
    dt = step_sizes(dt, weights.dt_bias, weights.dt_limits)

    def compute(group: SequenceGroup, raw: Tensor, dt: Tensor) -> Tensor:
        run = _decode if group.length == 1 and not table.are_alike else _prefill
        return run(raw, dt, group, weights, memory).flatten(-2)

    y = map_groups(table, compute, (raw, dt), like=z.float())
    return gated_rms_norm(y, z, weights.norm).to(projected.dtype)


def _decode(
    raw: Tensor, dt: Tensor, group: SequenceGroup, weights: Mamba2Weights, memory: Mamba2Memory
) -> Tensor:
    """One token of each of B sequences: (B, 1, conv), (B, 1, H) to (B, 1, H, P)."""
    raw, dt = raw[:, 0], dt[:, 0]
    slots, runs, lengths = group.state_slots, group.run_slots, group.log_lengths

    post = raw
    if weights.conv is not None:
        assert memory.conv_states is not None
        assert memory.log_raw is not None
        window = last_inputs(group, Window(memory.conv_states, memory.log_raw))
        window = torch.cat((window, raw[:, None]), 1)
        post = F.silu(causal_conv1d(window, weights.conv))[:, 0].to(raw.dtype)
        memory.log_raw[runs, lengths] = raw
        group.keep(1, memory.conv_states, window[:, 1:])
    maps = weights.groups * weights.state_size
    xb, c = post[:, :-maps], post[:, None, -maps:]

    memory.log_xb[runs, lengths] = xb
    memory.log_dt[runs, lengths] = dt

    # rows beyond a sequence's own length get no weight and no decay, whatever they hold
    count = group.most_logged + 1
    beyond = (torch.arange(count, device=raw.device) > lengths[:, None])[..., None]
    x, b = _split_inputs(memory.log_xb[runs, :count], weights)
    step = memory.log_dt[runs, :count].masked_fill(beyond, 0)
    c = _split_groups(c, weights)
    log_decay = step * weights.a
    if isinstance(group, RecordedGroup):  # who passes an edge is known on the device alone
        state = memory.states[slots].float()
        y = ssd_output(x, step, log_decay, b, c, state_output(c, state))
        group.keep(1, memory.states, ssd_state(x, step, log_decay, b, state))
    else:
        y = ssd_output(x, step, log_decay, b, c, state_output(c, memory.states, slots))

    for number, slot in group.edges(1):
        one = slice(number, number + 1)
        state = memory.states[slots[one]].float()
        memory.states[slot] = ssd_state(x[one], step[one], log_decay[one], b[one], state)[0]
    current, _ = _split_inputs(xb[:, None], weights)
    return y + current * weights.d[:, None]


def _prefill(
    raw: Tensor, dt: Tensor, group: SequenceGroup, weights: Mamba2Weights, memory: Mamba2Memory
) -> Tensor:
    """Equally many tokens of B sequences: (B, T, conv), (B, T, H) to (B, T, H, P)."""
    logged = group.spans[0].log_length
    runs = group.run_slots
    maps = weights.groups * weights.state_size

    # everything since the checkpoint, row 0 being its first token
    post = raw
    if weights.conv is not None:
        assert memory.conv_states is not None
        assert memory.log_raw is not None
        before = weights.conv.weight.shape[0] - 1
        past = (memory.conv_states[group.state_slots], memory.log_raw[runs, :logged])
        raw = torch.cat((*past, raw), 1)
        post = F.silu(causal_conv1d(raw[:, logged:], weights.conv)).to(raw.dtype)
        for low in range(GRID, raw.shape[1] - before + 1, GRID):
            group.keep(low - logged, memory.conv_states, raw[:, low : low + before])
        _log(group, memory.log_raw, raw[:, before:])
    xb = torch.cat((memory.log_xb[runs, :logged], post[..., :-maps]), 1)
    dt = torch.cat((memory.log_dt[runs, :logged], dt), 1)
    x, b = _split_inputs(xb, weights)
    c = _split_groups(post[..., -maps:], weights)
    log_decay = dt * weights.a

    state = memory.states[group.state_slots].float()
    outputs = []
    for low in range(0, xb.shape[1], GRID):
        rows = slice(low, min(low + GRID, xb.shape[1]))
        new = slice(max(low - logged, 0), rows.stop - logged)
        chunk = (x[:, rows], dt[:, rows], log_decay[:, rows], b[:, rows])
        y = ssd_output(*chunk, c[:, new], state_output(c[:, new], state))
        outputs.append(y + x[:, logged:][:, new] * weights.d[:, None])
        if rows.stop % GRID == 0:
            state = ssd_state(*chunk, state).to(memory.states.dtype).float()
        group.keep(rows.stop - logged, memory.states, state)
    _log(group, memory.log_xb, xb)
    _log(group, memory.log_dt, dt)
    return torch.cat(outputs, 1)


def _log(group: SequenceGroup, log: Tensor, rows: Tensor) -> None:
    """Of rows since the checkpoint, (B, T, n), those of the step behind the last grid edge."""
    logged = group.spans[0].log_length
    total = logged + group.length
    edge = total // GRID * GRID
    first = max(edge, logged)
    log[group.run_slots, first - edge : total - edge] = rows[:, first:]


def _split_inputs(rows: Tensor, weights: Mamba2Weights) -> tuple[Tensor, Tensor]:
    """x, (..., H, P), and B, (..., G, N), float32."""
    inner = weights.heads * weights.head_dim
    x, b = rows.float().split((inner, weights.groups * weights.state_size), -1)
    return x.unflatten(-1, (weights.heads, -1)), _split_groups(b, weights)


def _split_groups(rows: Tensor, weights: Mamba2Weights) -> Tensor:
    return rows.float().unflatten(-1, (weights.groups, -1))  # (..., G, N)
