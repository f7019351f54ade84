"""Experts: each token's products with the matrices of those it has chosen.

Tokens are put in order by their expert, and multiplied a tile of ``_ROWS`` at a time, whether there
are few or many: so a row does not depend on how many there are. Of few tokens most of a tile is
empty; it is the reading of matrices that takes the time then.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import activated, dot, rounded
from blazr.nn.kernels.triton.tensors import dense, rows_of
from blazr.nn.kernels.triton.weights import INNER, WIDE_INNER, can_read, stored, weight_tile
from blazr.nn.operands.experts import ExpertMlps, Stack
from blazr.nn.operands.floats import StoredMatrix
from blazr.nn.operands.packing import ShiftedBlocks

MAX_EXPERTS = 1024
# Of a tile: pairs of a token and an expert, and columns of the result; fewer of weights that are
# decoded, which takes registers.
_ROWS, _COLUMNS, _DECODED_COLUMNS = 64, 64, 32


@triton.jit
def _pairs_of(tiles, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """The expert of a program's tile, its pairs of a token and that expert, and which there are.

    No expert has an empty tile. ``tiles`` are pointers to the tiles up to each expert's last, and
    to the pairs before each expert's first, both (EXPERTS,) and what is behind the last expert; and
    to the pairs.
    """
    ends_ptr, firsts_ptr, order_ptr = tiles
    tile, experts = tl.program_id(0), tl.arange(0, EXPERTS)
    expert = tl.sum((tl.load(ends_ptr + experts) <= tile).to(tl.int32), 0)
    before = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    first = tl.load(firsts_ptr + expert, mask=expert < EXPERTS, other=0)
    last = tl.load(firsts_ptr + expert + 1, mask=expert < EXPERTS, other=0)
    rows = first + (tile - before) * ROWS + tl.arange(0, ROWS)
    return expert, tl.load(order_ptr + rows, mask=rows < last, other=0), rows < last


@triton.jit
def _take_columns(x, order_ptr, chosen_ptr, out_ptr, size, per_row, COLUMNS: tl.constexpr):
    """Some columns of a pair's row of x, in the order of those of its expert's matrix."""
    pair = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_place = places < size
    expert = tl.load(chosen_ptr + pair)
    columns = tl.load(order_ptr + expert * size + places, mask=is_place, other=0)
    x_ptr, x_row = x
    found = tl.load(x_ptr + pair // per_row * x_row + columns, mask=is_place, other=0)
    tl.store(out_ptr + pair * size + places, found, mask=is_place)


@triton.jit
def _product(
    x_rows,
    is_row,
    weight,
    expert,
    columns,
    is_column,
    size,
    FORM: tl.constexpr,
    INNER: tl.constexpr,
):
    """Rows, by pointers to them, times rows of an expert's matrix: (rows, columns)."""
    acc = tl.zeros((is_row.shape[0], is_column.shape[0]), tl.float32)
    for low in range(0, size, INNER):
        inner = low + tl.arange(0, INNER)
        is_inner = (inner < size)[None, :]
        x = tl.load(x_rows[:, None] + inner[None, :], mask=is_row[:, None] & is_inner, other=0)
        tile = weight_tile(weight, expert, columns, is_column, low, size, x.dtype, FORM, INNER)
        acc = dot(x, tl.trans(tile), acc)
    return acc


@triton.jit
def _add_bias(acc, bias_ptr, expert, size, columns, is_column):
    bias = tl.load(bias_ptr + expert * size + columns, mask=is_column, other=0)
    return acc + bias.to(tl.float32)[None, :]


@triton.jit
def _hidden(
    gate_x,
    up_x,
    gate,
    up,
    gate_bias_ptr,
    up_bias_ptr,
    out_ptr,
    tiles,
    size,
    inner,
    limit,
    alpha,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_GATE_BIAS: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATE_FORM: tl.constexpr,
    UP_FORM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """What the down projection is given of a tile of pairs, some columns of it."""
    expert, pairs, is_pair = _pairs_of(tiles, EXPERTS, ROWS)
    if expert >= COUNT:
        return
    expert = expert.to(tl.int64)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < inner
    x_ptr, x_row, per_row = up_x
    x_rows = x_ptr + pairs // per_row * x_row
    ups = _product(x_rows, is_pair, up, expert, columns, is_column, size, UP_FORM, INNER)
    if HAS_UP_BIAS:
        ups = _add_bias(ups, up_bias_ptr, expert, inner, columns, is_column)
    if HAS_GATE:
        x_ptr, x_row, per_row = gate_x
        x_rows = x_ptr + pairs // per_row * x_row
        gates = _product(x_rows, is_pair, gate, expert, columns, is_column, size, GATE_FORM, INNER)
        if HAS_GATE_BIAS:
            gates = _add_bias(gates, gate_bias_ptr, expert, inner, columns, is_column)
        if HAS_LIMIT:
            gates = tl.minimum(gates, limit)
            ups = tl.minimum(tl.maximum(ups, -limit), limit)
            found = gates * tl.sigmoid(alpha * gates) * (ups + 1)
        else:
            found = activated(gates, ACTIVATION) * ups
    else:
        found = activated(ups, ACTIVATION)
    places = out_ptr + pairs[:, None] * inner + columns[None, :]
    is_kept = is_pair[:, None] & is_column[None, :]
    tl.store(places, rounded(found, out_ptr.dtype.element_ty), mask=is_kept)


@triton.jit
def _down(
    hidden_ptr,
    down,
    bias_ptr,
    weights_ptr,
    out_ptr,
    tiles,
    size,
    inner,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    FORM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """The weighted outputs of a tile of pairs, some columns of them."""
    expert, pairs, is_pair = _pairs_of(tiles, EXPERTS, ROWS)
    if expert >= COUNT:
        return
    expert = expert.to(tl.int64)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < size
    rows = hidden_ptr + pairs * inner
    found = _product(rows, is_pair, down, expert, columns, is_column, inner, FORM, INNER)
    if HAS_BIAS:
        found = _add_bias(found, bias_ptr, expert, size, columns, is_column)
    found = found * tl.load(weights_ptr + pairs, mask=is_pair, other=0)[:, None]
    places = out_ptr + pairs[:, None] * size + columns[None, :]
    tl.store(places, found, mask=is_pair[:, None] & is_column[None, :])


@triton.jit
def _sum(shares_ptr, out_ptr, size, top, COLUMNS: tl.constexpr):
    """A token's outputs of its experts added up, best first, some columns."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < size
    acc = tl.zeros((COLUMNS,), tl.float32)
    for place in range(top):
        shares = shares_ptr + (token * top + place) * size + columns
        acc += tl.load(shares, mask=is_column, other=0)
    tl.store(
        out_ptr + token * size + columns, rounded(acc, out_ptr.dtype.element_ty), mask=is_column
    )


def _is_read(stack: Stack, dtype: torch.dtype) -> TypeGuard[Tensor | StoredMatrix]:
    return can_read(stack) and (not isinstance(stack, Tensor) or stack.dtype == dtype)


def _fits(x: Tensor, _: Tensor, __: Tensor, mlps: ExpertMlps) -> bool:
    stacks = (mlps.up, mlps.down, mlps.up if mlps.gate is None else mlps.gate)
    fit = all(_is_read(each, x.dtype) and each.shape[0] <= MAX_EXPERTS for each in stacks)
    return fit and mlps.adapters is None


def _rows_for(
    stack: Tensor | StoredMatrix, x: Tensor, chosen: Tensor, per_row: int
) -> tuple[Tensor, int, int]:
    """Rows, with their columns in the order of the matrices that they are multiplied with.

    They are copied once, for all programs that read them: where each of these took single columns
    from all over a row, that would take longer than the product.

    Args:
        stack: (E, out, in).
        x: (T * k / per_row, in).
        chosen: (T, k), int64.
        per_row: Pairs of a token and an expert that share a row.

    Returns:
        The rows, numbers from one to the next, and how many pairs share one of these.
    """
    if not isinstance(stack, ShiftedBlocks) or stack.order is None:
        return *rows_of(x), per_row
    order, size = stack.order.contiguous(), x.shape[1]
    found = x.new_empty(chosen.numel(), size)
    _take_columns[len(found), triton.cdiv(size, 1024)](
        rows_of(x), order, chosen, found, size, per_row, COLUMNS=1024
    )
    return *rows_of(found), 1


@limited_to(_fits)
def experts(x: Tensor, weights: Tensor, chosen: Tensor, mlps: ExpertMlps) -> Tensor:
    """See ``blazr.nn.ops.moe.experts``, for stacks that are plain, or as files store them."""
    up, down, gate = mlps.up, mlps.down, mlps.up if mlps.gate is None else mlps.gate
    # as _fits says
    assert _is_read(up, x.dtype)
    assert _is_read(down, x.dtype)
    assert _is_read(gate, x.dtype)
    count, inner, size = up.shape
    top, out = chosen.shape[1], torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    x, chosen = dense(x), chosen.contiguous()
    # counted on the device, and launched for the most tiles that there can be
    pairs = chosen.flatten()
    order = pairs.argsort(stable=True)
    room = triton.next_power_of_2(count)
    counts = pairs.new_zeros(room).scatter_add_(0, pairs, torch.ones_like(pairs))
    ends = ((counts + _ROWS - 1) // _ROWS).cumsum(0)
    firsts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    tiles = (ends, firsts, order)
    up_rows = _rows_for(up, x, chosen, top)
    gate_rows = up_rows if mlps.gate is None else _rows_for(gate, x, chosen, top)
    num_tiles = min(len(pairs), len(pairs) // _ROWS + count)
    hidden = x.new_empty(len(pairs), inner)
    shares = x.new_empty(len(pairs), size, dtype=torch.float32)
    at_once = INNER if x.element_size() == 2 else WIDE_INNER
    (gates, gate_form), (ups, up_form), (downs, down_form) = (
        stored(each, at_once) for each in (gate, up, down)
    )
    is_plain = all(isinstance(each, Tensor) for each in (gate, up, down))
    tile = _COLUMNS if is_plain else _DECODED_COLUMNS
    how = {
        "COUNT": count,
        "EXPERTS": room,
        "ROWS": _ROWS,
        "COLUMNS": tile,
        "INNER": at_once,
    }
    _hidden[num_tiles, triton.cdiv(inner, tile)](
        gate_rows,
        up_rows,
        gates,
        ups,
        x if mlps.gate_bias is None else mlps.gate_bias.contiguous(),
        x if mlps.up_bias is None else mlps.up_bias.contiguous(),
        hidden,
        tiles,
        size,
        inner,
        mlps.limit or 0.0,
        mlps.alpha,
        HAS_GATE=mlps.gate is not None,
        HAS_GATE_BIAS=mlps.gate_bias is not None,
        HAS_UP_BIAS=mlps.up_bias is not None,
        HAS_LIMIT=mlps.limit is not None,
        ACTIVATION=mlps.activation,
        GATE_FORM=gate_form,
        UP_FORM=up_form,
        **how,
    )
    hidden, _, _ = _rows_for(down, hidden, chosen, 1)
    _down[num_tiles, triton.cdiv(size, tile)](
        hidden,
        downs,
        x if mlps.down_bias is None else mlps.down_bias.contiguous(),
        weights.contiguous(),
        shares,
        tiles,
        size,
        inner,
        HAS_BIAS=mlps.down_bias is not None,
        FORM=down_form,
        **how,
    )
    _sum[len(x), triton.cdiv(size, 1024)](shares, out, size, top, COLUMNS=1024)
    return out
