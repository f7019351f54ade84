"""Causal attention over tokens in memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_mask(
    num_queries: int, num_keys: int, *, window: int | None = None, device: torch.device
) -> Tensor | None:
    """Which keys each of the last ``num_queries`` positions may see.

    Args:
        num_queries: Q, at the end of the sequence.
        num_keys: S, from position 0.
        window: Keys further back than this many tokens are hidden; None hides none.
        device: Where the mask lives.

    Returns:
        (Q, S) bool, True where visible; None if everything is.
    """
    if num_queries == 1 and (window is None or num_keys <= window):
        return None
    queries = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    keys = torch.arange(num_keys, device=device)
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    return visible


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None = None
) -> Tensor:
    """Grouped-query attention of the last Q positions of one or many equally long sequences.

    Query head h uses key/value head ``h // (H // K)``.

    Args:
        q: (..., Q, H, D).
        k: (..., S, K, D), all tokens in memory, S >= Q.
        v: (..., S, K, E), E at most D.
        scale: Applied to the scores.
        window: Sliding window in tokens, or None.

    Returns:
        (..., Q, H, E) in the dtype of q.
    """
    queries, size = q.shape[-3], v.shape[-1]
    is_square = queries == k.shape[-3] and queries > 1 and window is None
    mask = None
    if not is_square:
        mask = causal_mask(queries, k.shape[-3], window=window, device=q.device)
    q, k, v = (t.transpose(-3, -2) for t in (q, k, v))  # (..., heads, tokens, D)
    group = q.shape[-3] // k.shape[-3]
    if group > 1:
        k = k.repeat_interleave(group, -3)
        v = v.repeat_interleave(group, -3)
    if size < q.shape[-1]:  # torch's fast paths want equal sizes
        v = F.pad(v, (0, q.shape[-1] - size))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_square, scale=scale)
    return out[..., :size].transpose(-3, -2)


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Grouped-query attention of one new token in each of B sequences of different lengths.

    With one key/value head whose keys are latents and rotated parts side by side, and whose values
    are the latents, this is multi-head latent attention in its absorbed form: the key up-projection
    is in the queries, the value up-projection comes after [arXiv:2405.04434, section 2.1].

    Args:
        q: (B, H, D).
        k: (B, S, K, D), room for S tokens.
        v: (B, S, K, E).
        visible: (B, S), bool: the first tokens; behind them may lie anything finite.
        scale: Applied to the scores.
        window: Sliding window in tokens, or None.

    Returns:
        (B, H, E), float32: this is where bfloat16 would lose most, and is slowest on a CPU.
    """
    if window is not None:
        places = torch.arange(visible.shape[1], device=q.device)
        visible = visible & (places >= visible.sum(1, keepdim=True) - window)
    heads = k.shape[2]
    query = q.float().unflatten(1, (heads, -1))  # (B, K, H / K, D)
    keys, values = (
        t.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format) for t in (k, v)
    )
    scores = torch.matmul(query, keys.transpose(2, 3)) * scale  # (B, K, H / K, S)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    return torch.matmul(scores.softmax(-1), values).flatten(1, 2)
