"""Attention over pages: one kernel for prompts and for replies.

The keys of a sequence are cut into parts of ``ATTENTION_PART`` tokens from position 0. Of each part
the softmax is computed by itself, and parts are joined in their order; in a prompt one program does
so, and for a reply each part has a program of its own. Both multiply tiles of the same size, so
that an output depends on its query and on the tokens before it alone: not on other sequences, nor
on where a prompt was cut.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.device import is_exact
from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import LOG2_E, dot, load_stored, tanh
from blazr.nn.kernels.triton.products import linear_heads
from blazr.nn.kernels.triton.rows import rotate_and_store
from blazr.nn.kernels.triton.tensors import dense, heads_of, pages_of
from blazr.nn.operands.attention import LatentRows, Latents, Pages, Rotation
from blazr.nn.operands.kv_dtype import kind_of, stored_size
from blazr.nn.operands.step import ATTENTION_PART, GRID, StepTable

MAX_KEY, MAX_MORE, MAX_VALUE = 512, 128, 512
# A tile has so many rows, each a head's query of a token: what wgmma multiplies at once.
_QUERIES = 64
# Columns of values that a program takes; of more, scores are computed again for the next ones.
_COLUMNS = 256


@triton.jit
def _join(m, total, acc, other_m, other_total, other_acc):
    """The softmax over two sets of keys from that over each.

    Of each set: the largest score, the sum of exponentials of the distances to it, and the sum of
    values with these weights; scores have base 2.
    """
    most = tl.maximum(m, other_m)
    base = tl.where(most == float("-inf"), 0.0, most)  # both sets may be empty
    own, other = tl.exp2(m - base), tl.exp2(other_m - base)
    total = tl.fma(total, own, other_total * other)
    own, other = tl.expand_dims(own, -1), tl.expand_dims(other, -1)
    # fma in so many words: or it would depend on the compiler which product is rounded
    shape: tl.constexpr = acc.shape
    return most, total, tl.fma(acc, tl.broadcast_to(own, shape), other_acc * other)


@triton.jit
def _attend_part(
    q,
    q_more,
    positions,
    low,
    high,
    table,
    keys,
    more_keys,
    values,
    scale,
    softcap,
    window,
    SIZE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    MORE: tl.constexpr,
    MORE_BLOCK: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    STORED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Softmax over the keys from ``low`` to ``high``, as :func:`_join` takes it.

    Keys and values are those of a head: pointers, and elements from page to page and row to row.
    """
    key_ptr, key_page, key_row = keys
    more_ptr, more_page, more_row = more_keys
    value_ptr, value_page, value_row = values
    m = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, VALUE_BLOCK), tl.float32)
    for block in range(low // KEYS, tl.cdiv(high, KEYS)):
        places = block * KEYS + tl.arange(0, KEYS)
        is_key = places < high
        page = tl.load(table + block * KEYS // PAGE)
        rows = (places % PAGE).to(tl.int64)
        k_rows = key_ptr + page * key_page + rows * key_row
        k = load_stored(k_rows, is_key, SIZE, KEY_BLOCK, STORED, q.dtype)
        scores = dot(q, tl.trans(k))
        if MORE:
            k_rows = more_ptr + page * more_page + rows * more_row
            k = load_stored(k_rows, is_key, MORE, MORE_BLOCK, STORED, q.dtype)
            scores = dot(q_more, tl.trans(k), scores)
        if HAS_SOFTCAP:
            scores = tanh(scores * (scale / softcap)) * (softcap * LOG2_E)
        else:
            scores = scores * (scale * LOG2_E)
        is_seen = is_key[None, :] & (places[None, :] <= positions[:, None])
        if HAS_WINDOW:
            is_seen = is_seen & (places[None, :] > positions[:, None] - window)
        scores = tl.where(is_seen, scores, float("-inf"))
        most = tl.maximum(m, tl.max(scores, 1))
        base = tl.where(most == float("-inf"), 0.0, most)
        shares = tl.exp2(scores - base[:, None])
        fade = tl.exp2(m - base)
        total = total * fade + tl.sum(shares, 1)
        v_rows = value_ptr + page * value_page + rows * value_row
        v = load_stored(v_rows, is_key, VALUE, VALUE_BLOCK, STORED, q.dtype)
        acc = dot(shares.to(q.dtype), v, acc * fade[:, None])
        m = most
    return m, total, acc


@triton.jit
def _attention(
    q_rows,
    keys,
    more_keys,
    values,
    out_ptr,
    sums_ptr,
    ends_ptr,
    sinks_ptr,
    tables_ptr,
    spans_ptr,
    parts_ptr,
    table_stride,
    first_sequence,
    heads,
    scale,
    softcap,
    window,
    temperature,
    temperature_length,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    MORE: tl.constexpr,
    MORE_BLOCK: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    STORED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_PART: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    PART: tl.constexpr,
    SPAN: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK_WIDTH: tl.constexpr,
):
    """A tile of queries of one sequence, and one head of keys.

    Programs: parts of sequences' keys (or sequences), tiles, heads of keys and chunks of values.
    """
    place, tile = tl.program_id(0), tl.program_id(1)
    kv_head, chunk = tl.program_id(2) // CHUNKS, tl.program_id(2) % CHUNKS
    sequence = first_sequence + place
    if IS_PART:
        sequence = tl.load(parts_ptr + 2 * place)
    first = tl.load(spans_ptr + sequence * SPAN)
    length = tl.load(spans_ptr + sequence * SPAN + 1).to(tl.int32)
    start = tl.load(spans_ptr + sequence * SPAN + 2).to(tl.int32)
    first_token = tile * QUERIES // GROUP
    if first_token >= length:
        return

    rows = tile * QUERIES + tl.arange(0, QUERIES)
    tokens, head = rows // GROUP, kv_head * GROUP + rows % GROUP
    is_query, positions = tokens < length, start + tokens
    q_ptr, q_row, q_head = q_rows
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    queries = q_ptr + (first + tokens) * q_row + head * q_head
    q = load_stored(queries, is_query, SIZE, KEY_BLOCK, "auto", dtype)
    q_more = q
    if MORE:
        q_more = load_stored(queries + SIZE, is_query, MORE, MORE_BLOCK, "auto", dtype)
    if HAS_TEMPERATURE:
        factor = 1 + temperature * tl.log((1 + positions // temperature_length).to(tl.float32))
        q = (q.to(tl.float32) * factor[:, None]).to(dtype)
        q_more = (q_more.to(tl.float32) * factor[:, None]).to(dtype)

    # what the tile's queries see together
    last_token = tl.minimum((tile * QUERIES + QUERIES - 1) // GROUP, length - 1)
    low, high = 0, start + last_token + 1
    if HAS_WINDOW:
        low = tl.maximum(0, start + first_token - window + 1)
    first_part, last_part = low // PART, tl.cdiv(high, PART)
    if IS_PART:
        first_part = tl.load(parts_ptr + 2 * place + 1).to(tl.int32)
        last_part = first_part + 1
    table = tables_ptr + sequence * table_stride
    key_ptr, key_page, key_row, key_head = keys
    more_ptr, more_page, more_row, more_head = more_keys
    value_ptr, value_page, value_row, value_head = values
    own_keys = key_ptr + kv_head * key_head, key_page, key_row
    own_more = more_ptr + kv_head * more_head, more_page, more_row
    own_values = value_ptr + kv_head * value_head + chunk * CHUNK_WIDTH, value_page, value_row

    m = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, VALUE_BLOCK), tl.float32)
    for part in range(first_part, last_part):
        part_m, part_total, part_acc = _attend_part(
            q,
            q_more,
            positions,
            tl.maximum(low, part * PART),
            tl.minimum(high, part * PART + PART),
            table,
            own_keys,
            own_more,
            own_values,
            scale,
            softcap,
            window,
            SIZE,
            KEY_BLOCK,
            MORE,
            MORE_BLOCK,
            VALUE // CHUNKS,
            VALUE_BLOCK,
            STORED,
            HAS_SOFTCAP,
            HAS_WINDOW,
            QUERIES,
            KEYS,
            PAGE,
        )
        if IS_PART:
            m, total, acc = part_m, part_total, part_acc
        else:
            m, total, acc = _join(m, total, acc, part_m, part_total, part_acc)

    columns = chunk * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)
    is_kept = is_query[:, None] & (columns < VALUE)[None, :]
    if IS_PART:
        row = (place * heads + head).to(tl.int64)  # many sequences have many parts
        tl.store(sums_ptr + row[:, None] * VALUE + columns[None, :], acc, mask=is_kept)
        tl.store(ends_ptr + row * 2, m, mask=is_query)
        tl.store(ends_ptr + row * 2 + 1, total, mask=is_query)
    else:
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2_E
            m, total, acc = _join(m, total, acc, sink, total * 0 + 1, acc * 0)
        row = (first + tokens) * heads + head
        found = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row[:, None] * VALUE + columns[None, :], found, mask=is_kept)


@triton.jit
def _join_parts(
    sums_ptr,
    ends_ptr,
    out_ptr,
    sinks_ptr,
    firsts_ptr,
    spans_ptr,
    heads,
    VALUE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """One head of one sequence that computes one token."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, VALUE_BLOCK)
    m = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, VALUE_BLOCK), tl.float32)
    one = tl.arange(0, 1)
    for place in range(
        tl.load(firsts_ptr + sequence).to(tl.int32), tl.load(firsts_ptr + sequence + 1).to(tl.int32)
    ):
        row = (place * heads + head + one).to(tl.int64)
        part = tl.load(
            sums_ptr + row[:, None] * VALUE + columns[None, :], mask=columns[None, :] < VALUE
        )
        m, total, acc = _join(
            m, total, acc, tl.load(ends_ptr + row * 2), tl.load(ends_ptr + row * 2 + 1), part
        )
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head + one).to(tl.float32) * LOG2_E
        m, total, acc = _join(m, total, acc, sink, total * 0 + 1, acc * 0)
    row = tl.load(spans_ptr + sequence * SPAN) * heads + head + one
    found = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(
        out_ptr + row[:, None] * VALUE + columns[None, :], found, mask=columns[None, :] < VALUE
    )


def _has_room(pages: Pages, more: int) -> bool:
    size, value = stored_size(pages.keys), stored_size(pages.values)
    is_whole = value <= _COLUMNS or value % _COLUMNS == 0
    return size <= MAX_KEY and more <= MAX_MORE and value <= MAX_VALUE and is_whole


def _fits(q: Tensor, pages: Pages, _: StepTable) -> bool:
    return _has_room(pages, q.shape[2] - stored_size(pages.keys))


def _block(size: int) -> int:
    """Columns of a tile: a power of two that wgmma, and blocks of Q8_0, can be made of."""
    return max(32, triton.next_power_of_2(size))


@limited_to(_fits)
def paged_attention(q: Tensor, pages: Pages, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.attention.paged_attention``."""
    q = dense(q)
    keys, values = pages.keys, pages.values
    more_keys = keys if pages.more_keys is None else pages.more_keys
    size, value, heads, kv_heads = stored_size(keys), stored_size(values), q.shape[1], keys.shape[2]
    group, more = heads // kv_heads, q.shape[2] - size
    chunks = max(1, value // _COLUMNS)
    numbers, params, temperature = table.numbers, pages.params, pages.params.temperature
    out = q.new_empty(*q.shape[:2], value)
    # what registers suffice for, by the compiled code
    is_small = q.dtype != torch.float32 and size <= 128
    keys_at_once, stages = (GRID, 2) if is_small else (16, 2 if q.element_size() == 2 else 1)
    warps = 4 if is_small and size <= 64 else 8
    sinks = out if params.sinks is None else params.sinks
    parts = table.decode_parts
    sums = q.new_empty(len(parts.places), heads, value, dtype=torch.float32)
    ends = q.new_empty(len(parts.places), heads, 2, dtype=torch.float32)

    def attend(count: int, first_sequence: int, longest: int, *, is_part: bool) -> None:
        tiles = triton.cdiv(longest * group, _QUERIES)
        if not count or not tiles:
            return
        _attention[count, tiles, kv_heads * chunks](
            heads_of(q),
            *map(pages_of, (keys, more_keys, values)),
            out,
            sums,
            ends,
            sinks,
            table.block_tables,
            numbers.spans,
            parts.places,
            table.block_tables.stride(0),
            first_sequence,
            heads,
            params.scale,
            params.softcap or 1.0,
            params.window or 0,
            0.0 if temperature is None else temperature.scale,
            1 if temperature is None else temperature.length,
            GROUP=group,
            SIZE=size,
            KEY_BLOCK=_block(size),
            MORE=more,
            MORE_BLOCK=_block(more),
            VALUE=value,
            VALUE_BLOCK=_block(value // chunks),
            STORED=kind_of(keys),
            HAS_SOFTCAP=params.softcap is not None,
            HAS_WINDOW=params.window is not None,
            HAS_TEMPERATURE=temperature is not None,
            HAS_SINKS=params.sinks is not None,
            IS_PART=is_part,
            QUERIES=_QUERIES,
            KEYS=keys_at_once,
            PAGE=GRID,
            PART=ATTENTION_PART,
            SPAN=numbers.spans.stride(0),
            CHUNKS=chunks,
            CHUNK_WIDTH=values.shape[3] // chunks,
            num_warps=warps,
            num_stages=stages,
        )

    decodes = table.num_decodes
    attend(len(parts.places), 0, min(decodes, 1), is_part=True)
    attend(len(table.spans) - decodes, decodes, numbers.longest, is_part=False)
    if decodes:
        _join_parts[decodes, heads](
            sums,
            ends,
            out,
            sinks,
            parts.firsts,
            numbers.spans,
            heads,
            VALUE=value,
            VALUE_BLOCK=_block(value),
            HAS_SINKS=params.sinks is not None,
            SPAN=numbers.spans.stride(0),
            num_warps=1,
        )
    return out


def _fits_latents(
    _: Tensor, rows: LatentRows, memory: Latents, __: Rotation, ___: StepTable
) -> bool:
    has_loras = memory.k_loras is not None or memory.v_loras is not None
    return not has_loras and _has_room(memory.pages, rows.q_rope.shape[2])


@limited_to(_fits_latents)
def latent_attention(
    q: Tensor, rows: LatentRows, memory: Latents, rotation: Rotation, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.latent_attention.latent_attention``.

    Prompts attend to the latents themselves, too: a row has then the same bits in either.
    """
    latent = memory.k_up.shape[1]
    queries = q.new_empty(*q.shape[:2], latent + rows.q_rope.shape[2])
    _by_head(q, memory.k_up, queries[..., :latent])
    rotate_and_store(
        rows.q_rope,
        rows.k_rope,
        rows.latent.unsqueeze(1),
        rotation,
        memory.keys.unsqueeze(2),
        memory.latents.unsqueeze(2),
        out=queries[..., latent:],
    )
    mixed = paged_attention(queries, memory.pages, table)
    return _by_head(mixed, memory.v_up, mixed.new_empty(*q.shape[:2], memory.v_up.shape[1]))


def _by_head(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """``out[:, h] = x[:, h] weight[h].T``."""
    if is_exact():
        return linear_heads(x, weight, out)
    if len(x):
        torch.bmm(x.transpose(0, 1), weight.transpose(1, 2), out=out.transpose(0, 1))
    return out
