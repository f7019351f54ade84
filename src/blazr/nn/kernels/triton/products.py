"""Products with weights, plain or as files store them, a tile at a time.

A row's sums are taken in one order, whatever is beside it: over the columns from the first to the
last, by one program. Stored weights are decoded within a tile, again for every ``_ROWS`` rows of x.
That costs nothing where the reading of the weight takes the time, up to ``MAX_ROWS`` rows; of more,
it is faster to decode once and multiply plain numbers.

These products are cuBLAS's, but for those that are to be exact: it chooses how it adds up by how
many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.device import is_exact
from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import dot, rounded
from blazr.nn.kernels.triton.tensors import dense, heads_of
from blazr.nn.kernels.triton.weights import INNER, WIDE_INNER, can_read, stored, weight_tile
from blazr.nn.operands.floats import StoredMatrix
from blazr.nn.operands.lora import UNCHANGED, HeadLoras, LoraDelta, LoraDeltas
from blazr.nn.operands.packing import ShiftedBlocks

MAX_ROWS = 256
# Of a tile: rows of x, and columns of the result; and of one of many rows times plain numbers of
# 16 bits, which adds up in the same order.
_ROWS, _COLUMNS = 64, 32
_MANY_ROWS, _MANY_COLUMNS = 128, 128
_DECODED = 2**26  # numbers that are decoded at a time


@triton.jit
def _multiply(
    x_rows,
    weight,
    up,
    bias_ptr,
    out,
    rows,
    columns,
    size,
    FORM: tl.constexpr,
    UP_FORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Some rows of x times some of the weight's; perhaps its ``silu`` times another product."""
    head = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < rows, column < columns
    (x_ptr, x_row, x_head), (out_ptr, out_row, out_head) = x_rows, out
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    ups = tl.zeros((ROWS, COLUMNS), tl.float32)
    for low in range(0, size, INNER):
        inner = low + tl.arange(0, INNER)
        is_number = is_row[:, None] & (inner < size)[None, :]
        places = head * x_head + row[:, None] * x_row + inner[None, :]
        x = tl.load(x_ptr + places, mask=is_number, other=0)
        tile = weight_tile(weight, head, column, is_column, low, size, x.dtype, FORM, INNER)
        acc = dot(x, tl.trans(tile), acc)
        if IS_GATED:
            tile = weight_tile(up, head, column, is_column, low, size, x.dtype, UP_FORM, INNER)
            ups = dot(x, tl.trans(tile), ups)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + column, mask=is_column, other=0)
        acc += bias.to(tl.float32)[None, :]
    if IS_GATED:
        acc = acc * tl.sigmoid(acc) * ups
    places = out_ptr + head * out_head + row[:, None] * out_row + column[None, :]
    is_kept = is_row[:, None] & is_column[None, :]
    tl.store(places, rounded(acc, out_ptr.dtype.element_ty), mask=is_kept)


def _product(
    x: Tensor,
    weight: Tensor | StoredMatrix,
    out: Tensor,
    *,
    up: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """``out[:, h] = x[:, h] weight[h].T``, (T, H, in) to (T, H, out); see `_multiply`."""
    if not out.numel():
        return
    x = dense(x)
    inner = INNER if x.element_size() == 2 else WIDE_INNER
    rows, heads, columns = out.shape
    arguments, form = stored(weight, inner)
    ups, up_form = (arguments, form) if up is None else stored(up, inner)
    height, width = _ROWS, _COLUMNS
    if rows > MAX_ROWS and inner == INNER and isinstance(weight, Tensor):
        height, width = _MANY_ROWS, _MANY_COLUMNS if up is None else _MANY_COLUMNS // 2
    _multiply[triton.cdiv(columns, width), triton.cdiv(rows, height), heads](
        heads_of(x),
        arguments,
        ups,
        x if bias is None else bias.contiguous(),
        heads_of(out),
        rows,
        columns,
        x.shape[2],
        FORM=form,
        UP_FORM=up_form,
        HAS_BIAS=bias is not None,
        IS_GATED=up is not None,
        ROWS=height,
        COLUMNS=width,
        INNER=inner,
        num_warps=4 if height == _ROWS else 8,
    )


@triton.jit
def _decode(
    weight,
    out_ptr,
    first,
    rows,
    size,
    FORM: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Some rows of a weight from ``first`` on, a tile of them."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    low = tl.program_id(1) * INNER
    inner = low + tl.arange(0, INNER)
    is_row = row < rows
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tile = weight_tile(weight, 0, first + row, is_row, low, size, dtype, FORM, INNER)
    is_number = is_row[:, None] & (inner < size)[None, :]
    tl.store(out_ptr + row[:, None] * size + inner[None, :], tile, mask=is_number)


def _decoded(weight: StoredMatrix, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a weight as plain numbers, in the dtype of another tensor, some at a time."""
    rows, size = weight.shape
    arguments, form = stored(weight, INNER)
    step = max(1, _DECODED // max(1, size))
    for low in range(0, rows, step):
        count = min(step, rows - low)
        numbers = like.new_empty(count, size)
        if numbers.numel():
            grid = triton.cdiv(count, _COLUMNS), triton.cdiv(size, INNER)
            _decode[grid](
                arguments, numbers, low, count, size, FORM=form, ROWS=_COLUMNS, INNER=INNER
            )
        yield slice(low, low + count), numbers


def _matrix(x: Tensor, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """What a product with one matrix puts out, and its and x's rows as `_product` takes them."""
    out = torch.empty(*x.shape[:-1], columns, dtype=dtype, device=x.device)
    count = x.shape[:-1].numel()
    return out, x.reshape(count, 1, x.shape[-1]), out.view(count, 1, columns)


@limited_to(lambda _, weight, *__, **___: can_read(weight))
def stored_linear(x: Tensor, weight: StoredMatrix, bias: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.stored.stored_linear``."""
    if isinstance(weight, ShiftedBlocks) and weight.order is not None:
        x = x.index_select(-1, weight.order)
    out, rows, places = _matrix(x, weight.shape[0], x.dtype)
    if len(rows) <= MAX_ROWS:
        _product(rows, weight, places, bias=bias)
        return out
    for tile, numbers in _decoded(weight, x):
        own = None if bias is None else bias[tile]
        if is_exact():
            _product(rows, numbers, places[..., tile], bias=own)
        else:
            out[..., tile] = F.linear(x, numbers, own)
    return out


def _is_plain(
    x: Tensor, weight: Tensor, _: Tensor | None = None, lora: LoraDelta | None = None
) -> bool:
    return lora is None and x.dtype == weight.dtype


@limited_to(_is_plain)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, lora: LoraDelta | None = None
) -> Tensor:
    """See ``blazr.nn.ops.matmul.linear``."""
    del lora
    out, rows, places = _matrix(x, len(weight), x.dtype)
    _product(rows, weight, places, bias=bias)
    return out


@limited_to(_is_plain)
def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.matmul.wide_linear``."""
    out, rows, places = _matrix(x, len(weight), torch.float32)
    _product(rows, weight, places, bias=bias)
    return out


def _are_plain(x: Tensor, gate: Tensor, up: Tensor, loras: LoraDeltas = UNCHANGED) -> bool:
    return loras == UNCHANGED and x.dtype == gate.dtype == up.dtype


@limited_to(_are_plain)
def gated_linear(x: Tensor, gate: Tensor, up: Tensor, loras: LoraDeltas = UNCHANGED) -> Tensor:
    """See ``blazr.nn.ops.matmul.gated_linear``; rounds once, at the end."""
    del loras
    out, rows, places = _matrix(x, len(gate), x.dtype)
    _product(rows, gate, places, up=up)
    return out


def _are_heads(
    x: Tensor, weight: Tensor, _: Tensor | None = None, loras: HeadLoras | None = None
) -> bool:
    return loras is None and x.dtype == weight.dtype


@limited_to(_are_heads)
def linear_heads(
    x: Tensor, weight: Tensor, out: Tensor | None = None, loras: HeadLoras | None = None
) -> Tensor:
    """See ``blazr.nn.ops.matmul.linear_heads``."""
    del loras
    out = x.new_empty(*x.shape[:2], weight.shape[1]) if out is None else out
    _product(x, weight, out)
    return out
