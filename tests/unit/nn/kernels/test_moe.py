"""Experts: the same bits for a token whatever else runs, chosen and weighed as defined."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu import compiled, moe
from blazr.nn.kernels.recording import Arena, Recording
from blazr.nn.layers.lora import Lora, StepAdapters
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.operands.experts import ExpertGroups, ExpertMlps, Routing
from blazr.nn.operands.lora import LoraFactors
from blazr.nn.operands.packing import PACKINGS, Packed
from blazr.nn.ops.moe import choose_experts, experts
from tests.support.examples import FEED_FORWARD_EXAMPLES, HIDDEN
from tests.support.op_samples import random_expert_adapters, random_packed

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())

PLAIN = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def _stack(name: str, count: int, rows: int, columns: int) -> torch.Tensor | Packed:
    if name in PLAIN:
        return (torch.randn(count, rows, columns) / columns**0.5).to(PLAIN[name])
    packing = PACKINGS[name]
    return random_packed(packing, rows, columns // packing.columns, count)


def _mlps(form: str, names: tuple[str, str, str], count: int, sizes: tuple[int, int]) -> ExpertMlps:
    """Gate, up and down stored as named."""
    size, inner = sizes
    up, down = _stack(names[1], count, inner, size), _stack(names[2], count, size, inner)
    if form == "up alone":
        return ExpertMlps(up=up, down=down, activation="relu2")
    if form == "gated":
        return ExpertMlps(gate=_stack(names[0], count, inner, size), up=up, down=down)
    biases = {f"{name}_bias": torch.randn(count, inner) for name in ("gate", "up")}
    biases["down_bias"] = torch.randn(count, size)
    gate = _stack(names[0], count, inner, size)
    return ExpertMlps(gate=gate, up=up, down=down, limit=2.0, alpha=1.7, **biases)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(
    ("names", "sizes", "form"),
    [
        *(((name,) * 3, (41, 70), "gated") for name in PLAIN),
        (("Q4_0",) * 3, (64, 96), "gated"),
        (("Q8_0", "Q4_0", "bfloat16"), (64, 50), "gated"),
        (("bfloat16",) * 3, (40, 70), "clamped"),
        (("Q4_K", "Q4_K", "Q6_K"), (256, 256), "clamped"),
        (("MXFP4",) * 3, (64, 64), "up alone"),
    ],
    ids=str,
)
def test_a_token_depends_on_itself_alone(
    names: tuple[str, str, str], sizes: tuple[int, int], form: str
) -> None:
    """Whatever the batch, its place in it, the cut, and the threads; without an adapter on none."""
    dtype, count, top = PLAIN.get(names[0], torch.bfloat16), 3, 2
    mlps = _mlps(form, names, count, sizes)
    x, weights = torch.randn(120, sizes[0]).to(dtype), torch.rand(120, top)
    chosen = torch.rand(120, count).argsort(-1)[:, :top]
    chosen[:99] = torch.tensor([2, 1])  # more rows than a part has
    torch.set_num_threads(1)
    sample = [*range(10), 32, *range(110, 120)]
    size, inner = sizes
    adapters = random_expert_adapters(dtype, 120, count, size=size, inner=inner, names=["down"])

    def compute(rows: slice) -> torch.Tensor:
        mine = replace(mlps, adapters=replace(adapters, slots=adapters.slots[rows]))
        return moe.experts(x[rows], weights[rows], chosen[rows], mine)

    alone = {i: compute(slice(i, i + 1)) for i in sample}
    plain = moe.experts(x, weights, chosen, mlps)
    equal = {i for i in sample if torch.equal(alone[i], plain[i, None])}
    assert {i for i in sample if adapters.slots[i] in {0, 3}} <= equal < {*sample}
    cases = (*((1, batch) for batch in (2, 3, 7, 16, 33, 120)), (2, 1), (2, 7), (2, 120), (4, 16))
    for num_threads, batch in cases:
        torch.set_num_threads(num_threads)
        first = 120 - batch if batch < 16 else 0
        rows = slice(first, first + batch)
        got = compute(rows)
        for index in alone.keys() & range(first, first + batch):
            assert torch.equal(got[index - first, None], alone[index]), (batch, num_threads)


@pytest.mark.parametrize("name", PACKINGS)
def test_packed_experts_agree_with_the_reference(name: str) -> None:
    size = max(64, PACKINGS[name].columns)
    _compare(_mlps("gated", (name,) * 3, 2, (size, size)), size)


@pytest.mark.parametrize("form", ["clamped", "up alone", "gated"])
def test_forms_agree_with_the_reference(form: str) -> None:
    mlps = _mlps(form, ("Q4_0", "MXFP4", "Q8_0"), 2, (64, 96))
    _compare(mlps, 64)
    for names in (["up"], ["up", "down"], ["down"]):
        adapters = random_expert_adapters(torch.float32, 5, 2, size=64, inner=96, names=names)
        _compare(replace(mlps, adapters=adapters), 64)


def test_rows_of_several_storages_go_together() -> None:
    """With rows that are no whole groups, and a gate in another packing than up."""
    for names in (("Q4_0", "Q8_0", "float32"), ("float32", "Q8_0", "float32")):
        _compare(_mlps("gated", names, 2, (64, 40)), 64)


def _compare(mlps: ExpertMlps, size: int) -> None:
    x, weights, chosen = torch.randn(5, size), torch.rand(5, 1), torch.randint(0, 2, (5, 1))
    expected = experts.reference(x, weights, chosen, mlps)
    for isa in compiled.isas():
        compiled.use(isa)
        got = moe.experts(x, weights, chosen, mlps)
        errors = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
        # a sum in another order now and then turns the rounding of what is between the products,
        # a token's by one of 127 steps
        assert errors.median() < 1e-5, isa
        assert errors.max() < 1e-2, isa


@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_experts_are_chosen_as_defined(tokens: int, groups: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    count = groups * size
    scoring = data.draw(st.sampled_from(["softmax", "sigmoid", "softmax of chosen"]))
    is_free = scoring == "softmax of chosen"
    kept, judged = data.draw(st.integers(1, groups)), data.draw(st.integers(1, 3))
    routing = Routing(
        data.draw(st.integers(1, kept * size)),
        scoring,
        data.draw(st.booleans()),
        None if is_free or data.draw(st.booleans()) else ExpertGroups(groups, kept, judged),
        data.draw(st.sampled_from([1.0, 2.5])),
    )
    # whole numbers, so that there are ties, and sums of few of them
    logits = torch.randint(-3, 4, (tokens, count)).float()
    bias = None if is_free else torch.randint(-3, 4, (count,)).float()
    if bias is not None and routing.groups is not None and judged > 1:
        # rounding would decide between groups whose sums are equal, of other terms: of 0.1 + 2 and
        # 0.6 + 1, and of 0.1 + 1 and 0.6 + 2
        bias = bias[:groups].repeat_interleave(size)
    given_, expected = (torch.zeros(tokens, min(routing.k, count), dtype=torch.int64),) * 2
    expected = expected.clone()
    weights = choose_experts.reference(logits, expected, routing, bias)
    got = moe.choose_experts(logits, given_, routing, bias)
    torch.testing.assert_close(got, weights, rtol=1e-5, atol=1e-7)
    if bias is None and routing.groups is None:
        assert torch.equal(given_, expected)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "softmax of chosen"])
def test_what_is_no_number_chooses_experts_that_are_there(scoring: str) -> None:
    logits = torch.tensor([[0.0, torch.nan, 1.0], [torch.inf, 0.0, -torch.inf], [torch.nan] * 3])
    chosen = torch.full((3, 2), -1)
    weights = moe.choose_experts(logits, chosen, Routing(2, scoring))
    assert chosen.amin() >= 0
    assert chosen.amax() < 3
    assert (chosen[:, 0] != chosen[:, 1]).all()
    assert weights[[0, 2]].isnan().any(1).all()


# Whose weights kernels do not compute.
BY_TORCH = {"weighed_input", "sparse_mixer"}


def _moes() -> dict[str, MoeConfig]:
    found = {
        name: config
        for name, config in FEED_FORWARD_EXAMPLES.items()
        if isinstance(config, MoeConfig) and name not in BY_TORCH
    }
    usual = found["moe"]
    found["latent"] = replace(usual, latent_size=16, gated=False, activation="relu2")
    found["no choice"] = replace(usual, experts_per_token=5, norm_topk_prob=False)
    return found


@pytest.mark.parametrize("name", _moes())
@pytest.mark.parametrize("dtype", PLAIN.values(), ids=str)
@torch.inference_mode()
def test_a_layer_is_kernels_alone(name: str, dtype: torch.dtype) -> None:
    """So that its step can be recorded."""
    config = _moes()[name]
    layer, x = config.build().to(dtype), torch.randn(5, HIDDEN).to(dtype)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    expected = layer(x)
    with Recording(Arena(), None) as recorded:
        out = layer(x)
    assert all(isinstance(call, tuple) for call in recorded.calls)
    compiled.replayer([call for call in recorded.calls if isinstance(call, tuple)])()
    assert torch.equal(out, expected)
    tokens = torch.cat([layer(token) for token in x.split(1)])
    assert torch.equal(tokens, expected)


@torch.inference_mode()
def test_a_recorded_layer_sees_adapters_that_come_and_go() -> None:
    layer, x, step = _moes()["moe"].build(), torch.randn(5, HIDDEN), StepAdapters()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    lora = Lora(step, num_slots=3)
    layer.experts.loras.put("down", 1, lora)
    plain, inner = layer(x), layer.experts.down_proj.shape[-1]

    def factors() -> LoraFactors:
        return LoraFactors.of(torch.randn(1, inner), torch.randn(1, HIDDEN))

    lora.table.put(1, factors())
    with step.using(torch.tensor([1, 0, 2, 1, 2])):
        with Recording(Arena(), None) as recorded:
            out = layer(x)
        replay = compiled.replayer([call for call in recorded.calls if isinstance(call, tuple)])
        changes = (
            lambda: None,
            lambda: lora.table.put(2, factors()),
            lambda: lora.table.drop(1),
        )
        for change in changes:
            change()
            replay()
            assert torch.equal(out, layer(x))
            assert torch.equal(out[1], plain[1])
    assert not torch.equal(out, plain)


def test_what_does_not_fit_is_refused() -> None:
    usual = _mlps("gated", ("float32",) * 3, 3, (64, 32))
    x, weights, chosen = torch.randn(2, 64), torch.rand(2, 2), torch.zeros(2, 2).long()
    of_others = random_expert_adapters(torch.float32, 3, 3, size=64, inner=32, names=["up"])
    for arguments in (
        (x[:, :8], weights, chosen, usual),
        (x.bfloat16(), weights, chosen, usual),
        (x, weights[:1], chosen, usual),
        (x, weights, chosen.int(), usual),
        (x, weights, chosen, replace(usual, up=_stack("float32", 3, 64, 64))),
        (x, weights, chosen, replace(usual, gate=_stack("Q8_0", 3, 40, 64))),
        (x, weights, chosen, replace(usual, up_bias=torch.randn(3, 1))),
        (x, weights, chosen, replace(usual, down=torch.nn.Identity())),
        (x, weights, chosen, replace(usual, adapters=of_others)),
    ):
        with pytest.raises(ShapeError):
            moe.experts(*arguments)
    logits = torch.randn(2, 6)
    for chosen, bias in ((torch.zeros(2, 3), None), (torch.zeros(2, 2), logits[0, 1:])):
        with pytest.raises(ShapeError):
            moe.choose_experts(logits, chosen.long(), Routing(2), bias)
