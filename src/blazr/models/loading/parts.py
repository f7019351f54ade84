"""What a rank holds of a weight: some rows, columns or experts, in memory of its own.

Packed weights and floats with scales are cut at the edges of their blocks. Where a cut goes through
a block, and where a weight is stored in other tensors, the rank holds its part as plain numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.core.errors import ConfigError
from blazr.models.causal_lm import ModelConfig
from blazr.nn.layers.ranks import Columns, FirstRank, Held, Parts, Rank, Rows, Runs
from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.quant.exact import ShiftedWeight
from blazr.nn.quant.weight import FloatWeight, GgufWeight, PlainWeight, StoredStack, Weight

_MOST_RANKS = 64  # that an error tells of


def part_of_config(config: ModelConfig, rank: Rank) -> tuple[ModelConfig, Parts]:
    """The network of a rank, and what of the whole one's parameters it holds.

    Raises:
        ConfigError: It cannot be cut in so many; the error says in how many it can.
    """
    try:
        return config.part(rank)
    except ConfigError as error:
        fits = [str(count) for count in range(2, _MOST_RANKS + 1) if _can_cut(config, count)]
        raise ConfigError(
            f"the model cannot be cut for {rank.count} ranks: {error.message}",
            found=error.found,
            expected=error.expected,
            hint=f"--tp {', '.join(fits)}" if fits else "leave out --tp: no number fits",
        ) from None


def _can_cut(config: ModelConfig, count: int) -> bool:
    try:
        config.part(Rank(0, count))
    except ConfigError:
        return False
    return True


def held_of(parameter: str, parts: Parts, rank: Rank) -> Held | None:
    """What a rank holds of a parameter; None for all of it."""
    owner, _, name = parameter.rpartition(".")
    held = parts.get(parameter) or parts.get(owner)
    if isinstance(held, Columns) and name == "bias":
        held = FirstRank()
    return None if isinstance(held, FirstRank) and rank.number == 0 else held


def part_of_tensor(tensor: Tensor, held: Held) -> Tensor:
    """A rank's part of a plain parameter.

    Args:
        tensor: All of it.
        held: What the rank holds.
    """
    if isinstance(held, FirstRank):
        return torch.zeros_like(tensor)
    return _take(tensor, held.runs, held.dim if isinstance(held, Rows) else -1)


def part_of_weight(weight: Weight, held: Held) -> Weight:
    """A rank's part of a weight that is no plain tensor, before kernels get it in their order.

    Args:
        weight: All of it.
        held: What the rank holds.
    """
    assert not isinstance(held, FirstRank), "biases are plain"
    if isinstance(weight, StoredStack):
        return StoredStack([weight.select(index) for run in held.runs for index in run])
    if isinstance(weight, ShiftedWeight):
        found = _part_of_shifted(weight, held)
        if found is not None:
            return found
    if isinstance(weight, GgufWeight):
        blocks = _part_of_blocks(weight, held)
        if blocks is not None:
            return GgufWeight(blocks, weight.kind, weight.dtype)
    if isinstance(weight, FloatWeight):
        floats = _part_of_floats(weight.operand, held)
        if floats is not None:
            return FloatWeight(floats, weight.name, weight.dtype)
    # a plain part takes more memory than a packed one, and every cut can be made
    return PlainWeight(part_of_tensor(weight.dequantize(weight.dtype), held))


def _part_of_blocks(weight: GgufWeight, held: Rows | Columns) -> Tensor | None:
    """None where the cut goes through blocks."""
    if isinstance(held, Rows):
        return _take(weight.blocks, held.runs, held.dim)
    kind = weight.kind
    if any(run.start % kind.length or run.stop % kind.length for run in held.runs):
        return None
    runs = tuple(
        range(*(kind.row_bytes(column) for column in (run.start, run.stop))) for run in held.runs
    )
    return _take(weight.blocks, runs, -1)


def _part_of_shifted(weight: ShiftedWeight, held: Rows | Columns) -> Weight | None:
    """None where the cut goes through blocks, or columns lie in another order."""
    scale, shift, inner = weight.scale, weight.shift, weight.inner
    is_moved = weight.order is not None and isinstance(held, Columns)
    if is_moved or not isinstance(inner, GgufWeight):
        return None
    blocks = _part_of_blocks(inner, held)
    if blocks is None:
        return None
    if isinstance(held, Rows):
        scale = None if scale is None else _take(scale, held.runs, held.dim)
        shift = None if shift is None else _take(shift, held.runs, held.dim)
    elif shift is not None:
        # groups may be longer than blocks, and are then cut as those are
        length = inner.kind.length
        each = shift.repeat_interleave(weight.shape[1] // length // shift.shape[1], 1)
        runs = tuple(range(run.start // length, run.stop // length) for run in held.runs)
        shift = _take(each, runs, 1)
    return ShiftedWeight(
        GgufWeight(blocks, inner.kind, inner.dtype),
        scale=scale,
        shift=shift,
        order=weight.order,
        piece=weight.piece,
    )


def _part_of_floats(floats: ScaledFloats, held: Rows | Columns) -> ScaledFloats | None:
    """None where the cut goes through blocks."""
    if isinstance(held, Columns):
        found = floats.columns(held.runs)
    else:
        found = floats.rows([slice(run.start, run.stop) for run in held.runs])
    return None if found is None else found.map(torch.clone)  # the whole need not be kept


def _take(tensor: Tensor, runs: Runs, dim: int) -> Tensor:
    """These slices of a dimension as a tensor of its own."""
    found = [tensor.narrow(dim, run.start, len(run)) for run in runs]
    if len(found) > 1:
        return torch.cat(found, dim)
    return found[0].clone(memory_format=torch.contiguous_format)
