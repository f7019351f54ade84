"""Every kernel agrees with its op's reference, computed in float64, in each dtype and form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blazr.nn.kernels import KERNELS
from blazr.nn.kernels.cpu import compiled
from blazr.nn.kernels.kernel import Kernel
from blazr.nn.operands.kv_dtype import kv_dtype_of
from blazr.nn.operands.lora import LoraDelta
from blazr.nn.operands.packing import Packed, Packing
from blazr.nn.operands.recurrent import Mamba2Memory
from blazr.nn.operands.step import GRID, StepTable
from blazr.nn.ops import OPS
from blazr.nn.ops.op import Op
from tests.support.kernel_shapes import ANY_SHAPE, Sizes
from tests.support.op_samples import SAMPLES
from tests.support.step_samples import STEP_SAMPLES

# Half a unit in the last place of the result, and what sums in float32 lose.
RELATIVE = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 1e-5}
# What is done to weights while they are loaded; tests/unit/nn/quant/test_packing.py
LOADING = ("pack", "encode_q4_k")
# Where sums that hardly differ may decide between tokens; tests/unit/nn/kernels/test_draws.py
DRAWS = ("draw",)
# How often numbers are rounded to the dtype on their way, where that is not once.
ROUNDINGS = {"experts": 2, "gated_norm": 2}
# How far sums of many terms that cancel may lie apart by luck, as a share of the largest.
LUCK = {torch.float32: 3e-6, torch.float16: 2**-8, torch.bfloat16: 2**-5}
ROWS = [row for row in KERNELS.values() if row.device == "cpu" and row.op not in LOADING]
# Of any shape in tests/unit/nn/kernels/test_any_mixer.py.
STEPS = (*STEP_SAMPLES, "gated_norm")


def _function(row: Kernel) -> Callable[..., Tensor]:
    module, _, name = row.target.partition(":")
    function: Callable[..., Tensor] = getattr(import_module(module), name)
    return function


def _converted(argument: Any, dtype: torch.dtype) -> Any:
    """A copy with all floats within it in another dtype; as such are pages of fewer bits stored."""
    if isinstance(argument, Tensor):
        argument = kv_dtype_of(argument).decode(argument)
        is_cast = argument.is_floating_point()
        return argument.to(dtype if is_cast else argument.dtype, copy=True)
    if type(argument) is tuple and argument and isinstance(argument[-1], Tensor | LoraDelta):
        return tuple(_converted(each, dtype) for each in argument)
    if is_dataclass(argument) and not isinstance(argument, StepTable | Packing):
        changed = {
            each.name: _converted(getattr(argument, each.name), dtype) for each in fields(argument)
        }
        return replace(argument, **changed)  # type: ignore[type-var]
    return argument


def _tensors(argument: Any) -> Iterator[Tensor]:
    """All floats within it, in one order."""
    if isinstance(argument, Tensor):
        numbers = kv_dtype_of(argument).decode(argument)
        if numbers.is_floating_point():
            yield numbers
    elif isinstance(argument, tuple) and argument and not isinstance(argument, Packed):
        for each in argument:
            yield from _tensors(each)
    elif is_dataclass(argument) and not isinstance(argument, StepTable | Packing):
        for each in fields(argument):
            yield from _tensors(getattr(argument, each.name))


@pytest.mark.usefixtures("kernels_as_before")
@pytest.mark.parametrize("row", ROWS, ids=[f"{row.device}.{row.op}" for row in ROWS])
def test_a_kernel_agrees_with_the_reference(row: Kernel) -> None:
    if row.missing():
        pytest.skip(row.missing())
    for dtype in row.dtypes:
        for arguments in SAMPLES[row.op](dtype):
            _agree(row, dtype, arguments)


def _agree(row: Kernel, dtype: torch.dtype, arguments: tuple[object, ...]) -> None:
    """Under every instruction set of this processor."""
    op, function = OPS[row.op], _function(row)
    if row.op in STEP_SAMPLES:
        _agree_on_memory(op, function, dtype, arguments)
        return
    expected = op.reference(*(_converted(argument, torch.float64) for argument in arguments))
    result_dtype = op.reference(*deepcopy(arguments)).dtype
    for isa in compiled.isas():
        compiled.use(isa)
        got = function(*deepcopy(arguments))  # some write to what they are given
        assert got.dtype == result_dtype
        torch.testing.assert_close(
            got.double(),
            expected.double(),
            rtol=RELATIVE[dtype] * ROUNDINGS.get(row.op, 1),
            atol=1e-5,
            msg=f"{isa}, {dtype}: {[getattr(a, 'shape', a) for a in arguments]}",
        )


def _agree_on_memory(
    op: Op[...], function: Callable[..., Tensor], dtype: torch.dtype, arguments: tuple[object, ...]
) -> None:
    """What is put out and what is remembered; what the reference loses is allowed twice."""
    wide = tuple(_converted(each, torch.float32) for each in arguments)  # as recurrences run
    truths = _results(op.reference, wide)
    usuals = _results(op.reference, deepcopy(arguments))
    for isa in compiled.isas():
        compiled.use(isa)
        # copies that keep what lies beside what
        for truth, usual, got in zip(
            truths, usuals, _results(function, deepcopy(arguments)), strict=True
        ):
            assert got.dtype == usual.dtype
            lost, error = _error(usual, truth), _error(got, truth)
            where = isa, [getattr(a, "shape", a) for a in arguments]
            assert error <= 2 * lost + LUCK[dtype], where


def _results(function: Callable[..., Tensor], arguments: tuple[object, ...]) -> list[Tensor]:
    """What is put out, and what is remembered then."""
    out = function(*arguments)
    _clear_full_logs(arguments)
    return [out, *_tensors(arguments[1:])]


def _clear_full_logs(arguments: tuple[object, ...]) -> None:
    """Logs of sequences that end at a grid edge are never read again."""
    memory, table = arguments[-2:]
    if isinstance(memory, Mamba2Memory) and isinstance(table, StepTable):
        full = [s.run_slot for s in table.spans if (s.log_length + s.length) % GRID == 0]
        for log in (memory.log_raw, memory.log_xb, memory.log_dt):
            log[full] = 0


def _error(found: Tensor, truth: Tensor) -> float:
    """Root of the mean square, as a share of the largest."""
    if not truth.numel():
        return 0.0
    wide = found.double() - truth.double()
    return float(wide.square().mean().sqrt() / truth.double().abs().max().clamp(min=1e-3))


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
    _agree(row, dtype, arguments)


@pytest.mark.parametrize("name", OPS)
def test_samples_have_nothing_one_row_and_tails(name: str) -> None:
    """What a new operation's samples must not leave out."""
    kinds = set()
    for dtype in KERNELS[f"cpu.{name}"].dtypes:
        for arguments in SAMPLES[name](dtype):
            shapes = [a.shape for a in (*arguments, *_tensors(arguments)) if isinstance(a, Tensor)]
            shapes += [torch.Size((a.rows, a.columns)) for a in arguments if isinstance(a, Packed)]
            kinds |= {"nothing" for shape in shapes if not shape.numel()}
            kinds |= {"one row" for shape in shapes if shape[:1] == (1,)}
            kinds |= {"tails" for shape in shapes if any(size % 16 for size in shape)}
    assert kinds == {"nothing", "one row", "tails"}


def test_every_row_is_of_an_op_and_has_a_function() -> None:
    for row in KERNELS.values():
        assert row.op in OPS or row.op in LOADING
        assert callable(_function(row))
    assert {row.op for row in KERNELS.values()} == {*ANY_SHAPE, *STEPS, *LOADING, *DRAWS}
