"""Kernels on a sequence's memory agree with the mixers they stand in for, however work is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blazr.engine.cache.manager import CacheShape
from blazr.engine.cache.storage import plan_layout
from blazr.engine.runner import ModelRunner
from blazr.models.causal_lm import CausalLM
from blazr.nn.kernels.cpu import compiled
from blazr.nn.operands.state_dtype import STATE_DTYPES
from tests.support.examples import MIXER_EXAMPLES
from tests.support.networks import VOCAB, build_network
from tests.support.seeds import run_seed
from tests.support.without_kernels import without_kernels

NAMES = (
    *("gqa", "gqa_window", "gqa_capped", "gqa_sinks", "gqa_nope"),
    *("mamba2", "mamba2_wide", "mamba2_odd", "mamba2_groups", "mamba2_bare", "mamba2_norm_first"),
    *("mamba1", "mamba1_oxidizr", "mamba1_normed", "short_conv", "short_conv_biased"),
    *("mamba3", "mamba3_mimo", "mamba3_wide", "gated_delta", "gated_delta_grouped"),
    *("gated_delta_wide", "kimi_delta", "olmo_delta", "rg_lru", "mamba1_heads"),
    *("mla", "mla_deepseek", "mla_deepseek_lite", "mla_nope"),
)
WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}
CUTS = [1, 63, 64, 70, 71]
CASES = [
    (name, state_dtype)
    for name in NAMES
    for state_dtype in STATE_DTYPES
    if state_dtype == "auto" or MIXER_EXAMPLES[name].cache_spec(torch.float32).states
]
# States that are kept in their own dtype are tried in both; what they are kept in otherwise takes
# turns. Half floats are as narrow as bfloat16 here, and each kernel's own law tries them always.
TRIED = [
    pytest.param(
        *(name, state_dtype, dtype),
        id=f"{name}-{state_dtype}-{dtype}",
        marks=[pytest.mark.slow] * is_slow,
    )
    for name, state_dtype in CASES
    for turn, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16))
    for is_slow in [turn == 2 or (state_dtype != "auto" and bool((NAMES.index(name) + turn) % 2))]
]

pytestmark = [
    pytest.mark.sample,
    pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled"),
]


def model_of(name: str, dtype: torch.dtype) -> CausalLM:
    return build_network((name, name)).to(dtype)


def logits(model: CausalLM, ids: list[int], cuts: list[int], state_dtype: str = "auto") -> Tensor:
    specs = [layer.mixer.cache_spec(model.dtype) for layer in model.config.layers]
    layout = plan_layout([spec.stored_as(state_dtype=state_dtype) for spec in specs])
    shape = CacheShape(
        grid=64,
        num_superpages=1,
        pages_per_superpage=layout.pages_per_superpage,
        states_per_superpage=layout.states_per_superpage,
        max_running=1,
        max_blocks=1,
    )
    return ModelRunner(model, layout, shape).logits(ids, cuts)


def some_ids(count: int) -> list[int]:
    chance = torch.Generator().manual_seed(run_seed(5))
    return torch.randint(0, VOCAB, (count,), generator=chance).tolist()


def mean_error(found: Tensor, truth: Tensor, dtype: torch.dtype) -> float:
    """The mean over tokens: of squares, or of logarithms in a narrow dtype.

    There what is rounded at one token may by chance weigh more than all the others.
    """
    errors = (found - truth).square().mean(-1).sqrt() / truth.abs().max()
    if dtype == torch.float32:
        return errors.square().mean().sqrt().item()
    return errors.clamp(min=1e-9).log().mean().exp().item()


@pytest.mark.parametrize(("name", "state_dtype", "dtype"), TRIED)
def test_a_kernel_is_as_right_as_the_mixer(name: str, state_dtype: str, dtype: torch.dtype) -> None:
    if name == "mamba1_oxidizr" and dtype != torch.float32:
        pytest.skip("its states grow to their limit, and early errors decide to which")
    model, ids = model_of(name, dtype), some_ids(75)
    found = {}
    for isa in compiled.isas():
        compiled.use(isa)
        found[isa] = logits(model, ids, CUTS, state_dtype)
    with without_kernels():
        reference = logits(model, ids, CUTS, state_dtype)
        # small numbers decide little: what the definition loses in this dtype is allowed twice
        truth = logits(model.to(WIDER[dtype]), ids, CUTS)
    for isa, with_kernels in found.items():
        allowed = 2 * mean_error(reference, truth, dtype) + 2e-6
        assert mean_error(with_kernels, truth, dtype) < allowed, isa


@pytest.mark.parametrize(("name", "state_dtype", "dtype"), TRIED)
def test_cutting_a_prompt_changes_no_bit(name: str, state_dtype: str, dtype: torch.dtype) -> None:
    model, ids = model_of(name, dtype), some_ids(135)
    whole = logits(model, ids, [], state_dtype)
    for cuts in ([*range(20), *range(60, 70), 100, *range(126, 135)], [7, 64, 100, 128]):
        assert torch.equal(whole, logits(model, ids, cuts, state_dtype))


@pytest.mark.parametrize("name", ["gqa", "mamba2", "mamba1", "mamba3", "short_conv", "kimi_delta"])
def test_threads_change_no_bit(name: str) -> None:
    model, ids = model_of(name, torch.float32), some_ids(90)
    found = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        found.append(logits(model, ids, [20]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
