"""Decode steps made again from a recording: the same bits, and nothing computed while recording."""

from __future__ import annotations

import pytest
import torch

from blazr.engine.replay import Replays, Size
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.recording import Arena, Recording, UnrecordableError, recordable
from blazr.nn.operands.packing import PACKINGS
from blazr.nn.ops.matmul import gated_linear, linear, wide_linear
from blazr.nn.ops.packed import packed_linear
from blazr.nn.ops.pointwise import add, scale
from blazr.nn.ops.replay import Replay, record
from tests.support.examples import MIXES, STORED_MIXES
from tests.support.networks import Lab, build_network
from tests.support.op_samples import random_packed

pytestmark = pytest.mark.skipif(bool(compiled.missing()), reason="the kernels are not compiled")

# All others decode with kernels and nothing else.
SOME_PYTHON = (
    *("side by side", "shared block", "lightning", "mamba1 with heads"),
    *("chunks", "values of their own"),
)


def answers(model, *, replay: bool, **stored: str):
    lab = Lab(model, replay=replay, **stored)
    asked = [lab.ask([5 + i, 7, 11 * i + 2], max_tokens=6 + 5 * i) for i in range(4)]
    lab.run()
    return [lab.answer(request) for request in asked], lab.runner.replays


@pytest.mark.sample
@pytest.mark.parametrize("mix", [*MIXES, *STORED_MIXES])
def test_replayed_steps_give_the_same_bits(mix):
    mix, stored = STORED_MIXES.get(mix, (mix, {}))
    model = build_network(MIXES[mix], seed=5)
    expected, none = answers(model, replay=False, **stored)
    got, replays = answers(model, replay=True, **stored)
    assert none is None
    made = [replays.num_python(Size(size, size)) for size in (1, 2, 3, 4)]
    assert None not in made
    if mix not in SOME_PYTHON:
        assert made == [0, 0, 0, 0]
    for (tokens, logits), (wanted, scores) in zip(got, expected, strict=True):
        assert tokens == wanted
        assert torch.equal(logits, scores)


def test_of_many_sizes_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr("blazr.engine.replay.MOST_RECORDED", 2)
    model = build_network(MIXES["hybrid"], seed=5)
    got, replays = answers(model, replay=True)
    assert got[0][0] == answers(model, replay=False)[0][0][0]
    kept = [size for size in range(1, 5) if replays.num_python(Size(size, size)) is not None]
    assert kept == [1, 2]


def test_steps_recorded_before_they_are_met_give_the_same_bits():
    model = build_network(MIXES["gqa and mlp"], seed=5)
    lab = Lab(model, replay=True)
    lab.ask([1, 2], max_tokens=2)
    lab.run()
    lab.runner.record(100)
    most = lab.runner.shape.max_running
    recorded = [lab.runner.replays.num_python(Size(size, size)) for size in range(1, most + 2)]
    assert recorded == [0] * most + [None]
    asked = [lab.ask([5 + i, 7, 11 * i + 2], max_tokens=6 + 5 * i) for i in range(4)]
    lab.run()
    for request, (tokens, logits) in zip(asked, answers(model, replay=False)[0], strict=True):
        assert lab.answer(request)[0] == tokens
        assert torch.equal(lab.answer(request)[1], logits)


def test_before_each_recording_somebody_is_told():
    lab = Lab(build_network(MIXES["gqa and mlp"], seed=5), replay=True)
    told = []
    lab.runner.before_recording = lambda: told.append(len(lab.runner.replays._made))
    lab.ask([1, 2], max_tokens=9)
    lab.run()
    assert lab.runner.replays.num_python(Size(1, 1)) == 0
    assert told
    assert not told[0]
    lab.ask([1, 2], max_tokens=9)
    num_told = len(told)
    lab.run()
    assert len(told) == num_told


@torch.inference_mode()
def test_nothing_is_computed_while_recording():
    x, y = torch.ones(2, 8), torch.full((2, 8), 3.0)
    replay = record(lambda: scale(add(x, y), 2.0), None, Arena())
    assert replay is not None
    x.fill_(5.0)
    assert replay(None).unique().tolist() == [16.0]
    x.fill_(1.0)
    assert replay(None).unique().tolist() == [8.0]


@torch.inference_mode()
def test_a_part_that_is_more_than_kernels_runs_as_it_is():
    x = torch.ones(2, 8)
    steps = []

    def odd(y, step):
        steps.append(step)
        return torch.sort(add(y, y)).values

    def run():
        return scale(recordable(odd, scale(x, 3.0), "recorded", like=x), 2.0)

    replay = record(run, "recorded", Arena())
    assert replay is not None
    assert replay.num_python == 1
    assert replay("real").unique().tolist() == [12.0]
    assert steps == ["recorded", "real"]


@torch.inference_mode()
@pytest.mark.parametrize(
    "foreign",
    [
        lambda x: x + 1,
        lambda x: x.t().reshape(-1),
        lambda x: x[:, :4].contiguous(),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.sum().item(),
        lambda x: torch.zeros(3),
        lambda x: x.fill_(0),
        lambda x: torch.nn.functional.layer_norm(x, (8,)),
    ],
)
def test_what_computes_is_seen(foreign):
    x = torch.ones(2, 8)
    with pytest.raises(UnrecordableError), Recording(Arena(), None):
        foreign(x)
    assert x.unique().tolist() == [1.0]
    assert record(lambda: foreign(x), None, Arena()) is None


def products(dtype, *, rows):
    """Products that make (rows, 70): plain, packed, and as float32."""
    x = torch.randn(rows, 64).to(dtype)
    weight = torch.randn(70, 64).to(dtype)
    packed, scaled = (random_packed(PACKINGS[name], 70, 2) for name in ("Q4_0", "int8"))
    bias = torch.randn(70).to(dtype)
    yield lambda: linear(x, weight, bias)
    yield lambda: gated_linear(x, weight, weight)
    yield lambda: wide_linear(x, weight)
    yield lambda: packed_linear(x, packed, bias)
    yield lambda: packed_linear(x, scaled)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_a_recorded_product_adds_what_it_makes(dtype, rows):
    for product in products(dtype, rows=rows):
        residual = torch.randn(rows, 70).to(product().dtype)
        for factor in (1.0, 0.22):
            with Recording(Arena(), None) as kept:
                out = add(residual, product(), factor)
            assert len(kept.calls) == 1
            again = Replay(kept.calls, out, Arena())
            assert torch.equal(again(None), add(residual, product(), factor))


@torch.inference_mode()
@pytest.mark.parametrize(
    "sum_of",
    [
        lambda x, y: add(y, x),  # the product is what is added to
        lambda x, y: add(x[:, :4], y[:, :4]),
        lambda x, y: add(x, scale(y, 3.0)),
        lambda x, y: add(scale(x, 3.0), y),
        lambda x, y: add(x[:1].expand(2, 8), y),
    ],
)
def test_other_sums_are_calls_of_their_own(sum_of):
    x = torch.randn(2, 8)
    weight = torch.randn(8, 8)
    replay = record(lambda: sum_of(x, linear(x, weight)), None, Arena())
    assert replay is not None
    assert torch.equal(replay(None), sum_of(x, linear(x, weight)))


@torch.inference_mode()
def test_parts_take_turns_in_memory():
    """What passes from one part to the next survives it, however many there are."""
    x = torch.randn(3, 40)

    def run():
        y = x
        for factor in range(1, 9):
            y = add(y, recordable(lambda z, f=factor: scale(scale(z, 0.5), f), y, like=y))
        return y

    replay = record(run, None, Arena())
    assert replay is not None
    assert torch.equal(replay(None), run())


def test_devices_without_kernels_compute_every_step(monkeypatch):
    model = build_network(MIXES["gqa and mlp"], seed=1)
    monkeypatch.setattr("blazr.engine.replay.can_replay", lambda _: False)
    got, replays = answers(model, replay=True)
    assert isinstance(replays, Replays)
    assert replays.num_python(Size(1, 1)) is None
    assert got[0][0]
