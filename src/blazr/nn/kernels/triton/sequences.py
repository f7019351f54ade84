"""What recurrent mixers have before their recurrence and behind it: convolution, log, norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.triton.numbers import rounded
from blazr.nn.operands.recurrent import Filter, GatedNorm
from blazr.nn.operands.step import GRID, StepTable, Window

# Of a tile.
_TOKENS, _CHANNELS = 16, 64


@triton.jit
def span_of(spans_ptr, sequence, SPAN: tl.constexpr):
    """Of a sequence: first row, length, tokens since the checkpoint, its slot, and the run slot."""
    span = spans_ptr + sequence * SPAN
    length, logged = tl.load(span + 1).to(tl.int32), tl.load(span + 3).to(tl.int32)
    return tl.load(span), length, logged, tl.load(span + 4), tl.load(span + 5)


@triton.jit
def working_of(spans_ptr, sequence, SPAN: tl.constexpr):
    """Rows of working states that a sequence reads and writes."""
    span = spans_ptr + sequence * SPAN
    run_slot = tl.load(span + 5)
    return run_slot + tl.load(span + 8), run_slot + tl.load(span + 9)


@triton.jit
def load_carried(kept_ptr, working_ptr, kept_slot, working_run, span, before, places, is_place):
    """A state as a sequence stands, in float32: what was kept, right behind a grid edge."""
    if span[2] == 0:
        kept = tl.load(kept_ptr + span[3] * kept_slot + places, mask=is_place, other=0)
        state = kept.to(tl.float32)
    else:
        state = tl.load(working_ptr + before * working_run + places, mask=is_place, other=0)
    return state


@triton.jit
def keep_state(
    state,
    tokens,
    kept_ptr,
    kept_slot,
    spans_ptr,
    checkpoints_ptr,
    sequence,
    places,
    is_place,
    SPAN: tl.constexpr,
):
    """A state at the grid edge after so many tokens of the step: rounded, and kept if wanted."""
    kept = rounded(state, kept_ptr.dtype.element_ty)
    edges = tl.load(spans_ptr + sequence * SPAN + 6)
    for edge in range(tl.load(spans_ptr + sequence * SPAN + 7).to(tl.int32)):
        if tl.load(checkpoints_ptr + (edges + edge) * 2) == tokens:
            slot = tl.load(checkpoints_ptr + (edges + edge) * 2 + 1)
            tl.store(kept_ptr + slot * kept_slot + places, kept, mask=is_place)
    return kept.to(tl.float32)


@triton.jit
def _inputs(
    at,
    channels,
    is_wanted,
    span,
    x_ptr,
    gate_ptr,
    kept_ptr,
    log_ptr,
    x_row,
    gate_row,
    kept_slot,
    kept_row,
    log_run,
    log_row,
    BEFORE: tl.constexpr,
    HAS_GATES: tl.constexpr,
):
    """Inputs of a convolution at distances from the step's first token, those before it too.

    ``at`` is (tokens, 1), and the result (tokens, channels), in the dtype of x.
    """
    first, _, logged, state_slot, run_slot = span
    is_new = is_wanted & (at >= 0)
    found = tl.load(x_ptr + (first + at) * x_row + channels, mask=is_new, other=0)
    if HAS_GATES:
        gate = tl.load(gate_ptr + (first + at) * gate_row + channels, mask=is_new, other=0)
        found = (found.to(tl.float32) * gate.to(tl.float32)).to(x_ptr.dtype.element_ty)
    back = logged + at
    is_logged = is_wanted & (at < 0) & (back >= 0)
    logs = log_ptr + run_slot * log_run + back * log_row + channels
    found = tl.where(is_new, found, tl.load(logs, mask=is_logged, other=0))
    is_kept = is_wanted & (back < 0) & (at < 0)
    kept = kept_ptr + state_slot * kept_slot + (BEFORE + back) * kept_row + channels
    return tl.where(is_kept, tl.load(kept, mask=is_kept, other=0), found)


@triton.jit
def _convolve(
    x_ptr,
    in_gate_ptr,
    out_gate_ptr,
    out_ptr,
    weight_ptr,
    bias_ptr,
    kept_ptr,
    log_ptr,
    spans_ptr,
    x_row,
    in_gate_row,
    out_gate_row,
    out_row,
    kept_slot,
    kept_row,
    log_run,
    log_row,
    channels_end,
    TAPS: tl.constexpr,
    HAS_GATES: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Some tokens of a sequence, some channels."""
    span = span_of(spans_ptr, tl.program_id(0), SPAN)
    first, length = span[0], span[1]
    if tl.program_id(1) * TOKENS >= length:
        return
    at = (tl.program_id(1) * TOKENS + tl.arange(0, TOKENS))[:, None]
    channels = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    is_channel = channels < channels_end
    is_wanted = (at < length) & is_channel
    bias = tl.load(bias_ptr + channels, mask=is_channel, other=0)
    acc = tl.zeros((TOKENS, CHANNELS), tl.float32)
    for tap in tl.static_range(TAPS):
        inputs = _inputs(
            at + (tap - TAPS + 1),
            channels,
            is_wanted,
            span,
            x_ptr,
            in_gate_ptr,
            kept_ptr,
            log_ptr,
            x_row,
            in_gate_row,
            kept_slot,
            kept_row,
            log_run,
            log_row,
            TAPS - 1,
            HAS_GATES,
        )
        weight = tl.load(weight_ptr + tap * channels_end + channels, mask=is_channel, other=0)
        acc += inputs.to(tl.float32) * weight
    acc += bias
    if HAS_GATES:  # as the reference does, rounded before and behind the second gate
        gates = out_gate_ptr + (first + at) * out_gate_row + channels
        gate = tl.load(gates, mask=is_wanted, other=0).to(tl.float32)
        acc = acc.to(x_ptr.dtype.element_ty).to(tl.float32) * gate
    else:
        acc = acc * tl.sigmoid(acc)
    places = out_ptr + (first + at) * out_row + channels
    tl.store(places, acc.to(out_ptr.dtype.element_ty), mask=is_wanted)


@triton.jit
def _keep_inputs(
    x_ptr,
    in_gate_ptr,
    kept_ptr,
    log_ptr,
    spans_ptr,
    checkpoints_ptr,
    x_row,
    in_gate_row,
    kept_slot,
    kept_row,
    log_run,
    log_row,
    channels_end,
    BEFORE: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_GATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """The last inputs before a sequence's grid edges, some channels of them."""
    sequence = tl.program_id(0)
    span = span_of(spans_ptr, sequence, SPAN)
    edges = tl.load(spans_ptr + sequence * SPAN + 6)
    channels = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    rows = tl.arange(0, ROWS)[:, None]
    is_wanted = (rows < BEFORE) & (channels < channels_end)
    for edge in range(tl.load(spans_ptr + sequence * SPAN + 7).to(tl.int32)):
        distance = tl.load(checkpoints_ptr + (edges + edge) * 2).to(tl.int32)
        slot = tl.load(checkpoints_ptr + (edges + edge) * 2 + 1)
        found = _inputs(
            distance - BEFORE + rows,
            channels,
            is_wanted,
            span,
            x_ptr,
            in_gate_ptr,
            kept_ptr,
            log_ptr,
            x_row,
            in_gate_row,
            kept_slot,
            kept_row,
            log_run,
            log_row,
            BEFORE,
            HAS_GATES,
        )
        places = kept_ptr + slot * kept_slot + rows * kept_row + channels
        tl.store(places, found, mask=is_wanted)


@triton.jit
def _log_rows(
    x_ptr,
    gate_ptr,
    log_ptr,
    spans_ptr,
    x_row,
    gate_row,
    log_run,
    log_row,
    channels_end,
    HAS_GATES: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Some of the last tokens of a sequence, some channels."""
    first, length, logged, _, run_slot = span_of(spans_ptr, tl.program_id(0), SPAN)
    # the first token that is logged is the first of the step, or right behind the last grid edge
    edge = (logged + length) // PAGE * PAGE
    start = tl.maximum(edge - logged, 0)
    at = (start + tl.program_id(1) * TOKENS + tl.arange(0, TOKENS))[:, None]
    channels = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    is_wanted = (at < length) & (channels < channels_end)
    found = tl.load(x_ptr + (first + at) * x_row + channels, mask=is_wanted)
    if HAS_GATES:
        gate = tl.load(gate_ptr + (first + at) * gate_row + channels, mask=is_wanted)
        found = (found.to(tl.float32) * gate.to(tl.float32)).to(x_ptr.dtype.element_ty)
    places = log_ptr + run_slot * log_run + (logged + at - edge) * log_row + channels
    tl.store(places, found, mask=is_wanted)


@triton.jit
def _gated_norm(
    x_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    x_row,
    gate_row,
    out_row,
    weight_group,
    size,
    eps,
    ORDER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A group of channels of a row."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    places = tl.arange(0, BLOCK)
    is_channel, channels = places < size, group * size + places
    x = tl.load(x_ptr + row * x_row + channels, mask=is_channel, other=0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_row + channels, mask=is_channel, other=0).to(tl.float32)
    factor = tl.sigmoid(gate)
    if ORDER != "norm_sigmoid":
        factor = factor * gate
    if ORDER == "gate_first":
        x = x * factor
    if ORDER != "none":
        weights = weight_ptr + group * weight_group + places
        weight = tl.load(weights, mask=is_channel, other=0).to(tl.float32)
        x = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * weight
    if ORDER != "gate_first":
        x = x * factor
    tl.store(out_ptr + row * out_row + channels, x.to(out_ptr.dtype.element_ty), mask=is_channel)


def dense(x: Tensor) -> Tensor:
    """The same with channels side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def convolve(
    x: Tensor,
    taps: Filter,
    window: Window,
    table: StepTable,
    gates: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See ``blazr.nn.ops.convolution.convolve``."""
    x = dense(x)
    in_gate, out_gate = (x, x) if gates is None else map(dense, gates)
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    numbers, channels, count = table.numbers, x.shape[1], taps.weight.shape[0]
    blocks = triton.cdiv(channels, _CHANNELS)
    if not len(x) or not blocks:
        return out
    memory = (*window.kept.stride()[:2], *window.log.stride()[:2])
    _convolve[len(table.spans), triton.cdiv(numbers.longest, _TOKENS), blocks](
        x,
        in_gate,
        out_gate,
        out,
        taps.weight,
        taps.bias,
        window.kept,
        window.log,
        numbers.spans,
        x.stride(0),
        in_gate.stride(0),
        out_gate.stride(0),
        out.stride(0),
        *memory,
        channels,
        TAPS=count,
        HAS_GATES=gates is not None,
        TOKENS=_TOKENS,
        CHANNELS=_CHANNELS,
        SPAN=numbers.spans.stride(0),
    )
    # what is overwritten is read before, by the kernels before
    if count > 1:
        _keep_inputs[len(table.spans), blocks](
            x,
            in_gate,
            window.kept,
            window.log,
            numbers.spans,
            numbers.checkpoints,
            x.stride(0),
            in_gate.stride(0),
            *memory,
            channels,
            BEFORE=count - 1,
            ROWS=triton.next_power_of_2(count - 1),
            HAS_GATES=gates is not None,
            CHANNELS=_CHANNELS,
            SPAN=numbers.spans.stride(0),
        )
    log_rows(x, window.log, table, in_gate if gates is not None else None)
    return out


def log_rows(x: Tensor, log: Tensor, table: StepTable, gate: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.sequences.log_rows``; x is first multiplied with the gate, if any."""
    x = dense(x)
    numbers, channels = table.numbers, x.shape[1]
    if len(x):
        tiles = triton.cdiv(min(numbers.longest, GRID), _TOKENS)
        _log_rows[len(table.spans), tiles, triton.cdiv(channels, _CHANNELS)](
            x,
            x if gate is None else gate,
            log,
            numbers.spans,
            x.stride(0),
            0 if gate is None else gate.stride(0),
            *log.stride()[:2],
            channels,
            HAS_GATES=gate is not None,
            TOKENS=_TOKENS,
            CHANNELS=_CHANNELS,
            PAGE=GRID,
            SPAN=numbers.spans.stride(0),
        )
    return log


def gated_norm(
    x: Tensor, gate: Tensor, norm: GatedNorm, dtype: torch.dtype | None = None
) -> Tensor:
    """See ``blazr.nn.ops.norm.gated_norm``; in another dtype than x's where one is given.

    Groups may have weights of their own, or share those of one.
    """
    x, gate = dense(x), dense(gate)
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    size = x.shape[1] // norm.groups
    if out.numel():
        _gated_norm[len(x), norm.groups](
            x,
            gate,
            gate if norm.weight is None else norm.weight,
            out,
            x.stride(0),
            gate.stride(0),
            out.stride(0),
            0 if norm.weight is None or len(norm.weight) == size else size,
            size,
            norm.eps,
            ORDER="none" if norm.weight is None else norm.order,
            BLOCK=triton.next_power_of_2(size),
            num_warps=4 if size <= 2048 else 8,
        )
    return out
