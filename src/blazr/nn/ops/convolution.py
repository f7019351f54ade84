"""Causal depthwise convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.recurrent import Filter
from blazr.nn.operands.step import SequenceGroup, StepTable, Window
from blazr.nn.ops.op import op
from blazr.nn.ops.sequences import last_inputs, log_rows, map_groups


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


@op
def convolve(
    x: Tensor,
    taps: Filter,
    window: Window,
    table: StepTable,
    gates: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A causal convolution, perhaps with SiLU behind it, or between two gates.

    Args:
        x: (T, channels).
        taps: The filters.
        window: The inputs so far, behind the first gate; written.
        table: The step.
        gates: Applied before and behind it, (T, channels) each.
        out: (T, channels), where the result goes, perhaps a part of a wider tensor; None for
            anywhere.

    Returns:
        (T, channels), in the dtype of x.
    """
    before = taps.weight.shape[0] - 1
    activates = taps.silu and gates is None
    new = x if gates is None else gates[0] * x

    def compute(group: SequenceGroup, new: Tensor) -> Tensor:
        seen = torch.cat((last_inputs(group, window), new), 1)
        outputs = []
        for low, high in group.intervals():
            outputs.append(causal_conv1d(seen[:, low : high + before], taps))
            group.keep(high, window.kept, seen[:, high : high + before])
        y = torch.cat(outputs, 1)
        return (F.silu(y) if activates else y).to(x.dtype)

    y = map_groups(table, compute, (new,), like=x)
    log_rows.reference(new, window.log, table)
    found = y if gates is None else gates[1] * y
    return found if out is None else out.copy_(found)
