"""Latent attention on kernels: a token's result is its own, and a decode step is kernels alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.recording import Arena, Recording
from blazr.nn.layers.mla import DeepseekMlaConfig, Mla, MlaConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.kv_dtype import KV_DTYPES
from blazr.nn.operands.step import GRID, Span
from tests.support.mixers import for_kernels, memory_of, mixer_of, step_of
from tests.support.seeds import run_seed

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROPE = RopeConfig(6)
CONFIGS: dict[str, MlaConfig] = {
    "oxidizr": MlaConfig(
        hidden_size=40,
        num_heads=5,
        head_dim=17,
        rope_dim=6,
        kv_latent=33,
        q_latent=21,
        rope=ROPE,
    ),
    "deepseek": DeepseekMlaConfig(
        hidden_size=40,
        num_heads=16,
        head_dim=12,
        rope_dim=6,
        kv_latent=70,
        q_latent=23,
        rope=replace(ROPE, interleaved=True),
        v_head_dim=9,
        bias=True,
        attention_multiplier=0.2,
    ),
    "lite": DeepseekMlaConfig(
        hidden_size=40,
        num_heads=3,
        head_dim=8,
        rope_dim=6,
        kv_latent=32,
        q_latent=None,
        rope=None,
        v_head_dim=10,
        attention_multiplier=0.2,
    ),
}

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def spans_of(cuts: Sequence[tuple[int, int]]) -> list[Span]:
    """Sequences from one position to another, end to end."""
    spans, first = [], 0
    for start, stop in cuts:
        spans.append(Span(first, stop - start, start, 0))
        first += stop - start
    return spans


def outputs(
    mixer: Mla, name: str, inputs: Sequence[Tensor], chunk: int, kv_dtype: str
) -> list[Tensor]:
    """What comes out of sequences that are read together, so many tokens of each at a time."""
    tables, used = [], 0
    for rows in inputs:
        count = -(-len(rows) // GRID)
        tables.append(list(range(used, used + count)))
        used += count
    cache = memory_of(CONFIGS[name], inputs[0].dtype, pages=used, kv_dtype=kv_dtype)
    found: list[list[Tensor]] = [[] for _ in inputs]
    for start in range(0, max(map(len, inputs)), chunk):
        going = [i for i, rows in enumerate(inputs) if len(rows) > start]
        going.sort(key=lambda i: len(inputs[i]) - start > 1)  # those of one token come first
        stops = [min(start + chunk, len(inputs[i])) for i in going]
        spans = spans_of([(start, stop) for stop in stops])
        batch = step_of(spans, pages=[tables[i] for i in going])
        x = torch.cat([inputs[i][start:stop] for i, stop in zip(going, stops, strict=True)])
        out = mixer(x, batch, cache)
        for index, span in zip(going, batch.table.spans, strict=True):
            found[index].append(out[span.rows])
    return [torch.cat(parts) for parts in found]


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    dtype=st.sampled_from(DTYPES),
    batch=st.sampled_from((1, 2, 3, 7, 16, 33)),
    chunk=st.sampled_from((1, 7, 64, 300)),
    threads=st.sampled_from((1, 2, 4)),
    seed=st.integers(0, 99),
    kv_dtype=st.sampled_from(sorted(KV_DTYPES)),
)
def test_nothing_around_it_changes_a_bit(name, dtype, batch, chunk, threads, seed, kv_dtype):
    torch.manual_seed(run_seed(0))
    mixer, random = mixer_of(CONFIGS[name], dtype), torch.Generator().manual_seed(run_seed(seed))
    longest = {1: 70, 7: 140}.get(chunk, 310)
    lengths = [longest, *torch.randint(1, 90, (batch - 1,), generator=random).tolist()]
    inputs = [torch.randn(count, 40, generator=random).to(dtype) for count in lengths]
    torch.set_num_threads(1)
    alone = [outputs(mixer, name, [rows], 400, kv_dtype)[0] for rows in inputs]
    torch.set_num_threads(threads)
    together = outputs(mixer, name, inputs, chunk, kv_dtype)
    assert all(rows.isfinite().all() for rows in alone)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_decode_step_is_kernels_alone(name: str, dtype: torch.dtype, kv_dtype: str) -> None:
    mixer = mixer_of(CONFIGS[name], dtype)
    cache = memory_of(CONFIGS[name], dtype, kv_dtype=kv_dtype)
    spans = spans_of([(70, 71), (5, 6), (128, 129)])
    batch = step_of(spans, pages=[[0, 1], [2], [3, 4, 5]])
    x = torch.randn(3, 40).to(dtype)
    expected = mixer(x, batch, cache)
    unseen = for_kernels(batch)
    with Recording(Arena(), unseen) as recording:
        out = mixer(x, unseen, cache)
    assert not any(callable(call) for call in recording.calls)
    compiled.replayer(recording.calls)()
    assert torch.equal(out, expected)
