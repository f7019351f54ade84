"""Attention over pages: ``csrc/attention.hpp``."""

from __future__ import annotations

from torch import Tensor

from blazr.nn.kernels.cpu.compiled import DTYPES, Call, kv_dtype_number
from blazr.nn.kernels.cpu.matmul import linear_heads
from blazr.nn.kernels.cpu.rows import MAX_KEY, MAX_VALUE, PagedRows, paged_rows, rotate_and_store
from blazr.nn.kernels.cpu.structures import Float32, Int64, Pointer, structure
from blazr.nn.kernels.kernel import limited_to
from blazr.nn.operands.attention import LatentRows, Latents, Pages, Rotation
from blazr.nn.operands.kv_dtype import stored_size
from blazr.nn.operands.step import StepTable


@structure
class _Attention(Call, entry="attention"):
    """``Attention`` of kernels.hpp."""

    q: Pointer
    keys: PagedRows
    more_keys: PagedRows
    values: PagedRows
    out: Pointer
    sinks: Pointer
    block_tables: Pointer
    spans: Pointer
    table_stride: Int64
    num_spans: Int64
    longest: Int64
    heads: Int64
    kv_heads: Int64
    window: Int64
    dtype: Int64
    stored: Int64
    temperature_length: Int64
    scale: Float32
    softcap: Float32
    temperature: Float32


@limited_to(lambda q, pages, *_: q.shape[2] <= MAX_KEY and stored_size(pages.values) <= MAX_VALUE)
def paged_attention(q: Tensor, pages: Pages, table: StepTable) -> Tensor:
    """See ``blazr.nn.ops.attention.paged_attention``."""
    keys, values = pages.keys, pages.values
    params, temperature = pages.params, pages.params.temperature
    q = q.contiguous()
    out = q.new_empty(*q.shape[:2], stored_size(values))
    _Attention(
        q.data_ptr(),
        paged_rows(keys),
        paged_rows(pages.more_keys),
        paged_rows(values),
        out.data_ptr(),
        None if params.sinks is None else params.sinks.data_ptr(),
        table.block_tables.data_ptr(),
        table.numbers.spans.data_ptr(),
        table.block_tables.shape[1],
        len(table.numbers.spans),
        table.numbers.longest,
        q.shape[1],
        keys.shape[2],
        params.window or 0,
        DTYPES[q.dtype],
        kv_dtype_number(keys),
        1 if temperature is None else temperature.length,
        params.scale,
        params.softcap or 0.0,
        0.0 if temperature is None else temperature.scale,
    ).run()
    return out


@limited_to(
    lambda _, rows, *__: (
        rows.latent.shape[1] <= MAX_VALUE and rows.latent.shape[1] + rows.q_rope.shape[2] <= MAX_KEY
    )
)
def latent_attention(  # noqa: PLR0917  (what a step takes, and where its memory is)
    q: Tensor, rows: LatentRows, memory: Latents, rotation: Rotation, table: StepTable
) -> Tensor:
    """See ``blazr.nn.ops.latent_attention.latent_attention``.

    Every token attends to the latents themselves, in prefill as in decode: one formula, so neither
    cutting a prompt elsewhere nor other sequences can change a bit.
    """
    size, latent = rows.latent.shape[1], rows.latent.unsqueeze(1)
    pages = memory.pages
    queries = q.new_empty(*q.shape[:2], size + rows.q_rope.shape[2])
    linear_heads(q, memory.k_up, queries[..., :size], memory.k_loras)
    stored = memory.keys.unsqueeze(2), pages.keys
    rotate_and_store(rows.q_rope, rows.k_rope, latent, rotation, *stored, queries[..., size:])
    mixed = paged_attention(queries, pages, table)
    return linear_heads(mixed, memory.v_up, None, memory.v_loras)
