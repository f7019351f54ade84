"""The gated delta rule, with a decay for each head or for each key channel.

A sequence is cut at grid edges. An interval of more than ``_STEPS`` tokens is computed at once:
what its tokens add follows from a triangular system, whose inverse one kernel computes of all
intervals, and another carries the state through them. Of fewer tokens, those of replies and drafts,
each is computed by itself. Which it is, is the sequence's own affair: a row does not depend on
other sequences, nor on which grid edges a prompt was cut at. Where exactness is asked for, each
token is always computed by itself, so that a row does not depend on cuts elsewhere either, nor on
whether its token was read or drawn.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.device import is_exact
from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import dot, rounded, softplus
from blazr.nn.kernels.triton.sequences import (
    carried_rows,
    gated_norm,
    keep_state,
    load_carried,
    span_of,
    store_working,
)
from blazr.nn.kernels.triton.tensors import dense, load_row, rows_of
from blazr.nn.operands.recurrent import DeltaRows, DeltaWeights
from blazr.nn.operands.step import GRID, Carried, StepTable

MAX_KEY_SIZE = 128
# The most tokens of an interval that are computed one by one.
_STEPS = 16
# Rows whose decays relate each pair of them, and by the solution of which a system is built up.
_BLOCK = 16
# Channels of values that a program takes.
_CHANNELS = 32


@triton.jit
def _unit(x):
    """Rows, (T, N), of length one."""
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@triton.jit
def _maps(
    tokens,
    is_row,
    head,
    inputs,
    SHARE: tl.constexpr,
    KEY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
):
    """Of rows of the packed batch: q and k (T, N), log of decay (T, N) or (T, 1), and beta (T,).

    Of what is no row all are zero.
    """
    q_rows, k_rows, decay_rows, beta_rows, dt_bias_ptr, a_ptr, beta_scale, least = inputs
    numbers = tl.arange(0, KEY_BLOCK)
    is_number = is_row[:, None] & (numbers < KEY)[None, :]
    columns = (head // SHARE * KEY + numbers)[None, :]
    q = load_row(q_rows, tokens[:, None], columns, is_number)
    k = load_row(k_rows, tokens[:, None], columns, is_number)
    if BY_CHANNEL:
        places, is_decay, is_bias = (head * KEY + numbers)[None, :], is_number, numbers < KEY
    else:
        one = tl.arange(0, 1)
        places, is_decay, is_bias = (head + one)[None, :], is_row[:, None], one == 0
    raw = load_row(decay_rows, tokens[:, None], places, is_decay)
    step = raw + tl.load(dt_bias_ptr + places, mask=is_bias[None, :], other=0)
    a = tl.load(a_ptr + head)
    log_decay = a * softplus(step) if least is None else least * tl.sigmoid(-a * step)
    log_decay = tl.where(is_decay, log_decay, 0)
    beta = beta_scale * tl.sigmoid(load_row(beta_rows, tokens, head, is_row))
    return _unit(q) * KEY**-0.5, _unit(k), log_decay, tl.where(is_row, beta, 0)


@triton.jit
def _interval(span, interval, PAGE: tl.constexpr):
    """First token and the last one + 1 of a step's tokens between two grid edges."""
    low = tl.maximum(interval * PAGE - span.logged, 0)
    return low, tl.minimum((interval + 1) * PAGE - span.logged, span.length)


@triton.jit
def _products(q, k, total, PRECISION: tl.constexpr):
    """``x[i] . k[j]``, decayed since j, for j up to i, of k and of q; the rest is free.

    The decay is the same for all key channels, and ``total`` (T, 1).
    """
    sums = tl.sum(total, 1)
    decay = tl.exp(tl.minimum(sums[:, None] - sums[None, :], 0))
    other = tl.trans(k)
    return dot(k, other, None, PRECISION) * decay, dot(q, other, None, PRECISION) * decay


@triton.jit
def _products_by_channel(q, k, total, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """The same with a decay for each key channel."""
    T: tl.constexpr = k.shape[0]
    N: tl.constexpr = k.shape[1]
    PARTS: tl.constexpr = T // BLOCK
    rows = tl.arange(0, T)
    # among the tokens of a block, pair by pair
    places = tl.arange(0, BLOCK)
    q_parts, k_parts = tl.reshape(q, (PARTS, BLOCK, N)), tl.reshape(k, (PARTS, BLOCK, N))
    totals = tl.reshape(total, (PARTS, BLOCK, N))
    of_k = tl.zeros((PARTS, BLOCK, BLOCK), tl.float32)
    of_q = tl.zeros((PARTS, BLOCK, BLOCK), tl.float32)
    for j in range(BLOCK):
        is_j = (places == j)[None, :, None]
        k_j = tl.sum(tl.where(is_j, k_parts, 0), 1)[:, None, :]
        gap = totals - tl.sum(tl.where(is_j, totals, 0), 1)[:, None, :]
        k_j = k_j * tl.exp(tl.minimum(gap, 0))
        is_column = (places == j)[None, None, :]
        of_k = tl.where(is_column, tl.sum(k_parts * k_j, 2)[:, :, None], of_k)
        of_q = tl.where(is_column, tl.sum(q_parts * k_j, 2)[:, :, None], of_q)
    of_k, of_q = _on_diagonal(of_k), _on_diagonal(of_q)
    # with the tokens before a block the decay goes by way of its first: both factors are at most 1
    for low in range(BLOCK, T, BLOCK):
        at_low = tl.sum(tl.where((rows == low)[:, None], total, 0), 0)[None, :]
        since = tl.exp(tl.minimum(total - at_low, 0))
        other = tl.trans(k * tl.exp(tl.minimum(at_low - total, 0)))
        is_pair = (rows // BLOCK == low // BLOCK)[:, None] & (rows < low)[None, :]
        of_k = tl.where(is_pair, dot(k * since, other, None, PRECISION), of_k)
        of_q = tl.where(is_pair, dot(q * since, other, None, PRECISION), of_q)
    return of_k, of_q


@triton.jit
def _on_diagonal(blocks):
    """(n, B, B) to a matrix (n * B, n * B) that is zero beside them."""
    n: tl.constexpr = blocks.shape[0]
    B: tl.constexpr = blocks.shape[1]
    number = tl.arange(0, n)
    is_own = (number[:, None] == number[None, :])[:, None, :, None]
    return tl.reshape(tl.where(is_own, blocks[:, :, None, :], 0), (n * B, n * B))


@triton.jit
def _inverse(lower, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """Of 1 + a matrix (T, T) that is zero on its diagonal and above.

    By substitution within blocks on the diagonal; the rest then has a fourth power of zero.
    """
    T: tl.constexpr = lower.shape[0]
    PARTS: tl.constexpr = T // BLOCK
    tl.static_assert(PARTS <= 4)
    number, places = tl.arange(0, PARTS), tl.arange(0, BLOCK)
    is_own = (number[:, None] == number[None, :])[:, None, :, None]
    blocks = tl.reshape(lower, (PARTS, BLOCK, PARTS, BLOCK))
    found = -tl.sum(tl.where(is_own, blocks, 0), 2)
    for i in range(2, BLOCK):
        is_i = (places == i)[None, :, None]
        row = tl.sum(tl.where(is_i, found, 0), 1)
        row += tl.sum(row[:, :, None] * found, 1)
        found = tl.where(is_i, row[:, None, :], found)
    found = _on_diagonal(found + tl.where((places[:, None] == places[None, :])[None, :, :], 1.0, 0))
    rows = tl.arange(0, T)
    below = tl.where((rows // BLOCK)[:, None] > (rows // BLOCK)[None, :], lower, 0)
    below = dot(found, below, None, PRECISION)
    found = dot(dot(below, below, None, PRECISION), found, found, PRECISION)
    return found - dot(below, found, None, PRECISION)


@triton.jit
def _relate(
    inputs,
    related,
    spans_ptr,
    first_sequence,
    SHARE: tl.constexpr,
    KEY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """One interval of one sequence, one head: what its tokens are to each other and to the state.

    Writes how what each adds follows from the errors of all; how much each sees of the others; q
    and k as they meet the state before the interval; k as the state behind it takes it, and what
    is left then of the one before.
    """
    solved_ptr, seen_ptr, meets_ptr, left_ptr = related
    interval, head = tl.program_id(1), tl.program_id(2)
    span = span_of(spans_ptr, first_sequence + tl.program_id(0), SPAN)
    low, high = _interval(span, interval, PAGE)
    if high - low <= STEPS:
        return
    rows = tl.arange(0, PAGE)
    at = interval * PAGE - span.logged + rows
    is_row = (at >= low) & (at < high)
    tokens = span.first + at
    q, k, log_decay, beta = _maps(tokens, is_row, head, inputs, SHARE, KEY, KEY_BLOCK, BY_CHANNEL)
    total, whole = tl.cumsum(log_decay, 0), tl.sum(log_decay, 0)[None, :]
    numbers, count = tl.arange(0, KEY_BLOCK)[None, :], tl.num_programs(2)
    meets = meets_ptr + (tokens[:, None] * 3 * count + head) * KEY + numbers
    is_number, fade = is_row[:, None] & (numbers < KEY), tl.exp(total)
    kind: tl.constexpr = meets_ptr.dtype.element_ty
    tl.store(meets, rounded(q * fade, kind), mask=is_number)
    tl.store(meets + count * KEY, rounded(k * fade, kind), mask=is_number)
    since = k * tl.exp(tl.minimum(whole - total, 0))
    tl.store(meets + 2 * count * KEY, rounded(since, kind), mask=is_number)
    left = left_ptr + ((span.first + low) * count + head) * KEY + numbers
    tl.store(left, tl.broadcast_to(tl.exp(whole), (1, KEY_BLOCK)), mask=numbers < KEY)
    if BY_CHANNEL:
        among, seen = _products_by_channel(q, k, total, BLOCK, PRECISION)
    else:
        among, seen = _products(q, k, total, PRECISION)
    among = tl.where(rows[:, None] > rows[None, :], among * beta[:, None], 0)
    places = (tokens * count + head)[:, None] * PAGE + rows[None, :]
    seen = tl.where(rows[:, None] >= rows[None, :], seen, 0)
    tl.store(seen_ptr + places, seen, mask=is_row[:, None])
    solved = _inverse(among, BLOCK, PRECISION) * beta[None, :]
    tl.store(solved_ptr + places, solved, mask=is_row[:, None])


@triton.jit
def _one_by_one(
    state,
    low,
    high,
    span,
    head,
    heads,
    channels,
    inputs,
    v_rows,
    y_ptr,
    SHARE: tl.constexpr,
    KEY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
):
    """The state after some tokens, each computed by itself."""
    one = tl.arange(0, 1)
    is_channel, columns = channels < VALUE, head * VALUE + channels
    for at in range(low, high):
        token = span.first + at
        q, k, log_decay, beta = _maps(
            token + one, one == 0, head, inputs, SHARE, KEY, KEY_BLOCK, BY_CHANNEL
        )
        q, k = tl.trans(q), tl.trans(k)  # (N, 1)
        v = load_row(v_rows, token, columns, is_channel)
        state = state * tl.exp(tl.trans(log_decay))
        error = v[None, :] - tl.sum(state * k, 0)[None, :]
        state += k * (error * beta[:, None])
        y = tl.sum(state * q, 0)
        tl.store(y_ptr + token * heads * VALUE + columns, y, mask=is_channel)
    return state


@triton.jit
def _at_once(
    state,
    interval,
    low,
    high,
    span,
    head,
    heads,
    channels,
    v_rows,
    y_ptr,
    related,
    KEY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE: tl.constexpr,
    PRECISION: tl.constexpr,
    PAGE: tl.constexpr,
):
    """The same of an interval, by what ``_relate`` found of it."""
    solved_ptr, seen_ptr, meets_ptr, left_ptr = related
    rows, numbers = tl.arange(0, PAGE), tl.arange(0, KEY_BLOCK)
    at = interval * PAGE - span.logged + rows
    is_row, tokens = (at >= low) & (at < high), span.first + at
    is_number = is_row[:, None] & (numbers < KEY)[None, :]
    is_output = is_row[:, None] & (channels < VALUE)[None, :]
    columns = (head * VALUE + channels)[None, :]
    meets = meets_ptr + (tokens[:, None] * 3 * heads + head) * KEY + numbers[None, :]
    pairs = (tokens * heads + head)[:, None] * PAGE + rows[None, :]
    k = tl.load(meets + heads * KEY, mask=is_number, other=0).to(tl.float32)
    v = load_row(v_rows, tokens[:, None], columns, is_output)
    error = v - dot(k, state, None, PRECISION)
    solved = tl.load(solved_ptr + pairs, mask=is_row[:, None], other=0)
    added = dot(solved, error, None, PRECISION)
    q = tl.load(meets, mask=is_number, other=0).to(tl.float32)
    seen = tl.load(seen_ptr + pairs, mask=is_row[:, None], other=0)
    y = dot(seen, added, dot(q, state, None, PRECISION), PRECISION)
    tl.store(y_ptr + tokens[:, None] * heads * VALUE + columns, y, mask=is_output)
    left = left_ptr + ((span.first + low) * heads + head) * KEY + numbers
    state = state * tl.load(left, mask=numbers < KEY, other=0)[:, None]
    k = tl.load(meets + 2 * heads * KEY, mask=is_number, other=0).to(tl.float32)
    return dot(tl.trans(k), added, state, PRECISION)


@triton.jit
def _advance(
    inputs,
    v_rows,
    related,
    y_ptr,
    memory,
    spans_ptr,
    checkpoints_ptr,
    first_sequence,
    heads,
    SHARE: tl.constexpr,
    KEY: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    IS_REPLY: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Some channels of values of one head of one sequence."""
    span = span_of(spans_ptr, first_sequence + tl.program_id(0), SPAN)
    head = tl.program_id(1)
    numbers = tl.arange(0, KEY_BLOCK)
    channels = tl.program_id(2) * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)
    is_place = (numbers < KEY)[:, None] & (channels < VALUE)[None, :]
    places = (head * KEY + numbers)[:, None] * VALUE + channels[None, :]
    state = load_carried(memory, span, places, is_place)

    total = span.logged + span.length
    for interval in range(tl.cdiv(total, PAGE)):
        low, high = _interval(span, interval, PAGE)
        # a reply has one token, and needs no more registers than for that
        if IS_REPLY or high - low <= STEPS:
            state = _one_by_one(
                state,
                low,
                high,
                span,
                head,
                heads,
                channels,
                inputs,
                v_rows,
                y_ptr,
                SHARE,
                KEY,
                KEY_BLOCK,
                VALUE,
                BY_CHANNEL,
            )
        else:
            state = _at_once(
                state,
                interval,
                low,
                high,
                span,
                head,
                heads,
                channels,
                v_rows,
                y_ptr,
                related,
                KEY,
                KEY_BLOCK,
                VALUE,
                PRECISION,
                PAGE,
            )
        if (interval + 1) * PAGE <= total:
            state = keep_state(state, high, memory[0], checkpoints_ptr, span, places, is_place)
    store_working(state, memory, span, places, is_place)


@limited_to(lambda _, __, ___, state, *____: state.kept.shape[2] <= MAX_KEY_SIZE)
def gated_delta(
    v: Tensor, rows: DeltaRows, weights: DeltaWeights, state: Carried, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.gated_delta.gated_delta``."""
    if not len(v):
        return torch.empty_like(v)
    heads, (keys, values) = weights.heads, state.kept.shape[2:]
    made = (rows.q, rows.k, rows.decay, rows.beta)
    # None is known when the kernels are compiled, so that they have registers for one form only
    of_weights = (weights.dt_bias, weights.a, weights.beta_scale, weights.least or None)
    inputs = (*(rows_of(dense(each)) for each in made), *of_weights)
    v_rows = rows_of(dense(v))
    numbers, decodes = table.numbers, table.num_decodes
    others = len(table.spans) - decodes
    y = v.new_empty(len(v), heads * values, dtype=torch.float32)
    steps = GRID if is_exact() else _STEPS
    are_related = others > 0 and steps < GRID
    length = len(v) if are_related else 0
    related = (
        v.new_empty(length, heads, GRID, dtype=torch.float32),
        v.new_empty(length, heads, GRID, dtype=torch.float32),
        v.new_empty(length, 3, heads, keys),
        v.new_empty(length, heads, keys, dtype=torch.float32),
    )
    is_wide = v.dtype == torch.float32
    shared = {
        "SHARE": heads // weights.key_heads,
        "KEY": keys,
        "KEY_BLOCK": max(16, triton.next_power_of_2(keys)),
        "BY_CHANNEL": weights.dt_bias.numel() > heads,
        "STEPS": steps,
        # beside numbers of 16 bits TF32 loses little
        "PRECISION": "tf32x3" if is_wide else "tf32",
        "PAGE": GRID,
        "SPAN": numbers.spans.stride(0),
    }
    if are_related:
        _relate[others, triton.cdiv(numbers.longest - 1, GRID) + 1, heads](
            inputs,
            related,
            numbers.spans,
            decodes,
            BLOCK=_BLOCK,
            num_warps=8,
            **shared,
        )
    for count, first_sequence, is_reply in ((decodes, 0, True), (others, decodes, False)):
        if count:
            _advance[count, heads, triton.cdiv(values, _CHANNELS)](
                inputs,
                v_rows,
                related,
                y,
                carried_rows(state),
                numbers.spans,
                numbers.checkpoints,
                first_sequence,
                heads,
                VALUE=values,
                VALUE_BLOCK=_CHANNELS,
                IS_REPLY=is_reply,
                num_warps=4,
                num_stages=1,
                **shared,
            )
    return gated_norm(y, rows.gate, replace(weights.norm, groups=heads), v.dtype)
