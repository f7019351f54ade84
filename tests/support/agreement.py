"""Whether a kernel agrees with its operation's reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from importlib import import_module

import torch
from torch import Tensor

from blazr.nn.kernels.kernel import Kernel
from blazr.nn.operands.experts import ExpertMlps
from blazr.nn.operands.floats import StoredMatrix
from blazr.nn.operands.kv_dtype import kv_dtype_of
from blazr.nn.operands.lora import LoraDelta
from blazr.nn.operands.packing import Packed, Packing
from blazr.nn.operands.recurrent import Mamba2Memory
from blazr.nn.operands.step import GRID, StepTable
from blazr.nn.ops import OPS
from blazr.nn.ops.op import Op
from tests.support.step_samples import STEP_SAMPLES

# Half a unit in the last place of the result, and what sums in float32 lose.
RELATIVE = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 1e-5}
# How often numbers are rounded to the dtype on their way, where that is not once.
ROUNDINGS = {"add_rms_norm": 2, "experts": 2, "gated_norm": 2}
# How far sums of many terms that cancel may lie apart by luck, as a share of the largest.
LUCK = {torch.float32: 3e-6, torch.float16: 2**-8, torch.bfloat16: 2**-5}


def function_of(row: Kernel) -> Callable[..., Tensor]:
    """What a row names, imported."""
    module, _, name = row.target.partition(":")
    function: Callable[..., Tensor] = getattr(import_module(module), name)
    return function


def converted(argument: object, dtype: torch.dtype) -> object:
    """A copy with all floats within it in another dtype; as such are pages of fewer bits stored."""
    if isinstance(argument, Tensor):
        argument = kv_dtype_of(argument).decode(argument)
        is_cast = argument.is_floating_point()
        return argument.to(dtype if is_cast else argument.dtype, copy=True)
    if type(argument) is tuple and argument and isinstance(argument[-1], Tensor | LoraDelta):
        return tuple(converted(each, dtype) for each in argument)
    if is_dataclass(argument) and not isinstance(argument, StepTable | Packing):
        changed = {
            each.name: converted(getattr(argument, each.name), dtype) for each in fields(argument)
        }
        return replace(argument, **changed)  # type: ignore[type-var]
    return argument


def tensors_in(argument: object) -> Iterator[Tensor]:
    """All floats within it, in one order."""
    if isinstance(argument, Tensor):
        numbers = kv_dtype_of(argument).decode(argument)
        if numbers.is_floating_point():
            yield numbers
    elif (
        isinstance(argument, tuple) and argument and not isinstance(argument, Packed | StoredMatrix)
    ):
        for each in argument:
            yield from tensors_in(each)
    elif is_dataclass(argument) and not isinstance(argument, StepTable | Packing):
        for each in fields(argument):
            yield from tensors_in(getattr(argument, each.name))


def agree(
    row: Kernel, dtype: torch.dtype, arguments: tuple[object, ...], forms: Iterable[str]
) -> None:
    """Assert that the kernel of a row agrees with the reference, computed in more digits.

    Args:
        row: Of KERNELS.
        dtype: Of the first argument.
        arguments: What both take.
        forms: Their names, of instruction sets for one; kernels run in a form once it is taken.
    """
    op, function = OPS[row.op], function_of(row)
    if row.op in STEP_SAMPLES or _has_stored_weights(arguments):
        _agree_on_memory(op, function, dtype, arguments, forms)
        return
    expected = op.reference(*(converted(argument, torch.float64) for argument in arguments))
    expected = expected.double()
    writable = _Writable(arguments)
    result_dtype = op.reference(*writable.fresh()).dtype
    rtol, atol = RELATIVE[dtype] * ROUNDINGS.get(row.op, 1), 1e-5
    for form in forms:
        got = function(*writable.fresh())
        assert got.dtype == result_dtype
        wide = got.double()
        if wide.shape == expected.shape and torch.allclose(wide, expected, rtol=rtol, atol=atol):
            continue
        where = form, dtype, [getattr(a, "shape", a) for a in arguments]
        # to say what is wrong takes longer than to find that nothing is
        torch.testing.assert_close(
            wide, expected, rtol=rtol, atol=atol, msg=lambda found, where=where: f"{where}\n{found}"
        )


def fits(row: Kernel, arguments: tuple[object, ...]) -> bool:
    """Whether the kernel has room for them."""
    limit = getattr(function_of(row), "fits", None)
    return limit is None or limit(*arguments)


def _has_stored_weights(arguments: Iterable[object]) -> bool:
    """Whether weights are rounded, too, so that the reference has something to lose."""
    return any(
        isinstance(each, StoredMatrix)
        or (isinstance(each, ExpertMlps) and isinstance(each.up, StoredMatrix))
        for each in arguments
    )


class _Writable:
    """A copy of arguments, for each use with the numbers they had, and with what lies beside what.

    Packed weights are never written to. To copy all objects for each use takes longer than kernels.
    """

    def __init__(self, arguments: tuple[object, ...]) -> None:
        memo: dict[int, object] = {id(each): each for each in arguments if isinstance(each, Packed)}
        self._arguments = deepcopy(arguments, memo)
        copied = (each for each in memo.values() if isinstance(each, Tensor))
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in copied}
        self._kept = [(storage, storage.clone()) for storage in storages.values()]

    def fresh(self) -> tuple[object, ...]:
        """All as it was, until it is asked for again."""
        for storage, before in self._kept:
            storage.copy_(before)
        return self._arguments


def _agree_on_memory(
    op: Op[...],
    function: Callable[..., Tensor],
    dtype: torch.dtype,
    arguments: tuple[object, ...],
    forms: Iterable[str],
) -> None:
    """What is put out and what is remembered; what the reference loses is allowed twice."""
    wide = tuple(converted(each, torch.float32) for each in arguments)  # as recurrences run
    writable = _Writable(arguments)
    usuals = [each.clone() for each in _results(op.reference, writable.fresh())]
    truths = [truth.double() for truth in _results(op.reference, wide)]
    allowed = [
        2 * _error(usual, truth) + LUCK[dtype] for usual, truth in zip(usuals, truths, strict=True)
    ]
    for form in forms:
        found = _results(function, writable.fresh())
        for truth, usual, got, limit in zip(truths, usuals, found, allowed, strict=True):
            assert got.dtype == usual.dtype
            if not torch.equal(got, usual):
                where = form, [getattr(a, "shape", a) for a in arguments]
                assert _error(got, truth) <= limit, where


def _results(function: Callable[..., Tensor], arguments: tuple[object, ...]) -> list[Tensor]:
    """What is put out, and what is remembered then."""
    out = function(*arguments)
    _clear_full_logs(arguments)
    return [out, *tensors_in(arguments[1:])]


def _clear_full_logs(arguments: tuple[object, ...]) -> None:
    """Logs of sequences that end at a grid edge are never read again."""
    memory, table = arguments[-2:]
    if isinstance(memory, Mamba2Memory) and isinstance(table, StepTable):
        full = [s.run_slot for s in table.spans if (s.log_length + s.length) % GRID == 0]
        for log in (memory.log_raw, memory.log_xb, memory.log_dt):
            if log is not None:
                log[full] = 0


def _error(found: Tensor, truth: Tensor) -> float:
    """Root of the mean square, as a share of the largest."""
    if not truth.numel():
        return 0.0
    wide = found.double() - truth
    return float(wide.square().mean().sqrt() / truth.abs().max().clamp(min=1e-3))
