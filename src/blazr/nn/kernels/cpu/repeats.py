"""What followed the last tokens before: ``csrc/repeats.hpp`` behind the op's signature."""

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
    following: Pointer
    length: Int64
    most: Int64
    longest: Int64
    candidates: Int64
    widest: Int64
    most_replaced: Int64
    replaced_cost: Int64
    recent: Int64
    match: Int64
    num_agreed: Int64
    num_replaced: Int64


class RepeatFinder:
    """`blazr.nn.ops.repeats.find_repeat`, in room of its own. One thread's.

    Args:
        limits: The op's, in the order of the fields of `_Repeat`.
    """

    def __init__(self, limits: tuple[int, ...]) -> None:
        # as that of kernels(), but without releasing the GIL: other threads would get it for longer
        # than this takes
        entry = ctypes.cast(kernels().blazr_find_repeat, ctypes.c_void_p).value
        assert entry is not None
        self._entry = _FUNCTION(entry)
        self._call = _Repeat(0, 0, 0, 0, *limits, 0, 0, 0)  # type: ignore[call-arg]
        self._given = ctypes.byref(self._call)
        self._following = (ctypes.c_int32 * 0)()

    def __call__(self, tokens: array[int], most: int) -> tuple[tuple[int, ...], int, int, bool]:
        """What the op returns."""
        call = self._call
        if most > len(self._following):
            self._following = (ctypes.c_int32 * most)()
            call.following = ctypes.addressof(self._following)
        call.tokens, call.length = tokens.buffer_info()
        call.most = most
        self._entry(self._given, 1)
        match = call.match
        if not match:
            return (), 0, call.num_agreed, False
        return tuple(self._following[:most]), match, call.num_agreed, call.num_replaced > 0
