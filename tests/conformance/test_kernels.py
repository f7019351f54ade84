"""Every kernel agrees with its op's reference, computed in float64, in each dtype and form."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.kernels.packing import Packed
from blazr.nn.ops import OPS
from tests.support.kernel_shapes import ANY_SHAPE, Sizes

# Half a unit in the last place of the result, and what sums in float32 lose.
RELATIVE = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 1e-5}
# Whole steps of a mixer, whose definition is the mixer; tests/unit/nn/kernels/test_any_mixer.py
STEPS = (
    *("mamba2", "convolve", "mamba1", "mamba3", "gated_delta", "gated_norm"),
    *("paged_attention", "rotate_and_store"),
)
# What is done to weights while they are loaded; tests/unit/nn/quant/test_packing.py
LOADING = ("pack", "encode_q4_k")
# Where sums that hardly differ may decide between tokens; tests/unit/nn/kernels/test_draws.py
DRAWS = ("draw",)
FORMS = [
    (row, isa)
    for row in KERNELS.values()
    if row.device == "cpu" and row.op not in STEPS + LOADING
    for isa in compiled.ISAS
]


def _function(row: Kernel) -> Callable[..., Tensor]:
    module, _, name = row.target.partition(":")
    function: Callable[..., Tensor] = getattr(import_module(module), name)
    return function


def _widened(argument: object) -> object:
    if isinstance(argument, Tensor) and argument.is_floating_point():
        return argument.double()
    return argument


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize(
    ("row", "isa"), FORMS, ids=[f"{row.device}.{row.op}-{isa}" for row, isa in FORMS]
)
def test_a_kernel_agrees_with_the_reference(row: Kernel, isa: str) -> None:
    if row.missing():
        pytest.skip(row.missing())
    if not compiled.use(isa):
        pytest.skip(f"this processor has no {isa}")
    for dtype in row.dtypes:
        for arguments in OPS[row.op].samples(dtype):
            _agree(row, dtype, arguments)


def _agree(row: Kernel, dtype: torch.dtype, arguments: tuple[object, ...]) -> None:
    op, function = OPS[row.op], _function(row)
    wide = [_widened(argument) for argument in arguments]
    expected = op.reference(*wide)
    got = function(*arguments)
    assert got.dtype == op.reference(*arguments).dtype
    torch.testing.assert_close(
        got.double(),
        expected.double(),
        rtol=RELATIVE[dtype] * op.roundings,
        atol=1e-5,
        msg=f"{dtype}: {[getattr(a, 'shape', a) for a in arguments]}",
    )


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
    for isa in compiled.isas():
        compiled.use(isa)
        _agree(row, dtype, arguments)


@pytest.mark.parametrize("name", OPS)
def test_samples_have_nothing_one_row_and_tails(name: str) -> None:
    """What a new operation's samples must not leave out."""
    kinds = set()
    for dtype in KERNELS[f"cpu.{name}"].dtypes:
        for arguments in OPS[name].samples(dtype):
            shapes = [a.shape for a in arguments if isinstance(a, Tensor)]
            shapes += [torch.Size((a.rows, a.columns)) for a in arguments if isinstance(a, Packed)]
            kinds |= {"nothing" for shape in shapes if not shape.numel()}
            kinds |= {"one row" for shape in shapes if shape[:1] == (1,)}
            kinds |= {"tails" for shape in shapes if any(size % 16 for size in shape)}
    assert kinds == {"nothing", "one row", "tails"}


def test_every_row_is_of_an_op_and_has_a_function() -> None:
    for row in KERNELS.values():
        assert row.op in OPS or row.op in STEPS + LOADING
        assert callable(_function(row))
    assert {row.op for row in KERNELS.values()} == {*ANY_SHAPE, *STEPS, *LOADING, *DRAWS}
