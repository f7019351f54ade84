"""What recurrent mixers have before their recurrence and behind it: convolution, log, norm."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.triton.numbers import rounded
from blazr.nn.kernels.triton.tensors import Rows, dense, load_row, rows_of
from blazr.nn.operands.recurrent import Filter, GatedNorm
from blazr.nn.operands.step import GRID, Carried, StepTable, Window

# Of a tile.
_TOKENS, _CHANNELS = 16, 64


CarriedRows = tuple[Rows, Rows]
"""What sequences carry along, for a kernel: kept, by slot, and working, by run."""


def carried_rows(memory: Carried) -> CarriedRows:
    """Of a tensor that sequences carry along."""
    return rows_of(memory.kept), rows_of(memory.working)


class Span(NamedTuple):
    """What a step computes of a sequence, within a kernel; see `StepNumbers`.

    Args:
        numbers: A pointer to all that is known of it.
        first: Its first row in the packed batch.
        length: Its tokens in this step.
        logged: Its tokens since the checkpoint.
        state_slot: That of the checkpoint.
        run_slot: Row of its log.
    """

    numbers: tl.tensor
    first: tl.tensor
    length: tl.tensor
    logged: tl.tensor
    state_slot: tl.tensor
    run_slot: tl.tensor


@triton.jit
def span_of(spans_ptr, sequence, SPAN: tl.constexpr):
    """A sequence of the step."""
    span = spans_ptr + sequence * SPAN
    length, logged = tl.load(span + 1).to(tl.int32), tl.load(span + 3).to(tl.int32)
    return Span(span, tl.load(span), length, logged, tl.load(span + 4), tl.load(span + 5))


@triton.jit
def load_carried(memory, span, places, is_place):
    """A state as a sequence stands, in float32: what was kept, right behind a grid edge."""
    kept, working = memory
    run = span.run_slot + tl.load(span.numbers + 8)
    if span.logged == 0:
        state = load_row(kept, span.state_slot, places, is_place)
    else:
        state = load_row(working, run, places, is_place)
    return state


@triton.jit
def store_working(state, memory, span, places, is_place):
    """A state as the sequence stands behind the step."""
    working_ptr, working_run = memory[1]
    run = span.run_slot + tl.load(span.numbers + 9)
    tl.store(working_ptr + run * working_run + places, state, mask=is_place)


@triton.jit
def keep_state(state, tokens, kept, checkpoints_ptr, span, places, is_place):
    """A state at the grid edge after so many tokens of the step: rounded, and kept if wanted."""
    kept_ptr, kept_slot = kept
    found = rounded(state, kept_ptr.dtype.element_ty)
    edges = tl.load(span.numbers + 6)
    for edge in range(tl.load(span.numbers + 7).to(tl.int32)):
        if tl.load(checkpoints_ptr + (edges + edge) * 2) == tokens:
            slot = tl.load(checkpoints_ptr + (edges + edge) * 2 + 1)
            tl.store(kept_ptr + slot * kept_slot + places, found, mask=is_place)
    return found.to(tl.float32)


@triton.jit
def _load_new(x, gate, token, channels, is_wanted, HAS_GATES: tl.constexpr):
    """Inputs of a convolution that the step has, (tokens, channels), in the dtype of x."""
    x_ptr, x_row = x
    found = tl.load(x_ptr + token * x_row + channels, mask=is_wanted, other=0)
    if HAS_GATES:
        found = found.to(tl.float32) * load_row(gate, token, channels, is_wanted)
        found = found.to(x_ptr.dtype.element_ty)
    return found


@triton.jit
def _inputs(
    at,
    channels,
    is_wanted,
    span,
    x,
    gate,
    window,
    BEFORE: tl.constexpr,
    HAS_GATES: tl.constexpr,
):
    """Inputs of a convolution at distances from the step's first token, those before it too.

    ``at`` is (tokens, 1), and the result (tokens, channels), in the dtype of x.
    """
    kept_ptr, kept_slot, kept_row, log_ptr, log_run, log_row = window
    is_new = is_wanted & (at >= 0)
    found = _load_new(x, gate, span.first + at, channels, is_new, HAS_GATES)
    back = span.logged + at
    is_logged = is_wanted & (at < 0) & (back >= 0)
    logs = log_ptr + span.run_slot * log_run + back * log_row + channels
    found = tl.where(is_new, found, tl.load(logs, mask=is_logged, other=0))
    is_kept = is_wanted & (back < 0) & (at < 0)
    kept = kept_ptr + span.state_slot * kept_slot + (BEFORE + back) * kept_row + channels
    return tl.where(is_kept, tl.load(kept, mask=is_kept, other=0), found)


@triton.jit
def _convolve(
    x,
    in_gate,
    out_gate,
    out,
    weight_ptr,
    bias_ptr,
    window,
    spans_ptr,
    channels_end,
    TAPS: tl.constexpr,
    HAS_GATES: tl.constexpr,
    SILU: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Some tokens of a sequence, some channels."""
    span = span_of(spans_ptr, tl.program_id(0), SPAN)
    if tl.program_id(1) * TOKENS >= span.length:
        return
    at = (tl.program_id(1) * TOKENS + tl.arange(0, TOKENS))[:, None]
    channels = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    is_channel = channels < channels_end
    is_wanted = (at < span.length) & is_channel
    bias = tl.load(bias_ptr + channels, mask=is_channel, other=0)
    acc = tl.zeros((TOKENS, CHANNELS), tl.float32)
    for tap in tl.static_range(TAPS):
        back = at + (tap - TAPS + 1)
        inputs = _inputs(back, channels, is_wanted, span, x, in_gate, window, TAPS - 1, HAS_GATES)
        weight = tl.load(weight_ptr + tap * channels_end + channels, mask=is_channel, other=0)
        acc += inputs.to(tl.float32) * weight
    acc += bias
    if HAS_GATES:  # as the reference does, rounded before and behind the second gate
        gate = load_row(out_gate, span.first + at, channels, is_wanted)
        acc = acc.to(x[0].dtype.element_ty).to(tl.float32) * gate
    elif SILU:
        acc = acc * tl.sigmoid(acc)
    out_ptr, out_row = out
    places = out_ptr + (span.first + at) * out_row + channels
    tl.store(places, acc.to(out_ptr.dtype.element_ty), mask=is_wanted)


@triton.jit
def _keep_inputs(
    x,
    in_gate,
    window,
    spans_ptr,
    checkpoints_ptr,
    channels_end,
    BEFORE: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_GATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """The last inputs before a sequence's grid edges, some channels of them."""
    span = span_of(spans_ptr, tl.program_id(0), SPAN)
    kept_ptr, kept_slot, kept_row, _, _, _ = window
    edges = tl.load(span.numbers + 6)
    channels = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    rows = tl.arange(0, ROWS)[:, None]
    is_wanted = (rows < BEFORE) & (channels < channels_end)
    for edge in range(tl.load(span.numbers + 7).to(tl.int32)):
        distance = tl.load(checkpoints_ptr + (edges + edge) * 2).to(tl.int32)
        slot = tl.load(checkpoints_ptr + (edges + edge) * 2 + 1)
        at = distance - BEFORE + rows
        found = _inputs(at, channels, is_wanted, span, x, in_gate, window, BEFORE, HAS_GATES)
        places = kept_ptr + slot * kept_slot + rows * kept_row + channels
        tl.store(places, found, mask=is_wanted)


@triton.jit
def _log_rows(
    x,
    gate,
    log_ptr,
    log_run,
    log_row,
    spans_ptr,
    channels_end,
    HAS_GATES: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Some of the last tokens of a sequence, some channels."""
    span = span_of(spans_ptr, tl.program_id(0), SPAN)
    # the first token that is logged is the first of the step, or right behind the last grid edge
    edge = (span.logged + span.length) // PAGE * PAGE
    start = tl.maximum(edge - span.logged, 0)
    at = (start + tl.program_id(1) * TOKENS + tl.arange(0, TOKENS))[:, None]
    channels = (tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    is_wanted = (at < span.length) & (channels < channels_end)
    found = _load_new(x, gate, span.first + at, channels, is_wanted, HAS_GATES)
    run = log_ptr + span.run_slot * log_run
    tl.store(run + (span.logged + at - edge) * log_row + channels, found, mask=is_wanted)


@triton.jit
def _gated_norm(
    x,
    gate,
    weight_ptr,
    out,
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
    numbers = load_row(x, row, channels, is_channel)
    opening = load_row(gate, row, channels, is_channel)
    factor = tl.sigmoid(opening)
    if ORDER != "norm_sigmoid":
        factor = factor * opening
    if ORDER == "gate_first":
        numbers = numbers * factor
    if ORDER != "none":
        weights = weight_ptr + group * weight_group + places
        weight = tl.load(weights, mask=is_channel, other=0).to(tl.float32)
        mean = tl.sum(numbers * numbers, 0) / size
        numbers = numbers * tl.rsqrt(mean + eps) * weight
    if ORDER != "gate_first":
        numbers = numbers * factor
    out_ptr, out_row = out
    found = numbers.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * out_row + channels, found, mask=is_channel)


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
    memory = (window.kept, *window.kept.stride()[:2], window.log, *window.log.stride()[:2])
    _convolve[len(table.spans), triton.cdiv(numbers.longest, _TOKENS), blocks](
        rows_of(x),
        rows_of(in_gate),
        rows_of(out_gate),
        rows_of(out),
        taps.weight,
        taps.bias,
        memory,
        numbers.spans,
        channels,
        TAPS=count,
        HAS_GATES=gates is not None,
        SILU=taps.silu,
        TOKENS=_TOKENS,
        CHANNELS=_CHANNELS,
        SPAN=numbers.spans.stride(0),
    )
    # what is overwritten is read before, by the kernels before
    if count > 1:
        _keep_inputs[len(table.spans), blocks](
            rows_of(x),
            rows_of(in_gate),
            memory,
            numbers.spans,
            numbers.checkpoints,
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
            rows_of(x),
            rows_of(x if gate is None else gate),
            log,
            *log.stride()[:2],
            numbers.spans,
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
    if norm.order == "ungated":
        return x.to(dtype or x.dtype)
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    size = x.shape[1] // norm.groups
    if out.numel():
        _gated_norm[len(x), norm.groups](
            rows_of(dense(x)),
            rows_of(dense(gate)),
            gate if norm.weight is None else norm.weight,
            rows_of(out),
            0 if norm.weight is None or len(norm.weight) == size else size,
            size,
            norm.eps,
            ORDER="none" if norm.weight is None else norm.order,
            BLOCK=triton.next_power_of_2(size),
            num_warps=4 if size <= 2048 else 8,
        )
    return out
