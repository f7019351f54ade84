"""A step of a recurrent mixer is kernels alone: recorded and made again, or in any company."""

from __future__ import annotations

import pytest
import torch

from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.recording import Arena, Recording, recordable
from blazr.nn.layers.batch import ForwardBatch
from blazr.nn.operands.state_dtype import STATE_DTYPES
from blazr.nn.operands.step import Span
from tests.support.examples import HIDDEN, MIXER_EXAMPLES
from tests.support.mixers import copy_of, for_kernels, memory_of, mixer_of, step_of, tensors_of

NAMES = (
    *("mamba2", "mamba2_groups", "mamba2_bare", "mamba2_norm_first"),
    *("mamba1", "mamba1_oxidizr", "mamba1_normed", "mamba3", "mamba3_mimo", "mamba3_wide"),
    *("short_conv", "gated_delta", "gated_delta_grouped", "gated_delta_wide", "kimi_delta"),
    *("olmo_delta", "rg_lru"),
)
LENGTHS = (0, 5, 63)  # of each sequence since its checkpoint

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")


def decode_step() -> ForwardBatch:
    spans = [
        Span(index, 1, length, length, ((1, 3),) if length == 63 else ())
        for index, length in enumerate(LENGTHS)
    ]
    return step_of(spans)


@pytest.mark.parametrize("state_dtype", STATE_DTYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_step_is_the_step(name: str, dtype: torch.dtype, state_dtype: str) -> None:
    config = MIXER_EXAMPLES[name]
    mixer, x = mixer_of(config, dtype), torch.randn(len(LENGTHS), HIDDEN).to(dtype)
    now = memory_of(config, dtype, state_dtype=state_dtype)
    later = copy_of(now)
    with torch.inference_mode():
        expected = mixer(x, decode_step(), now)
        batch = for_kernels(decode_step())
        with Recording(Arena(), object()) as recording:
            out = recordable(mixer, x, batch, later, like=x)
        calls = [call for call in recording.calls if isinstance(call, tuple)]
        assert len(calls) == len(recording.calls)
        compiled.replayer(calls)()
    assert torch.equal(out, expected)
    for each, tensor in tensors_of(now).items():
        assert torch.equal(tensor, tensors_of(later)[each]), each


@pytest.mark.parametrize("state_dtype", STATE_DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_is_the_same_in_any_company(name: str, state_dtype: str) -> None:
    config, dtype = MIXER_EXAMPLES[name], torch.bfloat16
    mixer = mixer_of(config, dtype)
    together = memory_of(config, dtype, state_dtype=state_dtype)
    alone = copy_of(together)
    spans = [Span(0, 1, 5, 5), Span(1, 40, 0, 0), Span(41, 9, 60, 60, ((4, 3),))]
    x = torch.randn(50, HIDDEN).to(dtype)
    with torch.inference_mode():
        packed = mixer(x, step_of(spans), together)
        for place, span in enumerate(spans):
            own = mixer(
                x[span.rows], step_of([span._replace(first=0)], states=[place], runs=[place]), alone
            )
            assert torch.equal(own, packed[span.rows])
    for each, tensor in tensors_of(together).items():
        assert torch.equal(tensor, tensors_of(alone)[each]), each
