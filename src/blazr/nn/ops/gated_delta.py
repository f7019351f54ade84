"""The gated delta rule: a fast-weight memory that decays and is corrected, token by token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.recurrent import DeltaRows, DeltaWeights
from blazr.nn.operands.step import Carried, StepTable
from blazr.nn.ops.norm import gated_rms_norm
from blazr.nn.ops.op import op
from blazr.nn.ops.sequences import States, carry

_L2_EPS = 1e-6
# A decay for each pair of tokens and each key channel would be much to hold.
_ROWS_AT_ONCE = 16


def gated_delta_chunk(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule for one chunk of tokens at once.

        h = exp(log_decay[t]) h;    d = beta[t] (v[t] - h^T k[t]);    h = h + k[t] (outer) d
        y[t] = h^T q[t]

    What each token adds depends on what those before it in the chunk added, linearly: a triangular
    system, solved for all of them. One token is a chunk, too.

    Args:
        q: Queries, (B, T, H, N).
        k: Keys, (B, T, H, N).
        v: Values, (B, T, H, P).
        log_decay: At most 0; one for each head, (B, T, H, 1), or each key channel, (B, T, H, N).
        beta: How much of the error is corrected, (B, T, H).
        state: Where each sequence starts, (B, H, N, P).

    Returns:
        y (B, T, H, P) and the state after the last token. All float32.

    Source: Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464, equation 10 and section 3.3 (the UT
    transform of arXiv:2406.06484); with a decay for each key channel: arXiv:2510.26692.
    """
    q, k, v, log_decay = (each.transpose(1, 2) for each in (q, k, v, log_decay))  # (B, H, T, ...)
    beta = beta.transpose(1, 2).unsqueeze(-1)
    # sums of many decays lose digits that their differences need
    total = log_decay.double().cumsum(2)
    fade = total.exp().float()
    added = beta * (v - (k * fade) @ state)
    if q.shape[2] > 1:
        among_keys = _decayed_products(k, k, total).tril(-1) * beta
        # the diagonal is taken to be one
        added = torch.linalg.solve_triangular(among_keys, added, upper=False, unitriangular=True)
    y = (q * fade) @ state + _decayed_products(q, k, total).tril() @ added
    remaining = (total[:, :, -1:] - total).exp().float()
    state = fade[:, :, -1].unsqueeze(-1) * state + (k * remaining).mT @ added
    return y.transpose(1, 2), state


def _decayed_products(x: Tensor, k: Tensor, total: Tensor) -> Tensor:
    """``x[i] . (exp(total[i] - total[j]) k[j])`` for j up to i, (B, H, T, T); the rest is free."""
    if total.shape[-1] == 1:
        gap = (total - total.mT).clamp(max=0)  # (B, H, T, T)
        return (x @ k.mT) * gap.exp().float()
    rows = []
    for low in range(0, x.shape[2], _ROWS_AT_ONCE):
        # with the tokens before, the decay goes by way of low: both factors are at most 1
        own, past = slice(low, low + _ROWS_AT_ONCE), slice(0, low)
        at_low = total[:, :, low, None]
        new = x[:, :, own] * (total[:, :, own] - at_low).exp().float()
        old = k[:, :, past] * (at_low - total[:, :, past]).exp().float()
        gap = total[:, :, own].unsqueeze(3) - total[:, :, own].unsqueeze(2)  # (B, H, rows, rows, N)
        decay = gap.clamp(max=0).exp().float()
        among = torch.einsum("bhin,bhijn,bhjn->bhij", x[:, :, own], decay, k[:, :, own])
        beyond = x.shape[2] - low - among.shape[3]
        rows.append(F.pad(torch.cat((new @ old.mT, among), 3), (0, beyond)))
    return torch.cat(rows, 2)


@op
def gated_delta(
    v: Tensor, rows: DeltaRows, weights: DeltaWeights, state: Carried, table: StepTable
) -> Tensor:
    """The gated delta rule over packed sequences, its norm and its gate.

    Queries and keys get length one first, queries then ``N ** -0.5``; decays are
    ``exp(a softplus(decay + dt_bias))``, or ``exp(least sigmoid(-a (decay + dt_bias)))``.

    Args:
        v: Values, (T, H * P).
        rows: What else follows from the tokens.
        weights: The recurrence's.
        state: (H, N, P); written.
        table: The step.

    Returns:
        (T, H * P), in the dtype of v.
    """
    heads = weights.heads

    def advance(rows: list[Tensor], states: States) -> tuple[Tensor, States]:
        q, k, v, decay, beta, gate = (each.float() for each in rows)
        q, k = _key_heads(q, weights), _key_heads(k, weights)
        step = (decay + weights.dt_bias).unflatten(-1, (heads, -1))
        a, least = weights.a[:, None], weights.least
        y, after = gated_delta_chunk(
            q * q.shape[-1] ** -0.5,
            k,
            v.unflatten(-1, (heads, -1)),
            least * (-a * step).sigmoid() if least else a * F.softplus(step),
            weights.beta_scale * beta.sigmoid(),
            states[0],
        )
        gate = gate.unflatten(-1, (heads, -1))
        return gated_rms_norm(y, gate, weights.norm).flatten(-2), [after]

    packed = (rows.q, rows.k, v, rows.decay, rows.beta, rows.gate)
    return carry(table, [state], advance, packed, like=v)


def _key_heads(x: Tensor, weights: DeltaWeights) -> Tensor:
    """Of length one, one for each value head: (B, T, H, N)."""
    x = x.unflatten(-1, (weights.key_heads, -1))
    x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _L2_EPS)
    share = weights.heads // weights.key_heads
    return x.repeat_interleave(share, -2)
