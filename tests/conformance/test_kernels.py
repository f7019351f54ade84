"""Every kernel agrees with its op's reference, computed in float64, in each dtype and form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import torch
from torch import Tensor

from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.ops import OPS

# Half a unit in the last place of the result, and what sums in float32 lose.
RELATIVE = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 1e-5}
# Whole steps of a mixer, whose definition is the mixer; tests/unit/nn/kernels/test_sequence.py
STEPS = (
    *("mamba2", "convolve", "mamba1", "mamba3", "gated_delta", "gated_norm"),
    *("paged_attention", "rotate_and_store"),
)
# What is done to weights while they are loaded; tests/unit/nn/quant/test_packing.py
LOADING = ("pack", "encode_q4_k")
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


@pytest.fixture
def _best_again() -> Iterator[None]:
    yield
    if not compiled.missing():
        compiled.use()


@pytest.mark.usefixtures("_best_again")
@pytest.mark.parametrize(
    ("row", "isa"), FORMS, ids=[f"{row.device}.{row.op}-{isa}" for row, isa in FORMS]
)
def test_a_kernel_agrees_with_the_reference(row: Kernel, isa: str) -> None:
    if row.missing():
        pytest.skip(row.missing())
    if not compiled.use(isa):
        pytest.skip(f"this processor has no {isa}")
    op, function = OPS[row.op], _function(row)
    for dtype in row.dtypes:
        for arguments in op.samples(dtype):
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


def test_every_row_is_of_an_op_and_has_a_function() -> None:
    for row in KERNELS.values():
        assert row.op in OPS or row.op in STEPS + LOADING
        assert callable(_function(row))
