"""Choosing tokens by their scores: ``csrc/sampling.hpp`` behind the ops' signatures."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.compiled import fields, run

# As kernels.hpp numbers them.
_BLOCK, _TALLIES, _WISHES = 512, 50 * 16 + 2, 5
_TALLY_BYTES = _CANDIDATE_BYTES = 16
_MOST_PARTS = 16


class _Choice(ctypes.Structure):
    """``Choice`` of kernels.hpp."""

    _fields_ = (
        *fields(ctypes.c_void_p, "scores peaks places"),
        *fields(ctypes.c_int64, "rows size stride blocks count"),
    )


class _Draw(ctypes.Structure):
    """``Draw`` of kernels.hpp."""

    _fields_ = (
        *fields(ctypes.c_void_p, "scores wishes peaks tallies candidates places"),
        *fields(ctypes.c_int64, "rows size stride blocks parts"),
    )


def likeliest(scores: Tensor) -> Tensor:
    """See ``blazr.nn.ops.sampling.likeliest``."""
    return _choose(scores, 0, (len(scores),))


def best(scores: Tensor, count: int) -> Tensor:
    """See ``blazr.nn.ops.sampling.best``."""
    if not 1 <= count <= scores.shape[1]:
        raise ShapeError(
            "there are not so many to choose.", found=str(count), expected=f"1 to {scores.shape[1]}"
        )
    return _choose(scores, count, (len(scores), count))


def draw(scores: Tensor, wishes: Tensor) -> Tensor:
    """See ``blazr.nn.ops.sampling.draw``; a row's draw depends on that row alone."""
    scores, (rows, size) = _side_by_side(scores), scores.shape
    if wishes.shape != (rows, _WISHES) or wishes.dtype != torch.float64:
        raise ShapeError(
            "wishes and scores do not go together.",
            found=f"{tuple(wishes.shape)} {wishes.dtype}",
            expected=f"{(rows, _WISHES)} torch.float64",
        )
    blocks = -(-size // _BLOCK)
    # sums are exact, so that it makes no difference how many parts there are
    parts = max(1, min(_MOST_PARTS, blocks, -(-2 * torch.get_num_threads() // max(rows, 1))))
    wishes = wishes.contiguous()
    peaks = torch.empty(rows * blocks, dtype=torch.float32)
    tallies = torch.empty(rows * parts * _TALLIES * _TALLY_BYTES, dtype=torch.uint8)
    candidates = torch.empty(rows * size * _CANDIDATE_BYTES, dtype=torch.uint8)
    places = torch.empty(rows, dtype=torch.int64)
    each = (scores, wishes, peaks, tallies, candidates, places)
    addresses = (tensor.data_ptr() for tensor in each)
    run("draw", _Draw(*addresses, rows, size, scores.stride(0), blocks, parts))
    return places


def _choose(scores: Tensor, count: int, shape: tuple[int, ...]) -> Tensor:
    scores, (rows, size) = _side_by_side(scores), scores.shape
    blocks = -(-size // _BLOCK)
    peaks = torch.empty(rows * blocks, dtype=torch.float32)
    places = torch.empty(shape, dtype=torch.int64)
    addresses = (tensor.data_ptr() for tensor in (scores, peaks, places))
    run("choose", _Choice(*addresses, rows, size, scores.stride(0), blocks, count))
    return places


def _side_by_side(scores: Tensor) -> Tensor:
    """Scores of a row side by side; rows may lie apart."""
    if not scores.shape[1]:
        raise ShapeError("there is nothing to choose from.", found="0 scores", expected="1 or more")
    return scores if scores.stride(1) == 1 else scores.contiguous()
