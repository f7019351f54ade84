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
from blazr.nn.layers.batch import ForwardBatch, LayerCache, Span
from blazr.nn.layers.cache_spec import GRID
from blazr.nn.layers.mla import DeepseekMlaConfig, Mla, MlaConfig
from blazr.nn.layers.rope import RopeConfig

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
    "apart": DeepseekMlaConfig(
        hidden_size=40,
        num_heads=3,
        head_dim=8,
        rope_dim=6,
        kv_latent=32,
        q_latent=None,
        rope=None,
        v_head_dim=10,
        attention_multiplier=0.2,
        apart=True,
    ),
}

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def mixer_of(name: str, dtype: torch.dtype) -> Mla:
    torch.manual_seed(0)
    mixer = CONFIGS[name].build().to(dtype).requires_grad_(requires_grad=False)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return mixer


def memory_of(name: str, pages: int, dtype: torch.dtype) -> LayerCache:
    spec = CONFIGS[name].cache_spec(dtype)
    return LayerCache(
        {
            key: torch.zeros(pages, GRID, *each.shape, dtype=dtype)
            for key, each in spec.paged.items()
        }
    )


def step_of(cuts: Sequence[tuple[int, int, list[int]]]) -> ForwardBatch:
    """A step of sequences from one position to another, each with its pages."""
    spans, slots, first = [], [], 0
    for start, stop, pages in cuts:
        spans.append(Span(first, stop - start, start, 0))
        slots += [pages[at // GRID] * GRID + at % GRID for at in range(start, stop)]
        first += stop - start
    width = max(len(pages) for *_, pages in cuts)
    positions = torch.cat([torch.arange(start, stop) for start, stop, _ in cuts])
    slot = torch.zeros(len(cuts), dtype=torch.int64)
    return ForwardBatch(
        token_ids=torch.zeros(first, dtype=torch.int64),
        positions=positions,
        block_tables=torch.tensor([pages + [0] * (width - len(pages)) for *_, pages in cuts]),
        slot_mapping=torch.tensor(slots),
        state_slots=slot,
        run_slots=slot,
        logits_indices=slot,
        spans=tuple(spans),
        num_decodes=sum(span.length == 1 for span in spans),
    )


def outputs(mixer: Mla, name: str, inputs: Sequence[Tensor], chunk: int) -> list[Tensor]:
    """What comes out of sequences that are read together, so many tokens of each at a time."""
    tables, used = [], 0
    for rows in inputs:
        count = -(-len(rows) // GRID)
        tables.append(list(range(used, used + count)))
        used += count
    cache = memory_of(name, used, inputs[0].dtype)
    found: list[list[Tensor]] = [[] for _ in inputs]
    for start in range(0, max(map(len, inputs)), chunk):
        going = [i for i, rows in enumerate(inputs) if len(rows) > start]
        going.sort(key=lambda i: len(inputs[i]) - start > 1)  # those of one token come first
        stops = [min(start + chunk, len(inputs[i])) for i in going]
        batch = step_of([(start, stop, tables[i]) for i, stop in zip(going, stops, strict=True)])
        x = torch.cat([inputs[i][start:stop] for i, stop in zip(going, stops, strict=True)])
        out = mixer(x, batch, cache)
        for index, span in zip(going, batch.spans, strict=True):
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
)
def test_nothing_around_it_changes_a_bit(name, dtype, batch, chunk, threads, seed):
    mixer, random = mixer_of(name, dtype), torch.Generator().manual_seed(seed)
    longest = {1: 70, 7: 140}.get(chunk, 310)
    lengths = [longest, *torch.randint(1, 90, (batch - 1,), generator=random).tolist()]
    inputs = [torch.randn(count, 40, generator=random).to(dtype) for count in lengths]
    torch.set_num_threads(1)
    alone = [outputs(mixer, name, [rows], 400)[0] for rows in inputs]
    torch.set_num_threads(threads)
    together = outputs(mixer, name, inputs, chunk)
    assert all(rows.isfinite().all() for rows in alone)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


class _Unseen(tuple[Span, ...]):
    """Sequences of a step that may not be looked at."""

    __slots__ = ()

    def _refuse(self, *_: object) -> None:
        raise AssertionError

    __iter__ = __len__ = __getitem__ = _refuse  # type: ignore[assignment]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_decode_step_is_kernels_alone(name: str, dtype: torch.dtype) -> None:
    mixer, cache = mixer_of(name, dtype), memory_of(name, 6, dtype)
    for rows in cache.paged.values():
        rows.normal_()
    batch = step_of([(70, 71, [0, 1]), (5, 6, [2]), (128, 129, [3, 4, 5])])
    x = torch.randn(3, 40).to(dtype)
    expected = mixer(x, batch, cache)
    unseen = replace(batch, spans=_Unseen())
    unseen.__dict__.update(table=batch.table, rotary=batch.rotary)
    with Recording(Arena(), unseen) as recording:
        out = mixer(x, unseen, cache)
    assert not any(callable(call) for call in recording.calls)
    compiled.replayer(recording.calls)()
    assert torch.equal(out, expected)
