"""Choosing tokens by their scores: the likeliest, the likeliest few, and a draw."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor

from blazr.nn.kernels.cpu.sampling import Finder
from blazr.nn.ops.op import op

_UNIT = 2**42
_UNIFORM = 2**53


@op
def likeliest(scores: Tensor) -> Tensor:
    """The place of the largest of each row's scores, the first of equals.

    Args:
        scores: (B, V), float32, with V at least 1; -inf is never chosen.

    Returns:
        (B,), int64; -1 for a row whose largest score is no finite number, or that has a NaN.
    """
    heights, places = scores.max(-1)
    return torch.where(heights.isfinite(), places, -1)


@op
def best(scores: Tensor, count: int) -> Tensor:
    """The places of each row's largest scores in falling order, the first of equals first.

    Args:
        scores: (T, V), float32, without NaN.
        count: From 1 to V; meant to be small.

    Returns:
        (T, count), int64.
    """
    return scores.argsort(dim=-1, descending=True, stable=True)[:, :count]


@op
def draw(scores: Tensor, wishes: Tensor) -> Tensor:
    """A token of each row, drawn by its probability among those that the row's filters leave.

    Candidates are in falling order of their scores, the first of equals first. Filters apply one
    after the other, each to what the last has left: the first top_k; the fewest first ones that
    have a share of top_p [arXiv:1904.09751]; those with at least min_p of the probability of the
    likeliest. One always remains. The draw is the first candidate with which the running sum of
    probabilities passes the row's uniform number.

    Probabilities are counted in whole units of 2**-42 of the largest. Sums of them are exact: the
    result is the same in whatever order, by however many threads they are made.

    Args:
        scores: (B, V), float32, with V from 1 to 2**20.
        wishes: (B, 5), float64: temperature (0: all but the largest are out of the question),
            top_k (0: all), top_p (1: all), min_p (0: all), uniform number in [0, 1).

    Returns:
        (B,), int64; -1 for a row whose largest score is no finite number, or that has a NaN.
    """
    drawn = []
    for row, top, wish in zip(scores, scores.amax(-1).tolist(), wishes.tolist(), strict=True):
        temperature, top_k, top_p, min_p, uniform = wish
        if not isfinite(top):
            drawn.append(-1)
            continue
        candidates, ids = row, None
        if 0 < top_k < len(row):  # whatever reaches the k-th score, to be sorted in its place
            ids = (row >= row.topk(int(top_k)).values[-1]).nonzero()[:, 0]
            candidates = row[ids]
        candidates, order = candidates.sort(descending=True, stable=True)
        if ids is not None:
            candidates, order = candidates[: int(top_k)], ids[order]
        heights = (candidates.double() - top) / max(temperature, 1e-300)
        weights = (heights.exp() * _UNIT).round().long()
        sums = weights.cumsum(0)
        kept = int(sums[-1])
        if top_p < 1:
            kept = int(sums[_first(sums, max(1, min(int(top_p * kept), kept)))])
        if min_p > 0:
            kept = min(kept, int(weights[weights.double() >= min_p * _UNIT].sum()))
        need = int(uniform * _UNIFORM) * kept // _UNIFORM + 1
        drawn.append(int(order[_first(sums, need)]))
    return torch.tensor(drawn, dtype=torch.int64, device=scores.device)


def _first(sums: Tensor, need: int) -> int:
    """The first place where a running sum reaches ``need``."""
    return int(torch.searchsorted(sums, need))


def likeliest_finder(device: torch.device) -> Callable[[Tensor], list[int]]:
    """`likeliest` with a list of places, at the least cost a step; to be used by one thread."""
    if device.type == "cpu" and likeliest.has_kernel(torch.float32):
        return Finder()
    return lambda scores: likeliest(scores).tolist()
