"""Every kernel agrees with its op's reference, computed in float64, in each dtype and form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.operands.packing import Packed
from blazr.nn.ops import OPS
from tests.support.agreement import agree, fits, function_of, tensors_in
from tests.support.kernel_shapes import ANY_SHAPE, Sizes
from tests.support.op_samples import SAMPLES
from tests.support.seeds import run_seed
from tests.support.step_samples import STEP_SAMPLES

# What is done to weights while they are loaded; tests/unit/nn/quant/test_packing.py
LOADING = ("pack", "encode_q4_k")
# Where sums that hardly differ may decide between tokens; tests/unit/nn/kernels/test_draws.py
DRAWS = ("draw",)
ROWS = [row for row in KERNELS.values() if row.device == "cpu" and row.op not in LOADING]
# Of any shape in tests/unit/nn/kernels/test_any_mixer.py.
STEPS = (*STEP_SAMPLES, "gated_norm")


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize("row", ROWS, ids=[f"{row.device}.{row.op}" for row in ROWS])
def test_a_kernel_agrees_with_the_reference(row: Kernel) -> None:
    if row.missing():
        pytest.skip(row.missing())
    turns = count(run_seed())
    for dtype in row.dtypes:
        for arguments in SAMPLES[row.op](dtype):
            if fits(row, arguments):
                best, *others = compiled.isas()
                # the others take turns: a sample differs from the next in little
                turn = next(turns) % max(len(others), 1)
                agree(row, dtype, arguments, _used([best, *others[turn : turn + 1]]))


def _used(isas: Iterable[str]) -> Iterator[str]:
    """Instruction sets, in use while they are looked at."""
    for isa in isas:
        compiled.use(isa)
        yield isa


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize("op", ANY_SHAPE)
@settings(max_examples=15)
@given(data=st.data())
def test_any_shape(op: str, data: st.DataObject) -> None:
    row = KERNELS[f"cpu.{op}"]
    if row.missing():
        pytest.skip(row.missing())
    dtype = data.draw(st.sampled_from(row.dtypes))
    arguments = ANY_SHAPE[op](Sizes(data), dtype)
    agree(row, dtype, arguments, _used(compiled.isas()))


@pytest.mark.parametrize("name", OPS)
def test_samples_have_nothing_one_row_and_tails(name: str) -> None:
    """What a new operation's samples must not leave out."""
    wanted = {"nothing", "one row", "tails"}
    kinds = set()
    for dtype in next(row.dtypes for row in KERNELS.values() if row.op == name):
        for arguments in SAMPLES[name](dtype):
            shapes = [
                a.shape for a in (*arguments, *tensors_in(arguments)) if isinstance(a, Tensor)
            ]
            shapes += [torch.Size((a.rows, a.columns)) for a in arguments if isinstance(a, Packed)]
            kinds |= {"nothing" for shape in shapes if not shape.numel()}
            kinds |= {"one row" for shape in shapes if shape[:1] == (1,)}
            kinds |= {"tails" for shape in shapes if any(size % 16 for size in shape)}
            if kinds == wanted:
                return
    assert kinds == wanted


def test_every_row_is_of_an_op_and_has_a_function() -> None:
    for row in KERNELS.values():
        assert row.op in OPS or row.op in LOADING
        if row.device == "cpu":  # what the others need may not be installed
            assert callable(function_of(row))
    of_cpus = {row.op for row in KERNELS.values() if row.device == "cpu"}
    assert of_cpus == {*ANY_SHAPE, *STEPS, *LOADING, *DRAWS}
