"""Steps and memories for the samples of operations on what sequences remember."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.operands.kv_dtype import KV_DTYPES
from blazr.nn.operands.step import GRID, Carried, Span, StepTable

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


def sample_carried(dtype: torch.dtype, *shape: int) -> Carried:
    """Anything, in every slot and run."""
    kept, working = (0.3 * torch.randn(2, SLOTS, *shape)).to(dtype)
    return Carried(kept, working)


def sample_pages(dtype: torch.dtype, *shape: int, kv_dtype: str = "auto") -> Tensor:
    """Anything, in every page, (pages, GRID, ...); a head's tokens lie side by side, as in use."""
    numbers = torch.randn(PAGES, *shape[:-1], GRID, shape[-1]).to(dtype)
    return KV_DTYPES[kv_dtype].encode(numbers).movedim(-2, 1)
