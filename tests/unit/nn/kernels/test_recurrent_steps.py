"""A step of a recurrent mixer is kernels alone: recorded and made again, or in any company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.recording import Arena, Recording, part
from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache, Span
from examples import HIDDEN, MIXER_EXAMPLES

NAMES = (
    *("mamba2", "mamba2_groups", "mamba2_bare", "mamba2_norm_first"),
    *("mamba1", "mamba1_oxidizr", "mamba1_normed", "mamba3", "mamba3_mimo", "mamba3_wide"),
    *("short_conv", "gated_delta", "gated_delta_grouped", "gated_delta_wide", "kimi_delta"),
)
LENGTHS = (0, 5, 63)  # of each sequence since its checkpoint

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")


def mixer_of(config: MixerConfig, dtype: torch.dtype) -> Mixer:
    torch.manual_seed(3)
    mixer = config.build()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return mixer.to(dtype).requires_grad_(requires_grad=False)


def memory_of(config: MixerConfig, dtype: torch.dtype) -> LayerCache:
    """Four checkpoints, of which the last is to be written, and three runs."""
    torch.manual_seed(4)
    spec = config.cache_spec(dtype)
    kept = {name: 0.1 * torch.randn(4, *each.shape) for name, each in spec.checkpoint.items()}
    live = {name: 0.1 * torch.randn(3, *each.shape).abs() for name, each in spec.live.items()}
    return LayerCache(
        checkpoint={name: kept[name].to(each.dtype) for name, each in spec.checkpoint.items()},
        live={name: live[name].to(each.dtype) for name, each in spec.live.items()},
    )


def step_of(spans: list[Span], places: list[int]) -> ForwardBatch:
    """Sequences that start from these checkpoints, and run in the slots of the same numbers."""
    count = len(spans)
    nothing = torch.zeros(count, dtype=torch.int64)
    return ForwardBatch(
        token_ids=nothing,
        positions=nothing,
        block_tables=nothing[:, None],
        slot_mapping=nothing,
        state_slots=torch.tensor(places),
        run_slots=torch.tensor(places),
        logits_indices=nothing,
        spans=tuple(spans),
        num_decodes=sum(span.length == 1 for span in spans),
    )


def decode_step() -> ForwardBatch:
    spans = [
        Span(index, 1, length, length, ((1, 3),) if length == 63 else ())
        for index, length in enumerate(LENGTHS)
    ]
    return step_of(spans, [0, 1, 2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_step_is_the_step(name: str, dtype: torch.dtype) -> None:
    config = MIXER_EXAMPLES[name]
    mixer, x = mixer_of(config, dtype), torch.randn(len(LENGTHS), HIDDEN).to(dtype)
    now, later = memory_of(config, dtype), memory_of(config, dtype)
    with torch.inference_mode():
        expected = mixer(x, decode_step(), now)
        batch = decode_step()
        _ = batch.table  # made before; from here on nobody looks at the sequences
        recording = Recording(Arena(), object())
        with recording:
            out = part(mixer, x, replace_spans(batch), later, like=x)
        calls = [call for call in recording.calls if isinstance(call, tuple)]
        assert len(calls) == len(recording.calls)
        compiled.replayer(calls)()
    assert torch.equal(out, expected)
    for each in config.cache_spec(dtype).checkpoint:
        assert torch.equal(now.checkpoint[each], later.checkpoint[each]), each
    for each in config.cache_spec(dtype).live:
        assert torch.equal(now.live[each], later.live[each]), each


def replace_spans(batch: ForwardBatch) -> ForwardBatch:
    """The same step, whose sequences kernels alone know."""
    blind = replace(batch, spans=())
    blind.__dict__["table"] = batch.table
    return blind


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_is_the_same_in_any_company(name: str) -> None:
    config, dtype = MIXER_EXAMPLES[name], torch.bfloat16
    mixer = mixer_of(config, dtype)
    together, alone = memory_of(config, dtype), memory_of(config, dtype)
    spans = [Span(0, 1, 5, 5), Span(1, 40, 0, 0), Span(41, 9, 60, 60, ((4, 3),))]
    x = torch.randn(50, HIDDEN).to(dtype)
    with torch.inference_mode():
        packed = mixer(x, step_of(spans, [0, 1, 2]), together)
        for place, span in enumerate(spans):
            own = mixer(x[span.rows], step_of([span._replace(first=0)], [place]), alone)
            assert torch.equal(own, packed[span.rows])
    for each in config.cache_spec(dtype).checkpoint:
        assert torch.equal(together.checkpoint[each], alone.checkpoint[each]), each
    for each in config.cache_spec(dtype).live:
        assert torch.equal(together.live[each], alone.live[each]), each
