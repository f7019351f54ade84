"""What is done with each row by itself: norms, and rotation with the writing of keys and values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import rounded, store_stored
from blazr.nn.kernels.triton.tensors import dense, heads_of, pages_of, rows_of
from blazr.nn.operands.attention import Rotation
from blazr.nn.operands.kv_dtype import kind_of
from blazr.nn.operands.step import GRID

MAX_NORM, MAX_HEAD = 16384, 1024
# Numbers of a tile, where rows are shorter; heads of a token that a program rotates.
_NUMBERS, _HEADS = 1024, 8


@triton.jit
def _norm(
    x_ptr,
    weight_ptr,
    bias_ptr,
    change_ptr,
    total_ptr,
    out_ptr,
    rows,
    inner,
    x_outer,
    x_inner,
    weight_step,
    bias_step,
    size,
    eps,
    factor,
    KIND: tl.constexpr,
    HAS_CHANGE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some rows, ``inner`` of which lie in each outer one. They are rounded once.

    With a change that is added to them first, the total is rounded and written, too.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    places = tl.arange(0, BLOCK)
    is_number = (row < rows)[:, None] & (places < size)[None, :]
    starts = row // inner * x_outer + row % inner * x_inner
    outputs = row[:, None] * size + places[None, :]
    found = tl.load(x_ptr + starts[:, None] + places[None, :], mask=is_number, other=0)
    if HAS_CHANGE:
        change = tl.load(change_ptr + outputs, mask=is_number, other=0).to(tl.float32)
        found = rounded(found.to(tl.float32) + change * factor, found.dtype)
        tl.store(total_ptr + outputs, found, mask=is_number)
    x = found.to(tl.float32)
    weight = tl.load(weight_ptr + places * weight_step, mask=places < size, other=0)
    weight = weight.to(tl.float32)[None, :]
    if KIND == "layer":
        x = tl.where(is_number, x - (tl.sum(x, 1) / size)[:, None], 0)
    x = x * tl.rsqrt(tl.sum(x * x, 1) / size + eps)[:, None]
    if KIND == "layer":
        bias = tl.load(bias_ptr + places * bias_step, mask=places < size, other=0)
        x = x * weight + bias.to(tl.float32)[None, :]
    elif KIND == "unit offset":
        x = x * (1 + weight)
    else:
        x = x * weight
    tl.store(out_ptr + outputs, rounded(x, found.dtype), mask=is_number)


def _normalise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    kind: str,
    *,
    change: Tensor | None = None,
    factor: float = 1.0,
) -> Tensor:
    """The rows of x; with a change that is added to them first, (2, ...), the totals before."""
    parts = () if change is None else (2,)
    out = torch.empty(*parts, *x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    total, normed = (out, out) if change is None else out
    size = x.shape[-1]
    whole = dense(x.reshape(-1, *x.shape[-2:]) if x.dim() > 1 else x[None, None])
    block = triton.next_power_of_2(size)
    rows, at_once = len(whole) * whole.shape[1], max(1, _NUMBERS // block)
    _norm[(triton.cdiv(rows, at_once),)](
        whole,
        weight,
        bias,
        x if change is None else change.contiguous(),
        total,
        normed,
        rows,
        whole.shape[1],
        *whole.stride()[:2],
        weight.stride(0),
        bias.stride(0),
        size,
        eps,
        factor,
        KIND=kind,
        HAS_CHANGE=change is not None,
        ROWS=at_once,
        BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
    )
    return out


def _fits_norm(x: Tensor, *_: object, **__: object) -> bool:
    return x.shape[-1] <= MAX_NORM


@limited_to(_fits_norm)
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, unit_offset: bool = False) -> Tensor:
    """See ``blazr.nn.ops.norm.rms_norm``."""
    return _normalise(x, weight, weight, eps, "unit offset" if unit_offset else "rms")


@limited_to(_fits_norm)
def add_rms_norm(
    x: Tensor,
    change: Tensor,
    weight: Tensor,
    eps: float,
    factor: float = 1.0,
    *,
    unit_offset: bool = False,
) -> Tensor:
    """See ``blazr.nn.ops.norm.add_rms_norm``."""
    kind = "unit offset" if unit_offset else "rms"
    return _normalise(x, weight, weight, eps, kind, change=change, factor=factor)


@limited_to(_fits_norm)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See ``blazr.nn.ops.norm.layer_norm``."""
    return _normalise(x, weight, bias, eps, "layer")


@triton.jit
def _rotated(
    rows,
    is_row,
    cos_ptr,
    sin_ptr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows, (n, BLOCK), float32, from pointers to them, their first 2 * PAIRS numbers rotated."""
    columns = tl.arange(0, BLOCK)
    if INTERLEAVED:
        partner, pair, is_first = columns ^ 1, columns // 2, columns % 2 == 0
    else:
        is_first = columns < PAIRS
        partner = tl.where(is_first, columns + PAIRS, columns - PAIRS)
        pair = tl.where(is_first, columns, columns - PAIRS)
    is_rotated = columns < 2 * PAIRS
    is_number = is_row[:, None] & (columns < SIZE)[None, :]
    own = tl.load(rows[:, None] + columns[None, :], mask=is_number, other=0).to(tl.float32)
    is_other = is_row[:, None] & is_rotated[None, :]
    other = tl.load(rows[:, None] + partner[None, :], mask=is_other, other=0).to(tl.float32)
    cos = tl.load(cos_ptr + pair, mask=is_rotated, other=1)
    sin = tl.load(sin_ptr + pair, mask=is_rotated, other=0)
    sin = tl.where(is_first, -sin, sin)
    return own * cos[None, :] + other * sin[None, :]


@triton.jit
def _rotate(
    q,
    k,
    v,
    out,
    cos,
    sin,
    slots_ptr,
    keys,
    values,
    heads,
    kv_heads,
    tiles,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    STORED: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Some heads of a token, of queries or of keys and values."""
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    (cos_ptr, cos_row), (sin_ptr, sin_row) = cos, sin
    cos_ptr += token * cos_row
    sin_ptr += token * sin_row
    if tile < tiles:
        q_ptr, q_row, q_head = q
        out_ptr, out_row, out_head = out
        head = tile * HEADS + tl.arange(0, HEADS)
        is_head, columns = head < heads, tl.arange(0, BLOCK)
        found = _rotated(
            q_ptr + token * q_row + head * q_head,
            is_head,
            cos_ptr,
            sin_ptr,
            PAIRS,
            INTERLEAVED,
            SIZE,
            BLOCK,
        )
        places = out_ptr + token * out_row + head[:, None] * out_head + columns[None, :]
        is_number = is_head[:, None] & (columns < SIZE)[None, :]
        tl.store(places, rounded(found, out_ptr.dtype.element_ty), mask=is_number)
    else:
        # names of its own, because what two branches name alike must be of one shape
        k_ptr, k_row, k_head = k
        v_ptr, v_row, v_head = v
        keys_ptr, key_page, key_row, key_head = keys
        values_ptr, value_page, value_row, value_head = values
        kv_head = (tile - tiles) * KV_HEADS + tl.arange(0, KV_HEADS)
        is_kv_head = kv_head < kv_heads
        rotated = _rotated(
            k_ptr + token * k_row + kv_head * k_head,
            is_kv_head,
            cos_ptr,
            sin_ptr,
            PAIRS,
            INTERLEAVED,
            SIZE,
            BLOCK,
        )
        slot = tl.load(slots_ptr + token)
        page, row = slot // PAGE, slot % PAGE
        # what is stored in fewer bits is made of what it is computed in
        rotated = rounded(rotated, k_ptr.dtype.element_ty)
        to = keys_ptr + page * key_page + row * key_row + kv_head * key_head
        store_stored(to, is_kv_head, rotated, SIZE, BLOCK, STORED)
        value_columns = tl.arange(0, VALUE_BLOCK)
        is_value = is_kv_head[:, None] & (value_columns < VALUE)[None, :]
        v_rows = v_ptr + token * v_row + kv_head * v_head
        found_v = tl.load(v_rows[:, None] + value_columns[None, :], mask=is_value, other=0)
        to = values_ptr + page * value_page + row * value_row + kv_head * value_head
        store_stored(to, is_kv_head, found_v, VALUE, VALUE_BLOCK, STORED)


@limited_to(lambda q, _, v, *__: max(q.shape[2], v.shape[2]) <= MAX_HEAD)
def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotation: Rotation,
    keys: Tensor,
    values: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """See ``blazr.nn.ops.rope.rotate_and_store``."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    if not len(q):
        return out
    (_, heads, size), (_, kv_heads, value) = q.shape, v.shape
    kv_at_once = max(1, min(_HEADS, triton.next_power_of_2(kv_heads)))
    tiles = triton.cdiv(heads, _HEADS)
    _rotate[len(q), tiles + triton.cdiv(kv_heads, kv_at_once)](
        *(heads_of(dense(each)) for each in (q, k, v)),
        heads_of(out),
        rows_of(rotation.cos),
        rows_of(rotation.sin),
        rotation.slots,
        pages_of(keys),
        pages_of(values),
        heads,
        kv_heads,
        tiles,
        PAIRS=rotation.cos.shape[1],
        INTERLEAVED=rotation.interleaved,
        SIZE=size,
        BLOCK=max(32, triton.next_power_of_2(size)),
        VALUE=value,
        VALUE_BLOCK=max(32, triton.next_power_of_2(value)),
        STORED=kind_of(keys),
        HEADS=_HEADS,
        KV_HEADS=kv_at_once,
        PAGE=GRID,
    )
    return out
