"""The real-gated linear recurrent unit (RG-LRU) of Griffin and RecurrentGemma."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.nn.operands.recurrent import RgLruRows, RgLruWeights
from blazr.nn.operands.step import Carried, StepTable
from blazr.nn.ops.op import op
from blazr.nn.ops.sequences import States, carry


def linear_scan(x: Tensor, decay: Tensor, state: Tensor) -> Tensor:
    """``h[t] = decay[t] h[t-1] + x[t]``, every channel by itself.

    The sums over 1, 2, 4, ... tokens are made of each other (Hillis and Steele 1986), so that all
    tokens are computed at once. Decays are at most 1, and nothing is divided by them.

    Args:
        x: (B, T, C).
        decay: From 0 to 1, (B, T, C).
        state: Where each sequence starts, (B, C).

    Returns:
        All states, (B, T, C).
    """
    h = torch.cat(((x[:, :1] + decay[:, :1] * state[:, None]), x[:, 1:]), 1)
    step = 1
    while step < x.shape[1]:
        h = torch.cat((h[:, :step], h[:, step:] + decay[:, step:] * h[:, :-step]), 1)
        decay = torch.cat((decay[:, :step], decay[:, step:] * decay[:, :-step]), 1)
        step *= 2
    return h


@op
def rg_lru(
    x: Tensor, rows: RgLruRows, weights: RgLruWeights, state: Carried, table: StepTable
) -> Tensor:
    """The RG-LRU over packed sequences.

        log_decay = a sigmoid(decay_gate)
        h[t] = exp(log_decay) h[t-1] + sqrt(1 - exp(2 log_decay)) sigmoid(input_gate) x[t]

    The first token of a sequence enters whole: its root is 1.

    Args:
        x: Inputs, behind the convolution, (T, width).
        rows: Their gates.
        weights: The recurrence's.
        state: (width,); written.
        table: The step.

    Returns:
        (T, width), in the dtype of x.

    Source: De et al. 2024, arXiv:2402.19427, section 2.4.
    """
    firsts = ((group.positions == 0).flatten() for group in table.groups)
    is_first = torch.cat([x.new_empty(0, dtype=torch.bool), *firsts])  # a step may have no tokens

    def advance(rows: list[Tensor], states: States) -> tuple[Tensor, States]:
        x, input_gate, decay_gate, is_first = (each.float() for each in rows)
        log_decay = weights.a * (decay_gate + weights.decay_bias).sigmoid()
        share = torch.where(is_first[..., None] > 0, 1.0, -torch.expm1(2 * log_decay)).sqrt()
        entering = share * (input_gate + weights.input_bias).sigmoid() * x
        h = linear_scan(entering, log_decay.exp(), states[0])
        return h, [h[:, -1]]

    packed = (x, rows.input_gate, rows.decay_gate, is_first)
    return carry(table, [state], advance, packed, like=x)
