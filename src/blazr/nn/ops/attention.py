"""Causal attention over tokens in memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.attention import AttentionParams, AttentionTemperature, Pages
from blazr.nn.operands.kv_dtype import read_pages, stored_size
from blazr.nn.operands.step import SequenceGroup, StepTable
from blazr.nn.ops.op import op

# Where scores are computed in the open: they take this many rows of memory, not one per token.
QUERIES_AT_ONCE = 64


def causal_mask(
    num_queries: int, num_keys: int, *, window: int | None = None, device: torch.device
) -> Tensor | None:
    """Which keys each of the last ``num_queries`` positions may see.

    Args:
        num_queries: Q, at the end of the sequence.
        num_keys: S, from position 0.
        window: Keys further back than this many tokens are hidden; None hides none.
        device: Where the mask lives.

    Returns:
        (Q, S) bool, True where visible; None if everything is.
    """
    if num_queries == 1 and (window is None or num_keys <= window):
        return None
    queries = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    keys = torch.arange(num_keys, device=device)
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    return visible


def attention(q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
    """Grouped-query attention of the last Q positions of one or many equally long sequences.

    Query head h uses key/value head ``h // (H // K)``.

    Args:
        q: (..., Q, H, D).
        k: (..., S, K, D), all tokens in memory, S >= Q.
        v: (..., S, K, E), E at most D.
        params: How they attend; the temperature is in the queries already.

    Returns:
        (..., Q, H, E) in the dtype of q.
    """
    queries, keys, window = q.shape[-3], k.shape[-3], params.window
    is_square = queries == keys and queries > 1 and window is None and not _needs_scores(params)
    visible = None
    if not is_square:
        visible = causal_mask(queries, keys, window=window, device=q.device)
    return _attend(q, k, v, visible, params, is_causal=is_square)


def _needs_scores(params: AttentionParams) -> bool:
    """Whether scores are computed here: torch's own attention has no cap and no sinks."""
    return params.softcap is not None or params.sinks is not None


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    params: AttentionParams,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Attention of queries to the keys they may see, whatever the window.

    Args:
        q: See `attention`.
        k: See `attention`.
        v: See `attention`.
        visible: (Q, S), bool; None is all.
        params: See `attention`.
        is_causal: Whether, of as many keys as queries, each sees those up to its own; without cap
            and sinks.
    """
    queries, size = q.shape[-3], v.shape[-1]
    if _needs_scores(params):
        # some queries at a time, in float32
        heads = k.shape[-2]
        # keys and values: (..., K, 1, S, D)
        keys, values = (t.float().transpose(-3, -2).unsqueeze(-3) for t in (k, v))
        grouped = q.float().unflatten(-2, (heads, -1)).movedim(-4, -2)  # (..., K, H / K, Q, D)
        parts = []
        for first in range(0, queries, QUERIES_AT_ONCE):
            rows = slice(first, first + QUERIES_AT_ONCE)
            scores = torch.matmul(grouped[..., rows, :], keys.transpose(-2, -1)) * params.scale
            seen = None if visible is None else visible[rows]
            parts.append(torch.matmul(_shares(scores, seen, params), values))
        return torch.cat(parts, -2).movedim(-2, -4).flatten(-3, -2).to(q.dtype)  # (..., Q, H, E)
    q, k, v = (t.transpose(-3, -2) for t in (q, k, v))  # (..., heads, tokens, D)
    group = q.shape[-3] // k.shape[-3]
    if group > 1:
        k = k.repeat_interleave(group, -3)
        v = v.repeat_interleave(group, -3)
    if size < q.shape[-1]:  # torch's fast paths want equal sizes
        v = F.pad(v, (0, q.shape[-1] - size))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, is_causal=is_causal, scale=params.scale
    )
    return out[..., :size].transpose(-3, -2)


def _shares(scores: Tensor, visible: Tensor | None, params: AttentionParams) -> Tensor:
    """Softmax of the scores (..., K, H / K, Q, S), capped before and with sinks beside."""
    softcap, sinks = params.softcap, params.sinks
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is None:
        return scores.softmax(-1)
    beside = sinks.float().view(*scores.shape[-4:-2], 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, beside), -1).softmax(-1)[..., :-1]


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, params: AttentionParams
) -> Tensor:
    """Grouped-query attention of one new token in each of B sequences of different lengths.

    With one key/value head whose keys are latents and rotated parts side by side, and whose values
    are the latents, this is multi-head latent attention in its absorbed form: the key up-projection
    is in the queries, the value up-projection comes after [arXiv:2405.04434, section 2.1].

    Args:
        q: (B, H, D).
        k: (B, S, K, D), room for S tokens.
        v: (B, S, K, E).
        visible: (B, S), bool: the first tokens; behind them may lie anything, NaN too.
        params: As in `attention`.

    Returns:
        (B, H, E), float32: this is where bfloat16 would lose most, and is slowest on a CPU.
    """
    if params.window is not None:
        places = torch.arange(visible.shape[1], device=q.device)
        visible = visible & (places >= visible.sum(1, keepdim=True) - params.window)
    heads = k.shape[2]
    query = q.float().unflatten(1, (heads, -1))  # (B, K, H / K, D)
    keys, values = (
        t.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format) for t in (k, v)
    )
    scores = torch.matmul(query, keys.transpose(2, 3)) * params.scale  # (B, K, H / K, S)
    shares = _shares(scores.unsqueeze(3), visible[:, None, None, None], params)
    values = values.masked_fill(~visible[:, None, :, None], 0)  # as 0 times NaN is NaN
    return torch.matmul(shares.squeeze(3), values).flatten(1, 2)


def prefilling(table: StepTable) -> tuple[SequenceGroup, ...]:
    """The groups of sequences that do not decode."""
    return table.groups[1:] if table.num_decodes else table.groups


def read_group(
    stored: Tensor, table: StepTable, group: SequenceGroup, dtype: torch.dtype
) -> Tensor:
    """What a group has in memory: (pages, GRID, ...) to (B, tokens, ...)."""
    total = group.spans[0].total
    pages = table.block_tables[group.indices, : -(-total // stored.shape[1])]
    return read_pages(stored, pages, dtype)[:, :total]


def scale_queries(q: Tensor, temperature: AttentionTemperature | None, positions: Tensor) -> Tensor:
    """Let queries (..., H, D) grow with their positions, (...)."""
    if temperature is None:
        return q
    lengths = 1 + positions // temperature.length
    factors = 1 + temperature.scale * lengths.float().log()
    return (q.float() * factors[..., None, None]).to(q.dtype)


def attend_bidirectionally(out: Tensor, q: Tensor, pages: Pages, table: StepTable) -> None:
    """Attend again where tokens attend to later ones, as those of an image may.

    They attend to all tokens before the end of their span, within the window if that counts.
    Whichever of them were computed before, the same shapes are computed, so that the numbers are
    the same.

    Args:
        out: What `paged_attention` gives, (T, H, E); rows of these tokens are replaced.
        q: Queries, (T, H, D), rotated.
        pages: Keys and values of all tokens up to these, and how they are attended to.
        table: The step.
    """
    params = pages.params
    for number, first, last, has_window in table.bidirectional_spans:
        span = table.spans[number]
        rows = slice(span.first + max(first - span.start, 0), span.first + last - span.start)
        count = rows.stop - rows.start
        queries = q.new_zeros(last - first, *q.shape[1:])
        queries[-count:] = q[rows]
        places = torch.arange(last, device=q.device)
        queries = scale_queries(queries, params.temperature, places[first:])
        owned = table.block_tables[number, : -(-last // pages.keys.shape[1])]
        keys, values = (
            read_pages(part, owned[None], q.dtype)[0, :last] for part in (pages.keys, pages.values)
        )
        visible = None
        if params.window is not None and has_window:
            visible = places > places[first:, None] - params.window
        found = _attend(queries, keys, values, visible, params)
        out[rows] = found[-count:].to(out.dtype)


@op
def paged_attention(q: Tensor, pages: Pages, table: StepTable) -> Tensor:
    """Attention of queries to all that their sequences have in memory.

    Args:
        q: Queries, (T, H, D), rotated.
        pages: Keys and values of all tokens up to these, and how they are attended to.
        table: The step.

    Returns:
        (T, H, E), in the dtype of q.
    """
    params = pages.params
    out = q.new_empty(*q.shape[:2], stored_size(pages.values))
    parts = [pages.keys] if pages.more_keys is None else [pages.keys, pages.more_keys]
    if table.num_decodes:
        (queries,) = table.groups[0].split(q)
        queries = scale_queries(queries, params.temperature, table.groups[0].positions)[:, 0]
        for some in table.decode_groups:
            keys = torch.cat([read_pages(part, some.pages, q.dtype) for part in parts], -1)
            values = read_pages(pages.values, some.pages, q.dtype)
            found = decode_attention(queries[some.rows], keys, values, some.visible, params)
            out[some.rows] = found.to(q.dtype)
    for group in prefilling(table):
        (queries,) = group.split(q)
        queries = scale_queries(queries, params.temperature, group.positions)
        keys = torch.cat([read_group(part, table, group, q.dtype) for part in parts], -1)
        values = read_group(pages.values, table, group, q.dtype)
        out[group.rows] = attention(queries, keys, values, params).flatten(0, 1)
    return out
