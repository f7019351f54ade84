"""Samples of the operations on what sequences remember: steps, and memories for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from blazr.nn.operands.attention import (
    AttentionParams,
    AttentionTemperature,
    LatentRows,
    Latents,
    Pages,
    Rotation,
)
from blazr.nn.operands.kv_dtype import KV_DTYPES
from blazr.nn.operands.recurrent import (
    DeltaRows,
    DeltaWeights,
    Filter,
    GatedNorm,
    GateOrder,
    Mamba1Rows,
    Mamba1Weights,
    Mamba2Memory,
    Mamba2Weights,
    Mamba3Memory,
    Mamba3Rows,
    Mamba3Weights,
    RgLruRows,
    RgLruWeights,
)
from blazr.nn.operands.state_dtype import STATE_DTYPES
from blazr.nn.operands.step import GRID, Carried, Span, StepTable, Window

SLOTS, PAGES = 8, 12


def sample_steps() -> list[StepTable]:
    """No sequence, one token, replies at and between grid edges, prompts across them."""
    return [
        _table(),
        _table((1, 0)),
        _table((1, 5), (1, 63), (1, 64)),
        _table((1, 130), (70, 0), (20, 60)),
    ]


def _table(*lengths: tuple[int, int]) -> StepTable:
    """A step of sequences of so many tokens, each after so many in memory."""
    spans: list[Span] = []
    tables = []
    first = 0
    page = 0
    slot = len(lengths)
    for index, (length, start) in enumerate(lengths):
        logged = start % GRID
        edges = range(GRID - logged, length + 1, GRID)
        kept = tuple((at, slot + place) for place, at in enumerate(edges))
        slot += len(kept)
        spans.append(Span(first, length, start, logged, kept, index, SLOTS - 1 - index))
        first += length
        tables.append([page + number for number in range(3)])
        page += 3
    decodes = sum(length == 1 for length, _ in lengths)
    blocks = torch.tensor(tables, dtype=torch.int64).view(-1, 3)
    return StepTable(tuple(spans), blocks, decodes)


def num_tokens(table: StepTable) -> int:
    """Of all sequences."""
    return sum(span.length for span in table.spans)


def sample_slots(table: StepTable) -> Tensor:
    """(T,), int64, where each token's entry is written."""
    places = [
        int(pages[at // GRID]) * GRID + at % GRID
        for span, pages in zip(table.spans, table.block_tables, strict=True)
        for at in range(span.start, span.total)
    ]
    return torch.tensor(places, dtype=torch.int64)


def sample_carried(*shape: int, kept_as: torch.dtype = torch.float32) -> Carried:
    """Anything, in every slot and run."""
    kept, working = 0.3 * torch.randn(2, SLOTS, *shape)
    return Carried(kept.to(kept_as), working)


def sample_pages(dtype: torch.dtype, *shape: int, kv_dtype: str = "auto") -> Tensor:
    """Anything, in every page, (pages, GRID, ...); a head's tokens lie side by side, as in use."""
    numbers = torch.randn(PAGES, *shape[:-1], GRID, shape[-1]).to(dtype)
    return KV_DTYPES[kv_dtype].encode(numbers).movedim(-2, 1)


def _rotate_and_store(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    sizes = (
        *((4, 2, 16, 16, 8), (3, 1, 9, 5, 3), (1, 1, 6, 7, 0), (1, 2, 40, 65, 10)),
        (3, 0, 10, 10, 4),  # queries alone
    )
    for (heads, kv_heads, keys, values, pairs), table in product(sizes, sample_steps()):
        count = num_tokens(table)
        q, k = (torch.randn(count, each, keys).to(dtype) for each in (heads, kv_heads))
        v = torch.randn(count, kv_heads, values).to(dtype)
        angles = 10 * torch.rand(count, pairs)
        for interleaved in (False, True):
            rotation = Rotation(
                cos=angles.cos(),
                sin=angles.sin(),
                interleaved=interleaved,
                slots=sample_slots(table),
            )
            for kv_dtype in KV_DTYPES:
                pages = (
                    sample_pages(dtype, kv_heads, size, kv_dtype=kv_dtype)
                    for size in (keys, values)
                )
                yield q, k, v, rotation, *pages


def _paged_attention(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    sizes = ((4, 2, 16, 16, 0), (6, 3, 9, 9, 0), (5, 1, 33, 33, 7))
    for (heads, kv_heads, keys, values, more), table, kv_dtype in product(
        sizes, sample_steps(), KV_DTYPES
    ):
        q = torch.randn(num_tokens(table), heads, keys + more).to(dtype)
        pages = Pages(
            keys=sample_pages(dtype, kv_heads, keys, kv_dtype=kv_dtype),
            more_keys=sample_pages(dtype, kv_heads, more, kv_dtype=kv_dtype) if more else None,
            values=sample_pages(dtype, kv_heads, values, kv_dtype=kv_dtype),
            params=AttentionParams(scale=0.3),
        )
        yield q, pages, table
        temperature = AttentionTemperature(0.7, 20)
        params = AttentionParams(scale=0.3, window=41, softcap=2.0, temperature=temperature)
        yield q, replace(pages, params=params), table
        params = AttentionParams(scale=0.3, sinks=torch.randn(heads))
        yield q, replace(pages, params=params), table


def _latent_attention(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    sizes = ((4, 16, 16, 32, 8), (3, 7, 5, 33, 6), (1, 9, 4, 10, 2))
    for (heads, keys, values, latent, turned), table, kv_dtype in product(
        sizes, sample_steps(), KV_DTYPES
    ):
        count = num_tokens(table)
        k_up = (torch.randn(heads, latent, keys) * latent**-0.5).to(dtype)
        v_up = (torch.randn(heads, values, latent) * latent**-0.5).to(dtype)
        memory = Latents(
            latents=sample_pages(dtype, latent, kv_dtype=kv_dtype),
            keys=sample_pages(dtype, turned, kv_dtype=kv_dtype),
            k_up=k_up,
            v_up=v_up,
            params=AttentionParams(scale=0.2),
        )
        rows = LatentRows(
            q_rope=torch.randn(count, heads, turned).to(dtype),
            k_rope=torch.randn(count, 1, turned).to(dtype),
            latent=torch.randn(count, latent).to(dtype),
        )
        angles = 10 * torch.rand(count, turned // 2)
        rotation = Rotation(
            cos=angles.cos(), sin=angles.sin(), interleaved=False, slots=sample_slots(table)
        )
        q = torch.randn(count, heads, keys).to(dtype)
        yield q, rows, memory, rotation, table
        temperature = AttentionTemperature(0.7, 20)
        params = AttentionParams(scale=0.2, window=41, temperature=temperature)
        yield q, rows, replace(memory, params=params), rotation, table


def _convolve(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for channels, taps in ((40, 4), (7, 1), (16, 8)):
        how = Filter(torch.randn(taps, channels), torch.randn(channels))
        for table in sample_steps():
            x, *gates = torch.randn(3, num_tokens(table), channels).to(dtype)
            kept = torch.randn(SLOTS, taps - 1, channels + 9).to(dtype)
            log = torch.randn(SLOTS, GRID, channels + 9).to(dtype)
            part = Window(kept[..., 4:-5], log[..., 4:-5])
            yield x, how, Window(part.kept.contiguous(), part.log.contiguous()), table
            yield x, replace(how, silu=False), part, table
            yield x, how, part, table, tuple(gates)


def _log_rows(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for width in (40, 7, 1):
        for table in sample_steps():
            log = torch.randn(SLOTS, GRID, width).to(dtype)
            wide = torch.randn(num_tokens(table), width + 9).to(dtype)
            yield wide[:, 4:-5], log, table


def _join_previous(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for width in (40, 7, 1):
        for table in sample_steps():
            log = torch.randn(SLOTS, GRID, width).to(dtype)
            wide = torch.randn(2, num_tokens(table), width + 9).to(dtype)
            x, hidden = wide[..., 4:-5]
            yield x, hidden, log, table


def _mamba1(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for inner, states, limit in ((40, 16, 0.0), (7, 5, 0.5), (1, 1, 0.0)):
        weights = Mamba1Weights(-torch.rand(inner, states), torch.randn(inner), limit)
        for table, kept_as in product(sample_steps(), STATE_DTYPES.values()):
            count = num_tokens(table)
            u, dt, gate = torch.randn(3, count, inner).to(dtype)
            b, c = torch.randn(count, 2 * states).to(dtype).chunk(2, -1)
            rows = Mamba1Rows(dt=dt, b=b, c=c, gate=gate)
            yield u, rows, weights, sample_carried(inner, states, kept_as=kept_as), table


# heads, head_dim, state_size, groups, taps (0 for no convolution), groups of the norm
_MAMBA2_SIZES = (
    (4, 16, 32, 1, 4, 1),
    (6, 7, 5, 2, 3, 2),
    (1, 1, 1, 1, 2, 1),
    (3, 16, 16, 3, 0, 3),
)
_MAMBA2_ORDERS: tuple[GateOrder, ...] = (
    *("gate_first", "norm_first", "norm_sigmoid"),
    *("none", "ungated"),
)


def _mamba2(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for (heads, dim, states, groups, taps, parts), order in product(_MAMBA2_SIZES, _MAMBA2_ORDERS):
        inner = heads * dim
        conv = inner + 2 * groups * states
        weights = Mamba2Weights(
            heads=heads,
            head_dim=dim,
            state_size=states,
            groups=groups,
            conv=Filter(torch.randn(taps, conv), torch.randn(conv)) if taps else None,
            dt_bias=torch.randn(heads),
            a=-torch.rand(heads),
            d=torch.randn(heads),
            norm=GatedNorm(
                order=order,
                weight=None if order in {"none", "ungated"} else torch.randn(inner),
                eps=0.1,
                groups=parts,
            ),
            dt_limits=(0.001, 0.1) if taps else (1.0, 1.0),
            multipliers=torch.rand(inner + conv + heads) if order == "none" else None,
        )
        for table, kept_as in product(sample_steps(), STATE_DTYPES.values()):
            memory = Mamba2Memory(
                states=(0.3 * torch.randn(SLOTS, heads, dim, states)).to(kept_as),
                conv_states=torch.randn(SLOTS, taps - 1, conv).to(dtype) if taps else None,
                log_raw=torch.randn(SLOTS, GRID, conv).to(dtype) if taps else None,
                log_xb=torch.randn(SLOTS, GRID, inner + groups * states).to(dtype),
                log_dt=0.1 * torch.rand(SLOTS, GRID, heads),
            )
            projected = torch.randn(num_tokens(table), inner + conv + heads).to(dtype)
            yield projected, weights, memory, table


def _mamba3(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for groups, heads, width, states, silu in ((1, 2, 16, 32, True), (2, 4, 7, 6, False)):
        weights = Mamba3Weights(
            groups=groups,
            norm=torch.randn(states),
            eps=0.1,
            b_bias=torch.randn(heads, states),
            c_bias=torch.randn(heads, states),
            dt_bias=torch.randn(heads),
            a=-torch.rand(heads),
            d=torch.randn(heads),
            dt_limits=(0.001, 0.1),
            silu=silu,
        )
        size, maps = heads * width, groups * states
        for table, kept_as in product(sample_steps(), STATE_DTYPES.values()):
            count = num_tokens(table)
            is_rotated = silu
            xbc = torch.randn(count, size + 2 * maps).to(dtype)
            x, b, c = xbc.split((size, maps, maps), -1)
            theta = torch.randn(count, heads * states // 2).to(dtype) if is_rotated else None
            dt, mix = torch.randn(2, count, heads).to(dtype)
            memory = Mamba3Memory(
                state=sample_carried(heads, width, states, kept_as=kept_as),
                x=sample_carried(heads, width),
                b=sample_carried(heads, states),
                angle=sample_carried(heads, states // 2) if is_rotated else None,
            )
            rows = Mamba3Rows(b=b, c=c, dt=dt, mix=mix, theta=theta)
            yield x, rows, weights, memory, table


def _gated_delta(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    sizes = ((2, 4, 16, 80, False), (1, 3, 7, 5, False), (2, 6, 5, 6, False), (3, 3, 9, 9, True))
    for (key_heads, heads, keys, values, is_kimi), least in product(sizes, (0.0, -5.0)):
        decays = heads * keys if is_kimi else heads  # Kimi: one for each key channel
        weights = DeltaWeights(
            heads=heads,
            key_heads=key_heads,
            dt_bias=torch.randn(decays),
            a=-torch.rand(heads),
            norm=GatedNorm("norm_sigmoid" if is_kimi else "norm_first", torch.randn(values), 0.1),
            beta_scale=2.0 if key_heads == heads else 1.0,
            least=least,
        )
        key_size, value_size = key_heads * keys, heads * values
        for table, kept_as in product(sample_steps(), STATE_DTYPES.values()):
            count = num_tokens(table)
            qkv = torch.randn(count, 2 * key_size + value_size).to(dtype)
            q, k, v = qkv.split((key_size, key_size, value_size), -1)
            both = torch.randn(count, decays + heads).to(dtype)
            gate = torch.randn(count, value_size + 3).to(dtype)[:, 3:]
            rows = DeltaRows(q=q, k=k, decay=both[:, :decays], beta=both[:, decays:], gate=gate)
            state = sample_carried(heads, keys, values, kept_as=kept_as)
            yield v, rows, weights, state, table


def _rg_lru(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for width in (40, 7, 1):
        weights = RgLruWeights(torch.randn(width), torch.randn(width), -torch.rand(width))
        for table, kept_as in product(sample_steps(), STATE_DTYPES.values()):
            x, *gates = torch.randn(3, num_tokens(table), width).to(dtype)
            yield x, RgLruRows(*gates), weights, sample_carried(width, kept_as=kept_as), table


STEP_SAMPLES: dict[str, Callable[[torch.dtype], Iterable[tuple[object, ...]]]] = {
    "rotate_and_store": _rotate_and_store,
    "paged_attention": _paged_attention,
    "latent_attention": _latent_attention,
    "convolve": _convolve,
    "log_rows": _log_rows,
    "join_previous": _join_previous,
    "keep_last": _log_rows,
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "mamba3": _mamba3,
    "gated_delta": _gated_delta,
    "rg_lru": _rg_lru,
}
