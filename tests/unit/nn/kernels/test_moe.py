"""Experts: the same bits for a token whatever else runs, chosen and weighed as defined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from examples import FEED_FORWARD_EXAMPLES, HIDDEN
from hypothesis import given
from hypothesis import strategies as st

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu import compiled, moe
from blazr.nn.kernels.packing import PACKINGS, Packed
from blazr.nn.kernels.recording import Arena, Recording
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.ops.moe import ExpertGroups, ExpertMlps, Routing, choose_experts, experts
from blazr.nn.ops.packed import random_packed

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason=compiled.missing())

SIZE, INNER = 256, 256  # whole superblocks of every packing
PLAIN = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
FORMS = ("gated", "clamped", "up alone")


@pytest.fixture(params=compiled.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    if not compiled.use(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    compiled.use()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _stack(name: str, count: int, rows: int, columns: int) -> torch.Tensor | Packed:
    if name in PLAIN:
        return (torch.randn(count, rows, columns) / columns**0.5).to(PLAIN[name])
    packing = PACKINGS[name]
    each = [random_packed(packing, rows, columns // packing.columns) for _ in range(count)]
    scales = [matrix.row_scales for matrix in each if matrix.row_scales is not None]
    blocks = torch.stack([matrix.blocks for matrix in each])
    return Packed(packing, blocks, rows, torch.stack(scales) if scales else None)


def _mlps(form: str, names: tuple[str, str, str], count: int, inner: int = INNER) -> ExpertMlps:
    """Gate, up and down stored as named."""
    up, down = _stack(names[1], count, inner, SIZE), _stack(names[2], count, SIZE, inner)
    if form == "up alone":
        return ExpertMlps(up=up, down=down, activation="relu2")
    if form == "gated":
        return ExpertMlps(gate=_stack(names[0], count, inner, SIZE), up=up, down=down)
    biases = {"up_bias": torch.randn(count, 2 * inner), "down_bias": torch.randn(count, SIZE)}
    up = _stack(names[1], count, 2 * inner, SIZE)
    return ExpertMlps(up=up, down=down, fused="interleaved", limit=2.0, alpha=1.7, **biases)


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*PLAIN, "Q4_0", "Q8_0", "Q6_K", "mixed"])
def test_a_token_depends_on_itself_alone(name: str, form: str) -> None:
    """Whatever the batch, its place in it, the cut, and the threads."""
    names = ("Q4_K", "bfloat16", "Q6_K") if name == "mixed" else (name,) * 3
    dtype, count, top = PLAIN.get(name, torch.bfloat16), 3, 2
    mlps = _mlps(form, names, count)
    x = torch.randn(130, SIZE).to(dtype)
    chosen = torch.rand(130, count).argsort(-1)[:, :top]
    chosen[:40] = torch.tensor([2, 1])  # more than a group of rows
    weights = torch.rand(130, top)
    torch.set_num_threads(1)
    sample = [*range(33), *range(120, 130)]
    alone = {i: moe.experts(x[i, None], weights[i, None], chosen[i, None], mlps) for i in sample}
    for num_threads, batches in ((1, (2, 3, 7, 16, 33, 130)), (2, (1, 7, 130)), (4, (16, 33))):
        torch.set_num_threads(num_threads)
        for batch in batches:
            for rows in (slice(batch), slice(130 - batch, 130)):
                got = moe.experts(x[rows], weights[rows], chosen[rows], mlps)
                for place, index in enumerate(range(130)[rows]):
                    if index in alone:
                        assert torch.equal(got[place, None], alone[index]), (batch, num_threads)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", PACKINGS)
def test_packed_experts_agree_with_the_reference(name: str) -> None:
    x = torch.randn(9, SIZE)
    weights, chosen = torch.rand(9, 2), torch.rand(9, 3).argsort(-1)[:, :2]
    for form in FORMS:
        mlps = _mlps(form, (name, name, name), 3)
        expected = experts.reference(x, weights, chosen, mlps)
        got = moe.experts(x, weights, chosen, mlps)
        # a sum in another order may turn the rounding of what is between the products
        assert (got - expected).norm() < 1e-3 * expected.norm(), form


def test_rows_of_several_storages_go_together() -> None:
    """With rows that are no whole groups, and a gate in another packing than up."""
    x, weights = torch.randn(9, SIZE), torch.rand(9, 2)
    chosen = torch.rand(9, 3).argsort(-1)[:, :2]
    for names in (("Q4_K", "Q6_K", "float32"), ("float32", "Q8_0", "float32")):
        mlps = _mlps("gated", names, 3, inner=40)
        expected = experts.reference(x, weights, chosen, mlps)
        got = moe.experts(x, weights, chosen, mlps)
        assert (got - expected).norm() < 1e-3 * expected.norm(), names


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


def _moes() -> dict[str, MoeConfig]:
    found = {
        name: config
        for name, config in FEED_FORWARD_EXAMPLES.items()
        if isinstance(config, MoeConfig)
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
    config = replace(_moes()[name], shared_fused_gate_up=False)
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


def test_what_does_not_fit_is_refused() -> None:
    usual = _mlps("gated", ("float32",) * 3, 3)
    x, weights, chosen = torch.randn(2, SIZE), torch.rand(2, 2), torch.zeros(2, 2).long()
    for arguments in (
        (x[:, :8], weights, chosen, usual),
        (x.bfloat16(), weights, chosen, usual),
        (x, weights[:1], chosen, usual),
        (x, weights, chosen.int(), usual),
        (x, weights, chosen, replace(usual, fused="halves")),
        (x, weights, chosen, replace(usual, gate=_stack("Q8_0", 3, 40, SIZE))),
        (x, weights, chosen, replace(usual, up_bias=torch.randn(3, 1))),
        (x, weights, chosen, replace(usual, down=torch.nn.Identity())),
    ):
        with pytest.raises(ShapeError):
            moe.experts(*arguments)
    logits = torch.randn(2, 6)
    for chosen, bias in ((torch.zeros(2, 3).long(), None), (torch.zeros(2, 2).long(), logits[0, 1:])):
        with pytest.raises(ShapeError):
            moe.choose_experts(logits, chosen, Routing(2), bias)
