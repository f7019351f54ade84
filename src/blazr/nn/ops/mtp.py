"""What multi-token prediction sees of a token: itself, and the hidden state of the one before."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.operands.step import GRID, StepTable
from blazr.nn.ops.op import op


@op
def join_previous(x: Tensor, hidden: Tensor, log: Tensor, table: StepTable) -> Tensor:
    """Put the hidden state of the token before beside each token.

    Args:
        x: (T, C).
        hidden: Of the step's tokens, (T, C), in the dtype of x.
        log: (runs, GRID, C), in the dtype of x: the hidden states of the last tokens of each
            sequence, in the row of their position modulo GRID.
        table: The step.

    Returns:
        (T, 2 * C); before the first token of a sequence there are zeros.
    """
    previous = torch.zeros_like(x)
    for span in table.spans:
        if span.start:
            previous[span.first] = log[span.run_slot, (span.start - 1) % GRID]
        previous[span.first + 1 : span.rows.stop] = hidden[span.first : span.rows.stop - 1]
    return torch.cat((x, previous), -1)


@op
def keep_last(hidden: Tensor, log: Tensor, table: StepTable) -> Tensor:
    """Log the hidden states of a step's tokens, the last GRID of each sequence.

    Args:
        hidden: (T, C).
        log: (runs, GRID, C), in the dtype of ``hidden``; written.
        table: The step.

    Returns:
        The log.
    """
    for span in table.spans:
        for token in range(max(span.length - GRID, 0), span.length):
            log[span.run_slot, (span.start + token) % GRID] = hidden[span.first + token]
    return log
