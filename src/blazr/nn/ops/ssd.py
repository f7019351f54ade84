"""The state-space dual form, chunk by chunk: what Mamba-2 and Mamba-3 compute with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

DT_LIMITS = (0.001, 0.1)  # oxidizr's
A_MIN, A_MAX = 1e-6, 1e6


def step_sizes(raw: Tensor, bias: Tensor, limits: tuple[float, float]) -> Tensor:
    """Step sizes of Mamba-2 and Mamba-3: ``clip(softplus(raw + bias), *limits)``.

    Args:
        raw: (..., H).
        bias: (H,).
        limits: Least and most.

    Returns:
        (..., H), float32.
    """
    return F.softplus(raw.float() + bias.float()).clamp(*limits)


def decay_rates(a_log: Tensor) -> Tensor:
    """``A = -clip(exp(a_log), 1e-6, 1e6)``, (H,) float32, negative."""
    return -a_log.float().exp().clamp(A_MIN, A_MAX)


def state_output(c: Tensor, states: Tensor, slots: Tensor | None = None) -> Tensor:
    """What states put out by themselves: ``h . c`` for each head.

    Args:
        c: Output maps, (B, Q, G, N); head h uses group ``h // (H // G)``.
        states: (B, H, P, N), or (slots, H, P, N) with ``slots``, float32 or bfloat16.
        slots: (B,), int64, which state belongs to each sequence.

    Returns:
        (B, H, Q, P), float32.
    """
    if slots is not None:
        if c.device.type == "cpu":  # states are megabytes: read them where they are
            each = enumerate(slots.tolist())
            return torch.cat([state_output(c[i : i + 1], states[slot, None]) for i, slot in each])
        states = states[slots]
    heads, groups = states.shape[1], c.shape[2]
    grouped = states.float().unflatten(1, (groups, -1)).flatten(2, 3)  # (B, G, H / G * P, N)
    y = torch.matmul(grouped, c.permute(0, 2, 3, 1))  # (B, G, H / G * P, Q)
    return y.unflatten(2, (heads // groups, -1)).flatten(1, 2).transpose(2, 3)


def ssd_output(
    x: Tensor,
    scale: Tensor,
    log_decay: Tensor,
    b: Tensor,
    c: Tensor,
    carried: Tensor | None = None,
) -> Tensor:
    """What one chunk of the recurrence puts out, in the state-space dual form.

        h[t] = exp(log_decay[t]) h[t-1] + scale[t] x[t] (outer) b[t];    y[t] = h[t] . c[t]

    Outputs may be wanted for the last Q rows only: a decode step passes the rows since the last
    checkpoint and asks for one.

    Args:
        x: Inputs, (B, R, H, P).
        scale: (B, R, H); dt in Mamba-2.
        log_decay: (B, R, H), at most 0; ``dt * A`` in Mamba-2.
        b: Input maps, (B, R, G, N); head h uses group ``h // (H // G)``.
        c: Output maps of the last Q rows, (B, Q, G, N).
        carried: :func:`state_output` of ``c`` and the state before the chunk, (B, H, Q, P); None
            for a zero state.

    Returns:
        (B, Q, H, P), float32 like everything here.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 6.
    """
    rows, queries = x.shape[1], c.shape[1]
    per_group = x.shape[2] // b.shape[2]
    # sums of many decays lose digits that their differences need
    total = log_decay.double().cumsum(1).transpose(1, 2)  # (B, H, R)
    last = total[..., rows - queries :]  # (B, H, Q)

    # decay from row r to row t, and nothing from the future
    gap = last.unsqueeze(-1) - total.unsqueeze(-2)  # (B, H, Q, R)
    if queries > 1:
        future = torch.ones(queries, rows, dtype=torch.bool, device=x.device)
        gap = gap.masked_fill(future.triu(rows - queries + 1), float("-inf"))
    similarity = torch.einsum("bqgn,brgn->bgqr", c, b).repeat_interleave(per_group, 1)
    weights = similarity * gap.exp().float() * scale.transpose(1, 2).unsqueeze(-2)  # (B, H, Q, R)

    y = torch.matmul(weights, x.transpose(1, 2))  # (B, H, Q, P)
    if carried is not None:
        y = y + carried * last.exp().float().unsqueeze(-1)
    return y.transpose(1, 2)


def ssd_state(x: Tensor, scale: Tensor, log_decay: Tensor, b: Tensor, state: Tensor) -> Tensor:
    """Where the same chunk ends: the state after its last row.

    Args:
        x: (B, R, H, P).
        scale: (B, R, H).
        log_decay: (B, R, H).
        b: (B, R, G, N).
        state: Where the chunk starts, (B, H, P, N).

    Returns:
        (B, H, P, N), float32 like everything here.
    """
    per_group = x.shape[2] // b.shape[2]
    total = log_decay.double().cumsum(1).transpose(1, 2)  # (B, H, R)
    to_end = (total[..., -1:] - total).exp().float() * scale.transpose(1, 2)
    weighted = x.permute(0, 2, 3, 1) * to_end.unsqueeze(-2)  # (B, H, P, R)
    b_heads = b.transpose(1, 2).repeat_interleave(per_group, 1)  # (B, H, R, N)
    return state * total[..., -1, None, None].exp().float() + torch.matmul(weighted, b_heads)
