"""Recurrent states in bfloat16: which they are, and rounded at every grid edge on every path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blazr.core.errors import ShapeError, UnknownNameError
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.cpu.recurrent import mamba1, mamba2
from blazr.nn.layers.base import Mixer
from blazr.nn.layers.batch import LayerCache
from blazr.nn.operands.recurrent import Mamba1Rows, Mamba1Weights
from blazr.nn.operands.step import GRID, Carried, Span
from blazr.nn.ops.mamba1 import mamba1 as mamba1_op
from tests.support.examples import HIDDEN, MIXER_EXAMPLES
from tests.support.mixers import copy_of, memory_of, mixer_of, step_of
from tests.support.step_samples import STEP_SAMPLES
from tests.support.without_kernels import without_kernels

pytestmark = pytest.mark.sample

NAMES = [name for name, each in MIXER_EXAMPLES.items() if each.cache_spec(torch.float32).states]
# One with a part that joins what it sees with the embedding takes twice the channels.
NAMES.remove("shared_block")
ISAS = ["reference", *(() if compiled.missing() else compiled.isas())]


def run(mixer: Mixer, x: Tensor, cache: LayerCache, isa: str, span: Span) -> Tensor:
    """A step of one sequence, whose run is 0."""
    batch = step_of([span], pages=[[3, 1, 5]], states=[span.state_slot], runs=[0])
    if isa != "reference":
        compiled.use(isa)
        return mixer(x, batch, cache)
    with without_kernels():
        return mixer(x, batch, cache)


def test_states_take_half_and_all_else_stays() -> None:
    for name, config in MIXER_EXAMPLES.items():
        plain = config.cache_spec(torch.float16)
        stored = plain.stored_as(state_dtype="bfloat16")
        assert plain.stored_as() == plain, name
        assert (stored.paged, stored.log) == (plain.paged, plain.log)
        assert stored.bytes_per_working_copy == plain.bytes_per_working_copy
        for part, tensor in plain.checkpoint.items():
            is_state = part in plain.states
            assert part.endswith(("ssm", "delta", "lru", "state")) == is_state, (name, part)
            wanted = (torch.float32, torch.bfloat16) if is_state else (tensor.dtype,) * 2
            assert (tensor.dtype, stored.checkpoint[part].dtype) == wanted, (name, part)
        of_states = sum(plain.checkpoint[part].nbytes for part in plain.states)
        assert plain.bytes_per_checkpoint - stored.bytes_per_checkpoint == of_states / 2
        assert bool(plain.working) <= bool(plain.states), name
    with pytest.raises(UnknownNameError, match=r"(?s)auto, bfloat16.*did you mean 'bfloat16'"):
        plain.stored_as(state_dtype="bfloat")


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_what_is_kept_is_the_nearest(name: str, isa: str) -> None:
    """From the same numbers the first state at an edge differs by the rounding alone."""
    config = MIXER_EXAMPLES[name]
    mixer, narrow = mixer_of(config), memory_of(config, torch.float32, state_dtype="bfloat16")
    wide = copy_of(narrow, memory_of(config, torch.float32))
    x = torch.randn(GRID, HIDDEN)
    span = Span(0, GRID, 0, 0, ((GRID, 2),), state_slot=1)
    outs = [run(mixer, x, cache, isa, span) for cache in (narrow, wide)]
    assert torch.equal(*outs)
    for part, tensor in wide.checkpoint.items():
        kept = narrow.checkpoint[part]
        assert torch.equal(kept[2], tensor[2].to(kept.dtype)), part


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize("isa", ISAS[1:])  # torch's products of other sizes may round otherwise
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_edges_round_whether_or_not_a_state_is_kept(name: str, isa: str) -> None:
    config = MIXER_EXAMPLES[name]
    mixer, memory = mixer_of(config), memory_of(config, torch.float32, state_dtype="bfloat16")
    for length in (GRID, 2 * GRID + 20):
        x = torch.randn(length + 3, HIDDEN)
        last = length // GRID * GRID
        ends = []
        for edges in ([last], [*range(GRID, length + 1, GRID)]):
            cache = copy_of(memory)
            kept = tuple((edge, 2 if edge == last else 3) for edge in edges)
            outs = [run(mixer, x[:length], cache, isa, Span(0, length, 0, 0, kept))]
            after = Span(0, 3, length, length % GRID, state_slot=2)
            outs.append(run(mixer, x[length:], cache, isa, after))
            ends.append((outs, cache))
        # a step that ends at each edge, so that what follows begins with what was kept there
        cache, outs = copy_of(memory), []
        for at in range(0, length, GRID):
            count = min(GRID, length - at)
            own = ((count, 2),) if count == GRID else ()
            span = Span(0, count, at, 0, own, state_slot=2 if at else 0)
            outs.append(run(mixer, x[at : at + count], cache, isa, span))
        outs.append(run(mixer, x[length:], cache, isa, after))
        for whole, memory_then in ends:
            assert torch.equal(torch.cat(whole), torch.cat(outs)), (length, "put out")
            for part, tensor in cache.working.items():
                assert torch.equal(memory_then.working[part][0], tensor[0]), (length, part)
            for part, tensor in cache.checkpoint.items():
                assert torch.equal(memory_then.checkpoint[part][2], tensor[2]), (length, part)


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_rounding_is_seen_behind_an_edge_alone(name: str, isa: str) -> None:
    if name == "mamba1_oxidizr":
        pytest.skip("its states grow to their limit, which bfloat16 has")
    config = MIXER_EXAMPLES[name]
    mixer, narrow = mixer_of(config), memory_of(config, torch.float32, state_dtype="bfloat16")
    wide = copy_of(narrow, memory_of(config, torch.float32))
    x = torch.randn(GRID + 9, HIDDEN)
    span = Span(0, GRID + 9, 0, 0, ((GRID, 2),), state_slot=1)
    rounded, plain = (run(mixer, x, cache, isa, span) for cache in (narrow, wide))
    assert torch.equal(rounded[:GRID], plain[:GRID])
    assert not torch.equal(rounded[GRID:], plain[GRID:])
    error = (rounded - plain).square().mean().sqrt() / plain.abs().max()
    assert error < 2**-7  # the distance of two numbers of bfloat16


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize("isa", ISAS)
@torch.inference_mode()
def test_ties_go_to_even_and_what_is_no_number_stays(isa: str) -> None:
    """Of a state that nothing is added to and that does not decay."""
    numbers = [0.0, 1.0, -2.5, 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 1 + 2**-8 + 2**-20]
    numbers += [3.4e38, float("inf"), -float("inf"), float("nan"), 2.0**-126]
    state = torch.tensor(numbers)[:, None]
    count = len(numbers)
    zeros = torch.zeros(1, count)
    rows = Mamba1Rows(dt=zeros, b=zeros[:, :1], c=zeros[:, :1], gate=zeros)
    weights = Mamba1Weights(torch.zeros(count, 1), torch.zeros(count), 0.0)
    carried = Carried(
        torch.zeros(3, count, 1, dtype=torch.bfloat16), state.expand(3, -1, -1).clone()
    )
    table = step_of([Span(0, 1, 63, 63, ((1, 2),), state_slot=1)]).table
    if isa == "reference":
        mamba1_op.reference(zeros, rows, weights, carried, table)
    else:
        compiled.use(isa)
        mamba1(zeros, rows, weights, carried, table)
    expected = state.bfloat16()
    assert torch.equal(carried.kept[2].isnan(), expected.isnan())
    assert torch.equal(carried.kept[2].nan_to_num(1.0), expected.nan_to_num(1.0))
    assert torch.equal(carried.working[0].nan_to_num(1.0), expected.float().nan_to_num(1.0))


@pytest.mark.skipif(bool(compiled.missing()), reason="kernels are not compiled")
def test_kernels_refuse_other_dtypes() -> None:
    u, rows, weights, state, table = next(iter(STEP_SAMPLES["mamba1"](torch.float32)))
    with pytest.raises(ShapeError, match="float16"):
        mamba1(u, rows, weights, Carried(state.kept.half(), state.working), table)
    with pytest.raises(ShapeError, match="bfloat16"):
        mamba1(u, rows, weights, Carried(state.kept, state.working.bfloat16()), table)
    projected, weights, memory, table = next(iter(STEP_SAMPLES["mamba2"](torch.float32)))
    object.__setattr__(memory, "states", memory.states.half())
    with pytest.raises(ShapeError, match="float16"):
        mamba2(projected, weights, memory, table)
