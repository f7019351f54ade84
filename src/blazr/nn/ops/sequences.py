"""How references go through the sequences of a step, and from grid edge to grid edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from blazr.nn.operands.step import GRID, Carried, SequenceGroup, StepTable, Window
from blazr.nn.ops.op import op

States = list[Tensor]
Advance = Callable[[list[Tensor], States], tuple[Tensor, States]]


def map_groups(
    table: StepTable,
    compute: Callable[..., Tensor],
    rows: Sequence[Tensor],
    *,
    like: Tensor,
) -> Tensor:
    """Compute each group of sequences, and lay the results end to end.

    Args:
        table: The step.
        compute: Takes a group and its part of ``rows``, (B, length, ...) each, and returns
            (B, length, ...).
        rows: (T, ...) each.
        like: (T, ...), has the shape and dtype of the result.
    """
    if len(table.groups) == 1:
        (group,) = table.groups
        return compute(group, *group.split(*rows)).flatten(0, 1)
    out = torch.empty_like(like)
    for group in table.groups:
        out[group.rows] = compute(group, *group.split(*rows)).flatten(0, 1)
    return out


def carry(
    table: StepTable,
    memory: Sequence[Carried],
    advance: Advance,
    rows: Sequence[Tensor],
    *,
    like: Tensor,
) -> Tensor:
    """Run a recurrence over packed sequences, with their states as they are remembered.

    Args:
        table: The step.
        memory: What sequences carry along; written.
        advance: From rows (B, t, ...) up to a grid edge and the states (B, ...) before them to
            outputs (B, t, ...) and the states behind them.
        rows: (T, ...) each.
        like: (T, ...), has the shape and dtype of the result.
    """

    def compute(group: SequenceGroup, *rows: Tensor) -> Tensor:
        return _carry_group(group, memory, advance, rows).to(like.dtype)

    return map_groups(table, compute, rows, like=like)


def _carry_group(
    group: SequenceGroup, memory: Sequence[Carried], advance: Advance, rows: Sequence[Tensor]
) -> Tensor:
    """`carry` for one group, rows (B, length, ...)."""
    fresh = group.is_fresh
    states = []
    for each in memory:
        if fresh:  # they stand right after a grid edge, where states are kept
            state = each.kept[group.state_slots]
        elif fresh is False:
            state = each.working[group.working_before]
        else:
            is_fresh = (group.log_lengths == 0).view(-1, *[1] * (each.kept.dim() - 1))
            kept, working = each.kept[group.state_slots], each.working[group.working_before]
            state = torch.where(is_fresh, kept, working)
        states.append(state.to(each.working.dtype))
    outputs = []
    for low, high in group.intervals():
        y, states = advance([each[:, low:high] for each in rows], states)
        states = [
            round_at_edge(group, high, state, each.kept.dtype)
            for each, state in zip(memory, states, strict=True)
        ]
        outputs.append(y)
        for each, state in zip(memory, states, strict=True):
            group.keep(high, each.kept, state)
    for each, state in zip(memory, states, strict=True):
        each.working[group.working_after] = state.to(each.working.dtype)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def round_at_edge(group: SequenceGroup, tokens: int, states: Tensor, dtype: torch.dtype) -> Tensor:
    """States after so many tokens of a step: those at a grid edge are rounded to ``dtype``.

    Args:
        group: B sequences.
        tokens: How many of the step's they have computed.
        states: (B, ...).
        dtype: In which they are kept.

    Returns:
        (B, ...), in the dtype of ``states``.
    """
    if dtype == states.dtype:
        return states
    is_at_edge = (group.log_lengths + tokens) % GRID == 0
    rounded = states.to(dtype).to(states.dtype)
    return torch.where(is_at_edge.view(-1, *[1] * (states.dim() - 1)), rounded, states)


def last_inputs(group: SequenceGroup, window: Window) -> Tensor:
    """The K - 1 inputs before a group's first tokens: from the log, or before the checkpoint.

    Args:
        group: B sequences.
        window: What they remember.

    Returns:
        (B, K - 1, channels).
    """
    count = window.kept.shape[1]
    back = group.log_lengths[:, None] + torch.arange(-count, 0, device=window.kept.device)
    logged = window.log[group.run_slots[:, None], back.clamp(min=0)]
    older = window.kept[group.state_slots]
    places = (back + count).clamp(max=count - 1)[..., None].expand_as(older)
    return torch.where((back < 0)[..., None], older.gather(1, places), logged)


@op
def log_rows(x: Tensor, log: Tensor, table: StepTable) -> Tensor:
    """Keep what a recurrence takes of the tokens behind the last grid edge.

    Args:
        x: (T, n).
        log: (runs, GRID, n), in the dtype of x; written.
        table: The step.

    Returns:
        The log.
    """
    rows, runs, places = table.log_places
    log[runs, places] = x[rows]
    return log
