"""One token for many sequences at once equals each sequence by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blazr.nn.operands.attention import AttentionParams
from blazr.nn.operands.step import GRID, group_decodes
from blazr.nn.ops.attention import attention, decode_attention
from tests.support.seeds import run_seed

CPU = torch.device("cpu")


@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    heads=st.sampled_from([(4, 4), (6, 2), (3, 1)]),
    window=st.sampled_from([None, 1, 7, 100]),
    softcap=st.sampled_from([None, 0.5, 30.0]),
    has_sinks=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**20),
)
def test_a_batch_equals_each_alone(
    lengths: list[int],
    heads: tuple[int, int],
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    chance = torch.Generator().manual_seed(run_seed(seed))
    queries, keys = heads
    room = max(lengths) + 9
    q = torch.randn(len(lengths), queries, 8, generator=chance).to(dtype)
    k = torch.randn(len(lengths), room, keys, 8, generator=chance).to(dtype)
    v = torch.randn(len(lengths), room, keys, 5, generator=chance).to(dtype)
    visible = torch.arange(room) < torch.tensor(lengths)[:, None]
    for behind in (k, v):
        behind[~visible] = float("nan")  # as rejected drafts may be
    sinks = torch.randn(queries, generator=chance) if has_sinks else None
    params = AttentionParams(scale=0.3, window=window, softcap=softcap, sinks=sinks)
    out = decode_attention(q, k, v, visible, params)
    for row, length in enumerate(lengths):
        alone = attention(
            q[row, None].float(),
            k[row, :length].float(),
            v[row, :length].float(),
            params,
        )
        torch.testing.assert_close(out[row], alone[0], atol=1e-5, rtol=1e-5)


@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=12))
def test_groups_hold_every_sequence_once_and_its_own_pages(totals: list[int]) -> None:
    blocks = -(-max(totals) // GRID)
    tables = np.zeros((len(totals), blocks), np.int64)
    for row, total in enumerate(totals):
        own = -(-total // GRID)
        tables[row, :own] = 1 + row * blocks + np.arange(own)
    groups = group_decodes(tables, np.array(totals), CPU)
    assert sorted(row for group in groups for row in group.rows.tolist()) == list(
        range(len(totals))
    )
    for group in groups:
        assert group.visible.shape[1] == group.pages.shape[1] * GRID
        for row, pages, visible in zip(
            group.rows.tolist(), group.pages, group.visible, strict=True
        ):
            own = -(-totals[row] // GRID)
            assert pages[:own].tolist() == tables[row, :own].tolist()
            assert set(pages.tolist()) == set(tables[row, :own].tolist())
            assert visible.sum() == totals[row]
            assert len(pages) <= own * 3 / 2


@pytest.mark.parametrize("total", [1, 64, 65, 500])
def test_company_changes_nothing_about_a_sequences_room(total: int) -> None:
    alone = group_decodes(np.arange(16)[None], np.array([total]), CPU)[0]
    tables = np.arange(48).reshape(3, 16)
    together = group_decodes(tables, np.array([total, 900, 3]), CPU)
    mine = next(group for group in together if 0 in group.rows.tolist())
    assert mine.pages.shape[1] == alone.pages.shape[1]
