"""Mamba-1's recurrence and its gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.recurrent import Mamba1Rows, Mamba1Weights
from blazr.nn.operands.step import Carried, StepTable
from blazr.nn.ops.op import op
from blazr.nn.ops.sequences import States, carry


def selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    *,
    clamp: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Mamba-1's recurrence, token by token.

        h[t] = exp(dt[t] a) h[t-1] + dt[t] x[t] (outer) b[t];    y[t] = h[t] . c[t]

    Args:
        x: (B, T, C).
        dt: (B, T, C), after softplus.
        a: (C, N).
        b: (B, T, N).
        c: (B, T, N).
        state: Where the sequence starts, (B, C, N).
        clamp: Limit every element of the state to plus or minus this after each token.

    Returns:
        y (B, T, C) and the state after the last token. All float32.

    Source: Gu and Dao 2023, arXiv:2312.00752, section 3.2.
    """
    outputs = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t, :, None] * a)
        state = decay * state + (dt[:, t] * x[:, t])[..., None] * b[:, t, None, :]
        if clamp is not None:
            state = state.clamp(-clamp, clamp)
        outputs.append((state * c[:, t, None, :]).sum(-1))
    return torch.stack(outputs, 1), state


@op
def mamba1(
    u: Tensor, rows: Mamba1Rows, weights: Mamba1Weights, state: Carried, table: StepTable
) -> Tensor:
    """``(scan(u) + d u) * silu(gate)``; see :func:`selective_scan`.

    Args:
        u: Inputs, behind the convolution, (T, inner).
        rows: What else follows from the tokens.
        weights: The recurrence's.
        state: (inner, N); written.
        table: The step.

    Returns:
        (T, inner), in the dtype of u.
    """

    def advance(rows: list[Tensor], states: States) -> tuple[Tensor, States]:
        u, dt, b, c, gate = (each.float() for each in rows)
        y, after = selective_scan(
            u, F.softplus(dt), weights.a, b, c, states[0], clamp=weights.limit or None
        )
        return (y + weights.d * u) * F.silu(gate), [after]

    packed = (u, rows.dt, rows.b, rows.c, rows.gate)
    return carry(table, [state], advance, packed, like=u)
