"""Where the last tokens of a text stood before: ``csrc/repeats.hpp`` behind the op's signature."""

from __future__ import annotations

import ctypes
from array import array

from blazr.nn.kernels.cpu.compiled import Call, kernels
from blazr.nn.kernels.cpu.structures import Int64, Pointer, structure

_FUNCTION = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


@structure
class _Repeat(Call, entry="find_repeat"):
    """``Repeat`` of kernels.hpp."""

    tokens: Pointer
    length: Int64
    longest: Int64
    candidates: Int64
    most: Int64
    place: Int64
    match: Int64
    num_agreed: Int64


class RepeatFinder:
    """`blazr.nn.ops.repeats.find_repeat`, in room of its own. One thread's.

    Args:
        longest: Tokens that are compared.
        candidates: Places that are compared, the latest first.
    """

    def __init__(self, longest: int, candidates: int) -> None:
        # as that of kernels(), but without releasing the GIL: other threads would get it for longer
        # than this takes
        entry = ctypes.cast(kernels().blazr_find_repeat, ctypes.c_void_p).value
        assert entry is not None
        self._entry = _FUNCTION(entry)
        self._call = _Repeat(0, 0, longest, candidates, 0, 0, 0, 0)
        self._given = ctypes.byref(self._call)

    def __call__(self, tokens: array[int], most: int) -> tuple[int, int, int]:
        """What the op returns."""
        call = self._call
        call.tokens, call.length = tokens.buffer_info()
        call.most = most
        self._entry(self._given, 1)
        return call.place, call.match, call.num_agreed
