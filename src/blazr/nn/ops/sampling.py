"""Choosing tokens by their scores: penalties, the likeliest, the likeliest few, and a draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from blazr.nn.kernels.cpu.sampling import Drawer, Finder
from blazr.nn.ops.op import op

_UNIT = 2**42
_UNIFORM = 2**53
_MASK = 2**64 - 1
_STEP, _FIRST_FACTOR, _SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_AT_ONCE = 2**24  # scores, as several numbers of eight bytes are made of each


@op
def penalize(scores: Tensor, ids: Tensor, ends: Tensor, penalties: Tensor) -> Tensor:
    """Make tokens that came already less likely.

    The score of a token that came is divided by the repetition penalty, or multiplied where it is
    below zero [arXiv:1909.05858]. Of one that came in the reply the presence penalty is taken off,
    and the frequency penalty as often as it came there.

    Args:
        scores: (B, V), float32.
        ids: (B, N), int64: of each row those of the prompt, then those of the reply; whatever is
            behind these is an id, too.
        ends: (B, 2), int64: where in a row of ``ids`` the prompt ends, and the reply.
        penalties: (B, 3), float32: repetition (1 for none), presence and frequency (0 for none).

    Returns:
        (B, V), float32.
    """
    out = scores.clone(memory_format=torch.contiguous_format)
    parts = (each.split(1) for each in (out, ids, ends, penalties))
    for part in zip(*parts, strict=True):  # what is counted stays in the caches
        _penalize(*part)
    return out


def _penalize(scores: Tensor, ids: Tensor, ends: Tensor, penalties: Tensor) -> None:
    """`penalize`, in place."""
    places = torch.arange(ids.shape[1], device=ids.device)
    is_seen = places < ends[:, 1:]
    in_reply = is_seen & (places >= ends[:, :1])
    seen, times = (
        scores.new_zeros(scores.shape, dtype=torch.int32)
        .scatter_add_(1, ids, each.int())
        .gather(1, ids)
        for each in (is_seen, in_reply)
    )
    repetition, presence, frequency = penalties[:, :, None].unbind(1)
    # only these change, and one that stands there twice changes to the same both times
    found = scores.gather(1, ids)
    divided = torch.where(found > 0, found / repetition, found * repetition)
    found = divided.where(seen > 0, found)
    scores.scatter_(1, ids, found - presence * (times > 0) - frequency * times)


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
    at_once = max(1, _AT_ONCE // scores.shape[1])
    parts = zip(scores.split(at_once), wishes.split(at_once), strict=True)
    return torch.cat([_draw(*part) for part in parts])


def _draw(scores: Tensor, wishes: Tensor) -> Tensor:
    """`draw`, where the host looks at no number."""
    temperature, top_k, top_p, min_p, uniform = wishes.to(scores.device).unbind(1)
    candidates, order = scores.sort(dim=-1, descending=True, stable=True)
    top = candidates[:, :1].double()
    heights = (candidates.double() - top) / temperature.clamp(min=1e-300)[:, None]
    weights = (heights.exp() * _UNIT).round().long()
    places = torch.arange(scores.shape[1], device=scores.device)
    weights = weights.where((top_k <= 0)[:, None] | (places < top_k[:, None]), 0)
    sums = weights.cumsum(1)
    whole = kept = sums[:, -1]
    share = (top_p * whole.double()).long().minimum(whole).clamp(min=1)
    kept = sums.gather(1, _first(sums, share))[:, 0].where(top_p < 1, kept)
    likely = weights.where(weights.double() >= (min_p * _UNIT)[:, None], 0).sum(1)
    kept = kept.minimum(likely).where(min_p > 0, kept)
    need = _part_of((uniform * _UNIFORM).long(), kept) + 1
    drawn = order.gather(1, _first(sums, need))[:, 0]
    return drawn.where(scores.amax(-1).isfinite(), -1)


def _first(sums: Tensor, needs: Tensor) -> Tensor:
    """The first place where each row's running sum reaches what it needs, (B, 1)."""
    return torch.searchsorted(sums, needs[:, None]).clamp(max=sums.shape[1] - 1)


def _part_of(numbers: Tensor, wholes: Tensor) -> Tensor:
    """``numbers * wholes // 2**53``, exactly: of numbers below 2**53 and wholes below 2**62."""
    high, low = numbers >> 27, numbers & (2**27 - 1)
    whole_high, whole_low = wholes >> 31, wholes & (2**31 - 1)
    # the product in units of 2**27, but for what is a multiple of 2**58
    middle = ((low * whole_high) << 4) + high * whole_low + ((low * whole_low) >> 27)
    return ((high * whole_high) << 5) + (middle >> 26)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on these two alone (SplitMix64).

    Args:
        seed: Modulo 2**64.
        position: Number of the draw, from 0.

    Source: Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195.
    """
    z = (seed + (position + 1) * _STEP) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST_FACTOR) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND_FACTOR) & _MASK
    return ((z ^ (z >> 31)) >> 11) / _UNIFORM


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """`uniform` of each pair of a seed and a position, (B,), float64.

    Args:
        seeds: (B,), int64, modulo 2**64.
        positions: (B,), int64.
    """
    z = seeds + (positions + 1) * _signed(_STEP)
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST_FACTOR)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND_FACTOR)
    return _shifted(z ^ _shifted(z, 31), 11).double() / _UNIFORM


def _shifted(numbers: Tensor, count: int) -> Tensor:
    """Without a sign, to the right."""
    return (numbers >> count) & ((1 << (64 - count)) - 1)


def _signed(number: int) -> int:
    """The same bits as torch has them."""
    return number - 2**64 if number >= 2**63 else number


def likeliest_finder(device: torch.device) -> Callable[[Tensor], list[int]]:
    """`likeliest` with a list of places, at the least cost a step; to be used by one thread."""
    if device.type == "cpu" and likeliest.has_kernel(torch.float32):
        return Finder()
    return lambda scores: likeliest(scores).tolist()


def drawer(device: torch.device) -> Callable[[Tensor, Sequence[Sequence[float]]], list[int]]:
    """`draw` with lists of wishes and of places, at the least cost a step; for one thread."""
    if device.type == "cpu" and draw.has_kernel(torch.float32):
        return Drawer()
    return lambda scores, wishes: draw(scores, torch.tensor(wishes, dtype=torch.float64)).tolist()
