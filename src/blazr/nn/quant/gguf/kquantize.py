"""From plain numbers to Q4_K: the search for scales and minima, and then for their six bits.

A group of 32 numbers becomes ``scale * code - minimum`` with codes of four bits; eight groups share
the float16 units of their six-bit scales and minima. An error counts the more, the larger the
number is: it is weighed by the magnitude plus the group's root mean square.

Source: the search is that of ``make_qkx2_quants`` and ``quantize_row_q4_K_ref`` in
``ggml-quants.c``: several ranges of codes are tried, each with the scale and minimum that then fit
best. What follows is ours: the neighbours of the rounded scales and minima are tried, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.ops.op import op
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.quantize import Quantizer

_LARGEST, _LARGEST_SCALE = 15, 63
# Into how many steps the numbers of a group are divided at first.
_STEPS = [_LARGEST - 1 + 0.1 * step for step in range(21)]
_NEIGHBOURS = [(0, 0), *((s, m) for s in (-1, 0, 1) for m in (-1, 0, 1) if s or m)]
# Blocks at a time: what is computed with them should fit in the level-2 cache.
_TILE = 128


@op
def encode_q4_k(blocks: Tensor) -> Tensor:
    """Blocks of Q4_K from their numbers: (N, 256) float32 to (N, 144) uint8."""
    tiles = [blocks.new_empty(0, GGML_TYPES["Q4_K"].nbytes, dtype=torch.uint8)]
    for tile in blocks.split(_TILE) if len(blocks) else ():
        x = tile.view(len(tile), 8, 32)
        weights = x.abs() + x.square().mean(-1, keepdim=True).sqrt()
        fits = _fit(x, weights)
        exact = [each.amax(1, keepdim=True) / _LARGEST_SCALE for each in fits]
        units = [unit.half() for unit in exact]
        numbers = [
            (each * _inverse(unit)).round().clamp(0, _LARGEST_SCALE)
            for each, unit in zip(fits, exact, strict=True)
        ]
        scale, minimum, codes = _refine(x, weights, numbers, [unit.float() for unit in units])
        halves = [unit.view(len(x), 1).view(torch.uint8) for unit in units]
        # scales and minima take 12 bytes, in the order that ``kquants`` draws
        s, m = (each.squeeze(-1).to(torch.uint8) for each in (scale, minimum))
        first = s[:, :4] | (s[:, 4:] >> 4 << 6)
        second = m[:, :4] | (m[:, 4:] >> 4 << 6)
        third = (s[:, 4:] & 15) | (m[:, 4:] << 4)
        low, high = codes.to(torch.uint8).unflatten(1, (4, 2)).unbind(2)
        packed = (low | (high << 4)).flatten(1)
        tiles.append(torch.cat([*halves, first, second, third, packed], 1))
    return torch.cat(tiles)


def _inverse(values: Tensor) -> Tensor:
    return torch.where(values > 0, 1 / values, 0)


def _error(x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
    """The weighted squared error of numbers that stand for x, by group: (N, 8, 1)."""
    return (numbers - x).square_().mul_(weights).sum(-1, keepdim=True)


def _fit(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of groups, (N, 8, 1) each and none below 0."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True)
    sums = weights.sum(-1, keepdim=True), (weights * x).sum(-1, keepdim=True)
    scale = (high - low) / _LARGEST
    codes = ((x - low) * _inverse(scale)).round_()
    best = _error(x, weights, codes * scale + low)
    for steps in _STEPS:
        # the range of codes begins at the lowest number that was best so far
        codes = ((x - low) * (steps * _inverse(high - low))).round_().clamp_(0, _LARGEST)
        new_scale, new_low = _least_squares(x, weights, codes, sums)
        error = _error(x, weights, codes * new_scale + new_low)
        better = (error < best) & (new_scale > 0)
        best = torch.where(better, error, best)
        scale, low = torch.where(better, new_scale, scale), torch.where(better, new_low, low)
    return scale, -low


def _least_squares(
    x: Tensor, weights: Tensor, codes: Tensor, sums: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The scale and the lowest number, at most 0, that fit codes best."""
    sum_w, sum_x = sums
    weighed = weights * codes
    sum_l = weighed.sum(-1, keepdim=True)
    sum_l2 = (weighed * codes).sum(-1, keepdim=True)
    sum_xl = (weighed * x).sum(-1, keepdim=True)
    inverse = _inverse(sum_w * sum_l2 - sum_l.square())
    scale = (sum_w * sum_xl - sum_x * sum_l) * inverse
    low = (sum_l2 * sum_x - sum_l * sum_xl) * inverse
    return torch.where(low > 0, sum_xl * _inverse(sum_l2), scale), low.clamp(max=0)


def _refine(
    x: Tensor, weights: Tensor, numbers: list[Tensor], units: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The best of the six-bit scales and minima near those given, and the codes with them."""

    def codes_of(scale: Tensor, minimum: Tensor) -> Tensor:
        return ((x + minimum) * _inverse(scale)).round_().clamp_(0, _LARGEST)

    best, found = torch.full_like(numbers[0], torch.inf), numbers
    for steps in _NEIGHBOURS:
        pairs = zip(numbers, steps, strict=True)
        tried = [(each + step).clamp(0, _LARGEST_SCALE) for each, step in pairs]
        scale, minimum = tried[0] * units[0], tried[1] * units[1]
        error = _error(x, weights, codes_of(scale, minimum) * scale - minimum)
        better = error < best
        best = torch.where(better, error, best)
        found = [torch.where(better, new, old) for new, old in zip(tried, found, strict=True)]
    return found[0], found[1], codes_of(found[0] * units[0], found[1] * units[1])


Q4_K = Quantizer(GGML_TYPES["Q4_K"], encode_q4_k)
