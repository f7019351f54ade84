"""Experts: each token's products with the matrices of those it has chosen.

Tokens are put in order by their expert, and multiplied a tile of ``_ROWS`` at a time, whether there
are few or many: so a row does not depend on how many there are. Of few tokens most of a tile is
empty; it is the reading of matrices that takes the time then.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import activated, dot, rounded
from blazr.nn.operands.experts import ExpertMlps

MAX_EXPERTS = 1024
# Of a tile: pairs of a token and an expert, columns of the result, and of what is multiplied.
_ROWS, _COLUMNS, _INNER = 64, 64, 64


@triton.jit
def _pairs_of(tile, ends_ptr, firsts_ptr, order_ptr, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """A tile's expert, and its pairs of a token and that expert; no expert has an empty tile.

    ``ends`` are the tiles up to each expert's last, ``firsts`` the pairs before each expert's
    first, both (EXPERTS,) and what is behind the last expert.
    """
    experts = tl.arange(0, EXPERTS)
    expert = tl.sum((tl.load(ends_ptr + experts) <= tile).to(tl.int32), 0)
    before = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    first = tl.load(firsts_ptr + expert, mask=expert < EXPERTS, other=0)
    last = tl.load(firsts_ptr + expert + 1, mask=expert < EXPERTS, other=0)
    rows = first + (tile - before) * ROWS + tl.arange(0, ROWS)
    return expert, tl.load(order_ptr + rows, mask=rows < last, other=0), rows < last


@triton.jit
def _product(
    x_rows,
    is_row,
    weight_ptr,
    columns,
    is_column,
    size,
    weight_row,
    weight_column,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rows, by pointers to them, times rows of a matrix: (rows, columns)."""
    acc = tl.zeros((is_row.shape[0], is_column.shape[0]), tl.float32)
    for low in range(0, size, INNER):
        inner = low + tl.arange(0, INNER)
        is_inner = (inner < size)[None, :]
        x = tl.load(x_rows[:, None] + inner[None, :], mask=is_row[:, None] & is_inner, other=0)
        places = columns[:, None] * weight_row + inner[None, :] * weight_column
        weight = tl.load(weight_ptr + places, mask=is_column[:, None] & is_inner, other=0)
        acc = dot(x, tl.trans(weight), acc, PRECISION)
    return acc


@triton.jit
def _add_bias(acc, bias_ptr, expert, size, columns, is_column):
    bias = tl.load(bias_ptr + expert * size + columns, mask=is_column, other=0)
    return acc + bias.to(tl.float32)[None, :]


@triton.jit
def _hidden(
    x_ptr,
    gate_ptr,
    up_ptr,
    gate_bias_ptr,
    up_bias_ptr,
    out_ptr,
    ends_ptr,
    firsts_ptr,
    order_ptr,
    x_row,
    gate_expert,
    gate_row,
    gate_column,
    up_expert,
    up_row,
    up_column,
    size,
    inner,
    top,
    limit,
    alpha,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_GATE_BIAS: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """What the down projection is given of a tile of pairs, some columns of it."""
    expert, pairs, is_pair = _pairs_of(
        tl.program_id(0), ends_ptr, firsts_ptr, order_ptr, EXPERTS, ROWS
    )
    if expert >= COUNT:
        return
    expert = expert.to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < inner
    x_rows = x_ptr + pairs // top * x_row
    up = _product(
        x_rows,
        is_pair,
        up_ptr + expert * up_expert,
        columns,
        is_column,
        size,
        up_row,
        up_column,
        INNER,
        "tf32x3",
    )
    if HAS_UP_BIAS:
        up = _add_bias(up, up_bias_ptr, expert, inner, columns, is_column)
    if HAS_GATE:
        gate = _product(
            x_rows,
            is_pair,
            gate_ptr + expert * gate_expert,
            columns,
            is_column,
            size,
            gate_row,
            gate_column,
            INNER,
            "tf32x3",
        )
        if HAS_GATE_BIAS:
            gate = _add_bias(gate, gate_bias_ptr, expert, inner, columns, is_column)
        if HAS_LIMIT:
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit)
            found = gate * tl.sigmoid(alpha * gate) * (up + 1)
        else:
            found = activated(gate, ACTIVATION) * up
    else:
        found = activated(up, ACTIVATION)
    places = out_ptr + pairs[:, None] * inner + columns[None, :]
    is_kept = is_pair[:, None] & is_column[None, :]
    tl.store(places, rounded(found, out_ptr.dtype.element_ty), mask=is_kept)


@triton.jit
def _down(
    hidden_ptr,
    down_ptr,
    bias_ptr,
    weights_ptr,
    out_ptr,
    ends_ptr,
    firsts_ptr,
    order_ptr,
    down_expert,
    down_row,
    down_column,
    size,
    inner,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """The weighted outputs of a tile of pairs, some columns of them."""
    expert, pairs, is_pair = _pairs_of(
        tl.program_id(0), ends_ptr, firsts_ptr, order_ptr, EXPERTS, ROWS
    )
    if expert >= COUNT:
        return
    expert = expert.to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < size
    found = _product(
        hidden_ptr + pairs * inner,
        is_pair,
        down_ptr + expert * down_expert,
        columns,
        is_column,
        inner,
        down_row,
        down_column,
        INNER,
        "tf32x3",
    )
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


def _fits(x: Tensor, _: Tensor, __: Tensor, mlps: ExpertMlps) -> bool:
    stacks = (mlps.up, mlps.down, mlps.up if mlps.gate is None else mlps.gate)
    return all(
        isinstance(stack, Tensor) and stack.dtype == x.dtype and len(stack) <= MAX_EXPERTS
        for stack in stacks
    )


@limited_to(_fits)
def experts(x: Tensor, weights: Tensor, chosen: Tensor, mlps: ExpertMlps) -> Tensor:
    """See ``blazr.nn.ops.moe.experts``, for stacks that are plain tensors."""
    up, down, gate = mlps.up, mlps.down, mlps.up if mlps.gate is None else mlps.gate
    # as _fits says
    assert isinstance(up, Tensor)
    assert isinstance(down, Tensor)
    assert isinstance(gate, Tensor)
    count, inner, size = up.shape
    top, out = chosen.shape[1], torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    x = x if x.stride(1) == 1 else x.contiguous()
    # counted on the device, and launched for the most tiles that there can be
    pairs = chosen.flatten()
    order = pairs.argsort(stable=True)
    room = triton.next_power_of_2(count)
    counts = pairs.new_zeros(room).scatter_add_(0, pairs, torch.ones_like(pairs))
    ends = ((counts + _ROWS - 1) // _ROWS).cumsum(0)
    firsts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    tiles = min(len(pairs), len(pairs) // _ROWS + count)
    hidden = x.new_empty(len(pairs), inner)
    shares = x.new_empty(len(pairs), size, dtype=torch.float32)
    how = {
        "COUNT": count,
        "EXPERTS": room,
        "ROWS": _ROWS,
        "COLUMNS": _COLUMNS,
        # beyond, float32 would take more registers than there are
        "INNER": _INNER if x.element_size() == 2 else 32,
    }
    _hidden[tiles, triton.cdiv(inner, _COLUMNS)](
        x,
        gate,
        up,
        x if mlps.gate_bias is None else mlps.gate_bias.contiguous(),
        x if mlps.up_bias is None else mlps.up_bias.contiguous(),
        hidden,
        ends,
        firsts,
        order,
        x.stride(0),
        *gate.stride(),
        *up.stride(),
        size,
        inner,
        top,
        mlps.limit or 0.0,
        mlps.alpha,
        HAS_GATE=mlps.gate is not None,
        HAS_GATE_BIAS=mlps.gate_bias is not None,
        HAS_UP_BIAS=mlps.up_bias is not None,
        HAS_LIMIT=mlps.limit is not None,
        ACTIVATION=mlps.activation,
        **how,
    )
    _down[tiles, triton.cdiv(size, _COLUMNS)](
        hidden,
        down,
        x if mlps.down_bias is None else mlps.down_bias.contiguous(),
        weights.contiguous(),
        shares,
        ends,
        firsts,
        order,
        *down.stride(),
        size,
        inner,
        HAS_BIAS=mlps.down_bias is not None,
        **how,
    )
    _sum[len(x), triton.cdiv(size, 1024)](shares, out, size, top, COLUMNS=1024)
    return out
