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
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_square, scale=scale
    )
    return out[..., :size].transpose(-3, -2)


def latent_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Attention on the compressed cache itself: the absorbed form of MLA.

        score = (q_latent . latent + q_rope . k_rope) * scale,    out = softmax(score) latent

    Args:
        q_latent: (Q, H, R), queries already multiplied with the key up-projection.
        q_rope: (Q, H, P), rotated.
        latent: (S, R), all tokens in memory.
        k_rope: (S, P), rotated, shared by all heads.
        scale: Applied to the scores.

    Returns:
        (Q, H, R) in the dtype of q_latent; the value up-projection comes after.

    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.
    """
    query = torch.cat((q_latent, q_rope), -1).transpose(0, 1)  # (H, Q, R + P)
    key = torch.cat((latent, k_rope), -1)  # (S, R + P)
    scores = torch.matmul(query, key.T).float() * scale
    mask = causal_mask(q_latent.shape[0], latent.shape[0], device=latent.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1).to(latent.dtype)
    return torch.matmul(weights, latent).transpose(0, 1)
