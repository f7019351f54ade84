"""Choosing tokens by their scores, without a word from the host.

A draw asks for the order of scores only where sums along it reach something, so nothing is sorted:
of a score and its place a number is made that is larger the earlier it comes, and the one at which
a sum is reached is found a digit at a time. Sums are of whole numbers, and therefore exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blazr.nn.kernels.kernel import limited_to
from blazr.nn.kernels.triton.numbers import INTERPRETED
from blazr.nn.kernels.triton.tensors import dense

MAX_SCORES = 2**20
# Scores that a program looks at, at once, and in all.
_BLOCK, _PART = 1024, 8192
_COUNTED = 2**24  # scores that are counted for at a time, eight bytes each
# Of a draw. No result depends on it, and the interpreter is as fast with more.
_DRAW_BLOCK = 2**14 if INTERPRETED.value else 512


@triton.jit
def _count(ids_ptr, ends_ptr, counts_ptr, length, size, BLOCK: tl.constexpr):
    """How often tokens came in a row's prompt and reply, and in the reply 2**32 times as much."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(ends_ptr + 2 * row), tl.load(ends_ptr + 2 * row + 1)
    is_seen = (place < length) & (place < last)
    token = tl.load(ids_ptr + row * length + place, mask=is_seen, other=0)
    one = tl.where(place >= first, (1 << 32) + 1, 1).to(tl.int64)
    tl.atomic_add(counts_ptr + row * size + token, one, mask=is_seen)


@triton.jit
def _penalize(
    scores_ptr, counts_ptr, penalties_ptr, out_ptr, row_stride, size, BLOCK: tl.constexpr
):
    """A part of a row's scores, by how often tokens came."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_score = place < size
    score = tl.load(scores_ptr + row * row_stride + place, mask=is_score, other=0)
    count = tl.load(counts_ptr + row * size + place, mask=is_score, other=0)
    times = (count >> 32).to(tl.float32)
    repetition = tl.load(penalties_ptr + 3 * row)
    presence, frequency = tl.load(penalties_ptr + 3 * row + 1), tl.load(penalties_ptr + 3 * row + 2)
    divided = tl.where(score > 0, tl.div_rn(score, repetition), score * repetition)
    score = tl.where(count > 0, divided, score)
    score = score - tl.where(times > 0, presence, 0) - frequency * times
    tl.store(out_ptr + row * size + place, score, mask=is_score)


def penalize(scores: Tensor, ids: Tensor, ends: Tensor, penalties: Tensor) -> Tensor:
    """See ``blazr.nn.ops.sampling.penalize``."""
    size, length = scores.shape[1], ids.shape[1]
    out = scores.new_empty(len(scores), size)
    if not out.numel():
        return out
    scores = dense(scores)
    at_once = max(1, _COUNTED // size)
    each = (scores, ids.contiguous(), ends.contiguous(), penalties.contiguous(), out)
    for part in zip(*(tensor.split(at_once) for tensor in each), strict=True):
        own_scores, own_ids, own_ends, own_penalties, places = part
        rows = len(own_scores)
        counts = torch.zeros(rows, size, dtype=torch.int64, device=scores.device)
        if length:
            grid = rows, triton.cdiv(length, _BLOCK)
            _count[grid](own_ids, own_ends, counts, length, size, BLOCK=_BLOCK)
        _penalize[rows, triton.cdiv(size, _BLOCK)](
            own_scores, counts, own_penalties, places, scores.stride(0), size, BLOCK=_BLOCK
        )
    return out


@triton.jit
def _likeliest(
    scores_ptr, peaks_ptr, places_ptr, row_stride, size, PART: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest of a part of a row, and its place; NaN where there is one."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    peak = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.full((BLOCK,), 2147483647, tl.int32)
    is_bad = tl.zeros((BLOCK,), tl.int32)
    for low in range(part * PART, tl.minimum(part * PART + PART, size), BLOCK):
        at = low + lanes
        found = tl.load(scores_ptr + row * row_stride + at, mask=at < size, other=float("-inf"))
        is_bad = tl.where(found != found, 1, is_bad)
        is_more = found > peak
        place = tl.where(is_more, at, place)
        peak = tl.where(is_more, found, peak)
    most = tl.max(peak, 0)
    first = tl.min(tl.where(peak == most, place, 2147483647), 0)
    to = row * tl.num_programs(1) + part
    tl.store(peaks_ptr + to, tl.where(tl.max(is_bad, 0) > 0, float("nan"), most))
    tl.store(places_ptr + to, first)


@triton.jit
def _join_peaks(peaks_ptr, places_ptr, out_ptr, tops_ptr, parts, PARTS: tl.constexpr):
    """The largest of a row from those of its parts; -1 in the place of one that is not finite."""
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    is_part = part < parts
    peak = tl.load(peaks_ptr + row * parts + part, mask=is_part, other=float("-inf"))
    place = tl.load(places_ptr + row * parts + part, mask=is_part, other=2147483647)
    is_bad = tl.max((peak != peak).to(tl.int32), 0) > 0
    most = tl.max(peak, 0)
    is_finite = (most > float("-inf")) & (most < float("inf")) & (is_bad == 0)
    first = tl.min(tl.where(peak == most, place, 2147483647), 0)
    tl.store(out_ptr + row, tl.where(is_finite, first, -1).to(tl.int64))
    tl.store(tops_ptr + row, most)


def _peaks(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Places (B,), int64, and the scores there, (B,)."""
    rows, size = scores.shape
    parts = triton.cdiv(size, _PART)
    peaks = torch.empty(rows, parts, device=scores.device)
    places = torch.empty(rows, parts, dtype=torch.int32, device=scores.device)
    out = torch.empty(rows, dtype=torch.int64, device=scores.device)
    tops = torch.empty(rows, device=scores.device)
    if rows:
        _likeliest[rows, parts](
            scores, peaks, places, scores.stride(0), size, PART=_PART, BLOCK=_BLOCK
        )
        _join_peaks[(rows,)](
            peaks, places, out, tops, parts, PARTS=triton.next_power_of_2(parts), num_warps=1
        )
    return out, tops


def likeliest(scores: Tensor) -> Tensor:
    """See ``blazr.nn.ops.sampling.likeliest``."""
    return _peaks(dense(scores))[0]


@triton.jit
def _best(scores_ptr, out_ptr, row_stride, size, count, BLOCK: tl.constexpr):
    """The largest of a row, each looked for behind the one before."""
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    last, last_place = float("inf"), -1
    for number in range(count):
        peak = tl.full((BLOCK,), float("-inf"), tl.float32)
        place = tl.full((BLOCK,), 2147483647, tl.int32)
        for low in range(0, size, BLOCK):
            at = low + lanes
            found = tl.load(scores_ptr + row * row_stride + at, mask=at < size, other=0)
            is_behind = (found < last) | ((found == last) & (at > last_place))
            # a place beyond all is that of none
            is_more = (found > peak) | ((found == peak) & (place == 2147483647))
            is_more = is_more & is_behind & (at < size)
            place = tl.where(is_more, at, place)
            peak = tl.where(is_more, found, peak)
        last = tl.max(peak, 0)
        last_place = tl.min(tl.where(peak == last, place, 2147483647), 0)
        tl.store(out_ptr + row * count + number, last_place.to(tl.int64))


def best(scores: Tensor, count: int) -> Tensor:
    """See ``blazr.nn.ops.sampling.best``."""
    scores = dense(scores)
    out = torch.empty(len(scores), count, dtype=torch.int64, device=scores.device)
    if len(scores):
        _best[(len(scores),)](
            scores, out, scores.stride(0), scores.shape[1], count, BLOCK=_BLOCK, num_warps=8
        )
    return out


@triton.jit
def _order(scores, places):
    """Larger the earlier a score comes: 32 bits of the score, and 20 of its place."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)  # of both zeros the same
    above = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)
    return (above.to(tl.int64) << 20) | (1048575 - places).to(tl.int64)


@triton.jit
def _reach(
    scores_ptr,
    units_ptr,
    size,
    need,
    least,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The first in order with which a running sum reaches ``need``, and the sum with it.

    The sum is over those in front of ``least``, and it, of their units, or of one for each.
    """
    lanes, digits = tl.arange(0, BLOCK), tl.arange(0, 8).to(tl.int64)
    found, at_found = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    for digit in range(18):
        shift = (17 - digit) * 3
        bounds = tl.maximum(found + (digits << shift), least)
        sums = tl.zeros((BLOCK, 8), tl.int64)
        for low in range(0, size, BLOCK):
            at = low + lanes
            order = _order(tl.load(scores_ptr + at, mask=at < size, other=0), at)
            if COUNTED:
                units = (at < size).to(tl.int64)
            else:
                units = tl.load(units_ptr + at, mask=at < size, other=0)
            sums += tl.where(order[:, None] >= bounds[None, :], units[:, None], 0)
        total = tl.sum(sums, 0)
        # sums fall from digit to digit; the first reaches it, as all do together
        last = tl.max(tl.where(total >= need, digits, 0), 0)
        at_found = tl.sum(tl.where(digits == last, total, 0), 0)
        found += last << shift
    return found, at_found


@triton.jit
def _share(uniform, total):
    """``uniform * total // 2**53``, of numbers below 2**53 and 2**63."""
    a, b = uniform.to(tl.uint64), total.to(tl.uint64)
    a_low, a_high, b_low, b_high = a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF, b >> 32
    first, second, third = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (first >> 32) + (second & 0xFFFFFFFF) + (third & 0xFFFFFFFF)
    high = a_high * b_high + (second >> 32) + (third >> 32) + (middle >> 32)
    low = (middle << 32) | (first & 0xFFFFFFFF)
    return ((high << 11) | (low >> 53)).to(tl.int64)


@triton.jit
def _draw(
    scores_ptr,
    wishes_ptr,
    tops_ptr,
    units_ptr,
    out_ptr,
    row_stride,
    size,
    BLOCK: tl.constexpr,
):
    """One row."""
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    if tl.load(out_ptr + row) < 0:
        return
    temperature = tl.maximum(tl.load(wishes_ptr + row * 5), 1e-300)
    top_k = tl.load(wishes_ptr + row * 5 + 1)
    top_p, min_p = tl.load(wishes_ptr + row * 5 + 2), tl.load(wishes_ptr + row * 5 + 3)
    uniform = tl.load(wishes_ptr + row * 5 + 4)
    top = tl.load(tops_ptr + row).to(tl.float64)
    scores_ptr += row * row_stride
    units_ptr += row * size

    least = tl.full((), 0, tl.int64)
    if (top_k > 0) & (top_k < size):
        least, _ = _reach(
            scores_ptr, units_ptr, size, top_k.to(tl.int64), least, COUNTED=True, BLOCK=BLOCK
        )
    sums = tl.zeros((BLOCK,), tl.int64)
    likely = tl.zeros((BLOCK,), tl.int64)
    bound = min_p * 4398046511104.0
    for low in range(0, size, BLOCK):
        at = low + lanes
        scores = tl.load(scores_ptr + at, mask=at < size, other=float("-inf"))
        weights = tl.exp((scores.to(tl.float64) - top) / temperature) * 4398046511104.0
        # to the nearest whole number, the even one of two
        units = ((weights + 6755399441055744.0) - 6755399441055744.0).to(tl.int64)
        units = tl.where((at < size) & (_order(scores, at) >= least), units, 0)
        tl.store(units_ptr + at, units, mask=at < size)
        sums += units
        likely += tl.where(units.to(tl.float64) >= bound, units, 0)
    tl.debug_barrier()  # other threads read what has been stored
    kept = tl.sum(sums, 0)
    if top_p < 1:
        need = tl.minimum((top_p * kept.to(tl.float64)).to(tl.int64), kept)
        _, kept = _reach(
            scores_ptr, units_ptr, size, tl.maximum(need, 1), least, COUNTED=False, BLOCK=BLOCK
        )
    if min_p > 0:
        kept = tl.minimum(kept, tl.sum(likely, 0))
    need = _share((uniform * 9007199254740992.0).to(tl.int64), kept) + 1
    order, _ = _reach(scores_ptr, units_ptr, size, need, least, COUNTED=False, BLOCK=BLOCK)
    tl.store(out_ptr + row, 1048575 - (order & 1048575))


@limited_to(lambda scores, _: scores.shape[1] <= MAX_SCORES)
def draw(scores: Tensor, wishes: Tensor) -> Tensor:
    """See ``blazr.nn.ops.sampling.draw``."""
    scores = dense(scores)
    out, tops = _peaks(scores)
    if len(scores):
        units = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
        _draw[(len(scores),)](
            scores,
            wishes.contiguous(),
            tops,
            units,
            out,
            scores.stride(0),
            scores.shape[1],
            BLOCK=_DRAW_BLOCK,
            num_warps=8,
        )
    return out
