"""The compiled kernels: found, checked, and bound to an instruction set."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from blazr.core import env
from blazr.core.errors import ShapeError
from blazr.nn.kernels.compile import LIBRARY, find_compiler, fingerprint
from blazr.nn.kernels.cpu.structures import Pointer, structure
from blazr.nn.kernels.recording import NativeCall, recording
from blazr.nn.operands.kv_dtype import kv_dtype_of

# As kernels.hpp numbers them.
DTYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
# As library.cpp numbers them, best first.
ISAS = ("amx", "avx512_bf16", "avx512", "avx_vnni", "avx2", "neon", "portable")

_POINTER, _INT64, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


@cache
def kernels() -> ctypes.CDLL:
    """The library, ready to be called. Every call releases the GIL.

    Raises:
        OSError: There is none that fits, as ``missing`` says.
    """
    why = missing()
    if why:
        raise OSError(why)
    found = _open(LIBRARY)
    found.blazr_replay.argtypes, found.blazr_replay.restype = [_POINTER, _INT64, _INT], None
    found.blazr_peak.argtypes, found.blazr_peak.restype = [_INT64, _INT64, _INT], _INT64
    return found


class Call(ctypes.Structure):
    """What a function of the library is given: ``blazr_NAME(const Struct* call, int threads)``.

    Args:
        entry: That name.
    """

    _entry: ClassVar[str]

    def __init_subclass__(cls, *, entry: str) -> None:
        super().__init_subclass__()
        cls._entry = f"blazr_{entry}"

    def run(self) -> None:
        """Call the kernel, or record the call while a step is recorded."""
        entry = getattr(kernels(), self._entry)
        current = recording()
        if current is None:
            entry(ctypes.byref(self), torch.get_num_threads())
        else:
            current.keep(ctypes.cast(entry, _POINTER).value or 0, self)


@structure
class _Recorded(ctypes.Structure):
    """``Recorded`` of kernels.hpp."""

    run: Pointer
    call: Pointer


def shape_error(what: str, found: Tensor, expected: str) -> ShapeError:
    """Return the error for a tensor of another shape or dtype than a kernel takes.

    Args:
        what: The message.
        found: The tensor.
        expected: Its shape and dtype as they should be.
    """
    return ShapeError(what, found=f"{tuple(found.shape)} {found.dtype}", expected=expected)


def are_in_range(ids: Tensor, count: int) -> bool:
    """Whether all ids are from 0 up to ``count``, so that kernels read no memory beyond a table.

    True while a step is recorded: the ids are not known then, and later come from sampling.
    """
    is_known = len(ids) and recording() is None
    return not is_known or 0 <= int(ids.min()) <= int(ids.max()) < count


def kv_dtype_number(pages: Tensor) -> int:
    """The number of the pages' KV dtype in kernels.hpp; 0 if they are in the model's dtype."""
    return kv_dtype_of(pages).number


def replayer(calls: Sequence[NativeCall]) -> Callable[[], None]:
    """Return a function that replays recorded calls by one call into the library."""
    rows = [_Recorded(address, ctypes.addressof(call)) for address, call in calls]
    table = (_Recorded * len(rows))(*rows)
    replay, count, keep = kernels().blazr_replay, len(rows), list(calls)

    def run() -> None:
        assert keep  # the table points into them
        replay(table, count, torch.get_num_threads())

    return run


@cache
def missing() -> str:
    """Why the kernels cannot run here; an empty string where they can."""
    again = "python -m blazr.nn.kernels.build compiles them"
    if not LIBRARY.exists():
        none = "" if find_compiler() else "; it needs g++ or clang++"
        return f"the CPU kernels are not compiled ({again}{none})"
    try:
        found = _open(LIBRARY)
    except OSError as error:
        return f"the CPU kernels do not load: {error}"
    if _text(found.blazr_sources()) != fingerprint():
        return f"the CPU kernels are older than their sources ({again})"
    wanted = env.get("BLAZR_KERNELS")
    return "" if use(wanted) else f"BLAZR_KERNELS is {wanted[:100]!r}; here it can be {isas()}"


def isas() -> tuple[str, ...]:
    """Instruction sets that this processor and the library have, best first."""
    found = _open(LIBRARY)
    names = (_text(found.blazr_isa(number)) for number in range(len(ISAS)))
    return tuple(name for name in names if name)


def use(isa: str = "") -> bool:
    """Run on this instruction set from now on, in the whole process; the best when empty.

    Returns:
        Whether this processor and the library have it.
    """
    names = isas()
    chosen = isa or names[0]
    if chosen not in names:
        return False
    found = _open(LIBRARY)
    found.blazr_use(ISAS.index(chosen))
    return True


def layouts() -> dict[str, list[int]]:
    """What calls are given, as the library has it: size and offsets of the fields, by name."""
    lines = (line.split() for line in _text(kernels().blazr_layouts()).splitlines())
    return {name: [int(number) for number in numbers] for name, *numbers in lines}


def in_use() -> str:
    """The instruction set that runs."""
    return _text(kernels().blazr_in_use())


def explain() -> str:
    """What runs here and why, for people."""
    why = missing()
    if why:
        return f"torch's operations: {why}"
    why = "BLAZR_KERNELS" if env.get("BLAZR_KERNELS") else "the best here"
    return f"{in_use()} ({why}) of {', '.join(isas())}"


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode()


@cache
def _open(path: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    for name in ("blazr_isa", "blazr_in_use", "blazr_sources", "blazr_layouts"):
        getattr(found, name).restype = ctypes.c_char_p
    found.blazr_use.argtypes = [_INT]
    return found
