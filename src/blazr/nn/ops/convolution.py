"""Causal depthwise convolution."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.recurrent import Filter
from blazr.nn.operands.step import Carried, SequenceGroup, StepTable
from blazr.nn.ops.op import op
from blazr.nn.ops.sequences import States, carry, map_groups
from blazr.nn.ops.step_samples import num_tokens, sample_carried, sample_steps


def causal_conv1d(x: Tensor, taps: Filter) -> Tensor:
    """``y[t] = bias + sum_j weight[j] * x[t + j]``, one filter per channel.

    Args:
        x: (..., K - 1 + T, channels): the K - 1 inputs before the first output, then T more.
        taps: The filters.

    Returns:
        (..., T, channels), float32.
    """
    windows = x.float().unfold(-2, taps.weight.shape[0], 1)  # (..., T, channels, K)
    return (windows * taps.weight.float().t()).sum(-1) + taps.bias.float()


@op(has_memory=True)
def convolve(
    x: Tensor,
    taps: Filter,
    window: Carried,
    table: StepTable,
    gates: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A causal convolution with SiLU behind it, or between two gates and without.

    Args:
        x: (T, channels).
        taps: The filters.
        window: The last K - 1 inputs, behind the first gate, (K - 1, channels); written.
        table: The step.
        gates: Applied before and behind it, (T, channels) each.
        out: (T, channels), where the result goes, perhaps a part of a wider tensor; None for
            anywhere.

    Returns:
        (T, channels), in the dtype of x.
    """
    before = taps.weight.shape[0] - 1

    def advance(rows: list[Tensor], states: States) -> tuple[Tensor, States]:
        new = rows[0] if gates is None else rows[1] * rows[0]
        seen = torch.cat((states[0].to(new.dtype), new), 1)
        y = causal_conv1d(seen, taps)
        y = F.silu(y).to(x.dtype) if gates is None else rows[2] * y.to(x.dtype)
        return y, [seen[:, seen.shape[1] - before :]]

    def compute(group: SequenceGroup, *rows: Tensor) -> Tensor:
        return carry(group, [window], advance, rows)

    found = map_groups(table, compute, (x, *(gates or ())), like=x)
    return found if out is None else out.copy_(found)


@convolve.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for channels, taps in ((40, 4), (7, 1), (16, 8)):
        how = Filter(torch.randn(taps, channels), torch.randn(channels))
        for table in sample_steps():
            x, *gates = torch.randn(3, num_tokens(table), channels).to(dtype)
            yield x, how, sample_carried(dtype, taps - 1, channels), table
            wide = sample_carried(dtype, taps - 1, channels + 9)
            part = Carried(wide.kept[..., 4:-5], wide.working[..., 4:-5])
            yield x, how, part, table, tuple(gates)
