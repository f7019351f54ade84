"""Experts' matrices side by side on a GPU, where kernels read them as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from blazr.models.loading.upload import upload
from blazr.nn.quant.exact import ShiftedWeight
from blazr.nn.quant.weight import FloatWeight, GgufWeight, StoredStack, Weight

W = TypeVar("W", bound=Weight)


def join_stack(stack: StoredStack, device: torch.device) -> Weight:
    """The same on the device; a stack of separate matrices where they are not alike.

    Args:
        stack: Of the host's memory. Each matrix is copied to its place, so that the device never
            has room for one twice.
        device: Where it goes.
    """
    matrices = [stack.select(index) for index in range(stack.shape[0])]
    blocks = _alike(GgufWeight, matrices, lambda each: (each.kind.name, each.blocks.shape))
    if blocks:
        whole = _side_by_side([each.blocks for each in blocks], device)
        return GgufWeight(whole, blocks[0].kind, stack.dtype)
    # an expert whose columns happen to be in order may have nothing beside its blocks
    shifted = _alike(ShiftedWeight, [_as_shifted(each) for each in matrices], _form_of_shifted)
    if shifted:
        inner = join_stack(StoredStack([each.inner for each in shifted]), device)
        scales = [each.scale for each in shifted if each.scale is not None]
        shifts = [each.shift for each in shifted if each.shift is not None]
        is_ordered = any(each.order is not None for each in shifted)
        same = torch.arange(stack.shape[-1])
        orders = [same if each.order is None else each.order for each in shifted]
        return ShiftedWeight(
            inner,
            scale=_side_by_side(scales, device) if scales else None,
            shift=_side_by_side(shifts, device) if shifts else None,
            order=_side_by_side(orders, device) if is_ordered else None,
        )
    floats = _alike(FloatWeight, matrices, lambda each: each.operand.form)
    if floats:
        operands = [each.operand for each in floats]
        wholes = [each.whole for each in operands if each.whole is not None]
        operand = operands[0]._replace(
            numbers=_side_by_side([each.numbers for each in operands], device),
            scales=_side_by_side([each.scales for each in operands], device),
            whole=_side_by_side(wholes, device) if wholes else None,
        )
        return FloatWeight(operand, floats[0].name, stack.dtype)
    return stack.to(device)


def _side_by_side(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    first = tensors[0]
    whole = torch.empty((len(tensors), *first.shape), dtype=first.dtype, device=device)
    for place, each in zip(whole, tensors, strict=True):
        place.copy_(upload(each, device))
    return whole


def _alike(kind: type[W], weights: Sequence[Weight], form: Callable[[W], object]) -> list[W]:
    """The weights, if all are of this kind and one form; else none."""
    found = [each for each in weights if isinstance(each, kind)]
    is_one = len(found) == len(weights) and all(form(each) == form(found[0]) for each in found)
    return found if is_one else []


def _as_shifted(weight: Weight) -> ShiftedWeight:
    return weight if isinstance(weight, ShiftedWeight) else ShiftedWeight(weight)


def _form_of_shifted(weight: ShiftedWeight) -> object:
    """What must be equal; nothing equals that of one whose pieces have an order, or no blocks."""
    inner = weight.inner
    if weight.piece > 1 or not isinstance(inner, GgufWeight):
        return object()
    sizes = [None if each is None else each.shape for each in (weight.scale, weight.shift)]
    return inner.kind.name, inner.blocks.shape, sizes
