"""Choosing tokens by their scores: ``csrc/sampling.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from weakref import ref

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import Call, kernels, misfit
from blazr.nn.kernels.cpu.structures import Int64, Pointer, structure

# As kernels.hpp numbers them.
_BLOCK, _TALLIES, _WISHES = 512, 50 * 16 + 2, 5
_TALLY_BYTES = _CANDIDATE_BYTES = 16
_MOST_PARTS = 16
_MOST_ROOMS = 64  # shapes of scores: one for each number of tokens of a step


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
        self._rooms: dict[tuple[int, ...], _Room] = {}

    def __call__(self, scores: Tensor) -> list[int]:
        """The places, as ``blazr.nn.ops.sampling.likeliest`` defines them."""
        room = self._rooms.get(scores.shape)
        if room is None:
            if len(self._rooms) == _MOST_ROOMS:
                self._rooms.clear()
            room = self._rooms[scores.shape] = _Room(*scores.shape)
        scores = room.take(scores)  # held until its likeliest are found
        self._entry(room.given, torch.get_num_threads())
        return room.found[:]


class _Room:
    """Where likeliest tokens of scores of one shape are put."""

    def __init__(self, rows: int, size: int) -> None:
        blocks = -(-size // _BLOCK)
        self._memory = torch.empty(rows * blocks), torch.empty(rows, dtype=torch.int64)
        peaks, places = (each.data_ptr() for each in self._memory)
        # these are read faster than a tensor is
        self.found = (ctypes.c_int64 * rows).from_address(places)
        self._call = _Choice(0, peaks, places, rows, size, 0, blocks, 0)
        self.given = ctypes.byref(self._call)
        self._last: Callable[[], Tensor | None] = lambda: None

    def take(self, scores: Tensor) -> Tensor:
        """Look at these from now on, or at a copy, which is returned."""
        if scores is not self._last():  # recorded steps always have the same
            scores = _side_by_side(scores)
            self._last = ref(scores)
            self._call.scores = scores.data_ptr()
            self._call.stride = scores.stride(0)
        return scores


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
    scores, (rows, size) = _side_by_side(scores), scores.shape
    if wishes.shape != (rows, _WISHES) or wishes.dtype != torch.float64:
        expected = f"{(rows, _WISHES)} torch.float64"
        raise misfit("wishes and scores do not go together.", wishes, expected)
    blocks = -(-size // _BLOCK)
    # sums are exact, so that it makes no difference how many parts there are
    parts = max(1, min(_MOST_PARTS, blocks, -(-2 * torch.get_num_threads() // max(rows, 1))))
    wishes = wishes.contiguous()
    peaks = torch.empty(rows * blocks, dtype=torch.float32)
    tallies = torch.empty(rows * parts * _TALLIES * _TALLY_BYTES, dtype=torch.uint8)
    candidates = torch.empty(rows * size * _CANDIDATE_BYTES, dtype=torch.uint8)
    places = torch.empty(rows, dtype=torch.int64)
    _Draw(
        scores.data_ptr(),
        wishes.data_ptr(),
        peaks.data_ptr(),
        tallies.data_ptr(),
        candidates.data_ptr(),
        places.data_ptr(),
        rows,
        size,
        scores.stride(0),
        blocks,
        parts,
    ).run()
    return places


def _side_by_side(scores: Tensor) -> Tensor:
    """Scores of a row side by side; rows may lie apart."""
    if not scores.shape[1]:
        raise ShapeError("there is nothing to choose from.", found="0 scores", expected="1 or more")
    return scores if scores.stride(1) == 1 else scores.contiguous()
