"""Choosing tokens by their scores: ``csrc/sampling.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from weakref import ref

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import Call, kernels, shape_error
from blazr.nn.kernels.cpu.structures import Int64, Pointer, structure

# As kernels.hpp numbers them.
_BLOCK, _TALLIES, _WISHES = 512, 50 * 16 + 2, 5
_TALLY_BYTES = _CANDIDATE_BYTES = 16
_MOST_PARTS = 16
_MOST_ROOMS = 64  # shapes of scores: one for each number of tokens of a step
# To draw takes 16 bytes a score and more: room for many scores, whose draws take long, is not kept.
_MOST_DRAW_ROOMS, _MOST_KEPT = 8, 2**22


@structure
class _Choice(Call, entry="choose"):
    """``Choice`` of kernels.hpp."""

    scores: Pointer
    peaks: Pointer
    places: Pointer
    rows: Int64
    size: Int64
    stride: Int64
    blocks: Int64
    count: Int64


@structure
class _Draw(Call, entry="draw"):
    """``Draw`` of kernels.hpp."""

    scores: Pointer
    wishes: Pointer
    peaks: Pointer
    tallies: Pointer
    candidates: Pointer
    places: Pointer
    rows: Int64
    size: Int64
    stride: Int64
    blocks: Int64
    parts: Int64


class Finder:
    """Finds likeliest tokens in room of its own: what is done each step, with cold caches.

    One thread's.
    """

    def __init__(self) -> None:
        self._entry = kernels().blazr_choose
        self._room = lru_cache(_MOST_ROOMS)(_Room)

    def __call__(self, scores: Tensor) -> list[int]:
        """The places, as ``blazr.nn.ops.sampling.likeliest`` defines them."""
        room = self._room(*scores.shape)
        scores = room.take(scores)  # held until its likeliest are found
        self._entry(room.given, torch.get_num_threads())
        return room.found[:]


class Drawer:
    """Draws tokens in room of its own, as `Finder` finds them. One thread's."""

    def __init__(self) -> None:
        self._entry = kernels().blazr_draw
        self._room = lru_cache(_MOST_DRAW_ROOMS)(_DrawRoom)

    def __call__(self, scores: Tensor, wishes: Sequence[Sequence[float]]) -> list[int]:
        """The places, as ``blazr.nn.ops.sampling.draw`` defines them."""
        make = self._room if scores.numel() <= _MOST_KEPT else _DrawRoom
        room = make(*scores.shape)
        scores = room.take(scores)
        room.wishes[:] = [*chain.from_iterable(wishes)]
        self._entry(room.given, torch.get_num_threads())
        return room.found[:]


class _Room:
    """Where likeliest tokens of scores of one shape are put."""

    def __init__(self, rows: int, size: int) -> None:
        self._blocks = -(-size // _BLOCK)
        self._memory = [torch.empty(rows * self._blocks), torch.empty(rows, dtype=torch.int64)]
        # it is read faster than a tensor is
        self.found = (ctypes.c_int64 * rows).from_address(self._memory[1].data_ptr())
        self._call = self._make_call(rows, size)
        self.given = ctypes.byref(self._call)
        self._last: Callable[[], Tensor | None] = lambda: None

    def _make_call(self, rows: int, size: int) -> _Choice | _Draw:
        peaks, places = (each.data_ptr() for each in self._memory)
        return _Choice(0, peaks, places, rows, size, 0, self._blocks, 0)

    def take(self, scores: Tensor) -> Tensor:
        """Look at these from now on, or at a copy, which is returned."""
        if scores is not self._last():  # recorded steps always have the same
            scores = _side_by_side(scores)
            self._last = ref(scores)
            self._call.scores = scores.data_ptr()
            self._call.stride = scores.stride(0)
        return scores


class _DrawRoom(_Room):
    """Where tokens that are drawn are put."""

    def _make_call(self, rows: int, size: int) -> _Draw:
        # sums are exact, so that it makes no difference how many parts there are
        threads = torch.get_num_threads()
        parts = max(1, min(_MOST_PARTS, self._blocks, -(-2 * threads // max(rows, 1))))
        tallies = rows * parts * _TALLIES * _TALLY_BYTES
        self._memory += [
            torch.empty(rows * _WISHES, dtype=torch.float64),
            torch.empty(tallies, dtype=torch.uint8),
            torch.empty(rows * size * _CANDIDATE_BYTES, dtype=torch.uint8),
        ]
        peaks, places, wishes, tallied, candidates = (each.data_ptr() for each in self._memory)
        self.wishes = (ctypes.c_double * (_WISHES * rows)).from_address(wishes)
        return _Draw(
            0, wishes, peaks, tallied, candidates, places, rows, size, 0, self._blocks, parts
        )


def likeliest(scores: Tensor) -> Tensor:
    """See ``blazr.nn.ops.sampling.likeliest``."""
    return torch.tensor(Finder()(scores), dtype=torch.int64)


def best(scores: Tensor, count: int) -> Tensor:
    """See ``blazr.nn.ops.sampling.best``."""
    if not 1 <= count <= scores.shape[1]:
        raise ShapeError(
            "there are not so many to choose.", found=str(count), expected=f"1 to {scores.shape[1]}"
        )
    scores, (rows, size) = _side_by_side(scores), scores.shape
    blocks = -(-size // _BLOCK)
    peaks = torch.empty(rows * blocks, dtype=torch.float32)
    places = torch.empty(rows, count, dtype=torch.int64)
    _Choice(
        scores.data_ptr(),
        peaks.data_ptr(),
        places.data_ptr(),
        rows,
        size,
        scores.stride(0),
        blocks,
        count,
    ).run()
    return places


def draw(scores: Tensor, wishes: Tensor) -> Tensor:
    """See ``blazr.nn.ops.sampling.draw``; a row's draw depends on that row alone."""
    if wishes.shape != (len(scores), _WISHES) or wishes.dtype != torch.float64:
        expected = f"{(len(scores), _WISHES)} torch.float64"
        raise shape_error("wishes and scores do not go together.", wishes, expected)
    return torch.tensor(Drawer()(scores, wishes.tolist()), dtype=torch.int64)


def _side_by_side(scores: Tensor) -> Tensor:
    """Scores of a row side by side; rows may lie apart."""
    if not scores.shape[1]:
        raise ShapeError("there is nothing to choose from.", found="0 scores", expected="1 or more")
    return scores if scores.stride(1) == 1 else scores.contiguous()
