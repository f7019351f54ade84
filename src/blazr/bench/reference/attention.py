"""Softmax attention with grouped queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, takewhile

import torch
from torch import Tensor
from torch.nn.functional import softplus

from blazr.bench.reference.norms import layer_norm, rms_norm
from blazr.bench.reference.rotation import Rotation, grown, rotate, temper
from blazr.bench.reference.weights import Weights, linear


@dataclass(frozen=True, kw_only=True)
class AttentionSizes:
    """What tensors do not say.

    Args:
        heads: Of queries.
        kv_heads: Of keys and values; each serves ``heads / kv_heads`` neighbours.
        dim: Channels of a head.
        rotation: Of queries and keys, or None.
        scale: What scores are multiplied with; None for ``dim ** -0.5``.
        window: Tokens a query sees, itself among them; None for all.
        softcap: ``cap tanh(scores / cap)``, or None.
        eps: Of the norms of queries and keys.
        offset: What is added to the weights of these norms.
        gated: Whether gates lie behind the queries of each head (Qwen3-Next).
        gate_apart: Whether a projection of its own makes the gates (Trinity).
        norm_last: Whether norms stand behind the rotation (Hunyuan).
        head_gated: Whether each head has one gate, from a matrix of its own (LFM3).
        bare_norm: Whether norms without weights stand behind the rotation (Llama 4).
        chunk: Tokens that see each other alone, from the first on; None for all (Llama 4).
        growth: Llama 4's scale and length: queries grow with the position, counted from 1.
        v_dim: Channels of a value, where these are others than a head's (MiMo-V2).
        v_scale: What values are multiplied with.
        softplus_gate: Whether a softplus of ``g_proj`` weighs each head or channel (Laguna).
        clip: What queries, keys and values are clamped to, or None (OLMoE).
    """

    heads: int
    kv_heads: int
    dim: int
    rotation: Rotation | None
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    eps: float = 1e-6
    offset: float = 0.0
    gated: bool = False
    gate_apart: bool = False
    norm_last: bool = False
    head_gated: bool = False
    bare_norm: bool = False
    chunk: int | None = None
    growth: tuple[float, float] | None = None
    v_dim: int | None = None
    v_scale: float = 1.0
    softplus_gate: bool = False
    clip: float | None = None


def attention(x: Tensor, w: Weights, s: AttentionSizes) -> Tensor:
    """(T, C) to (T, C), causal."""
    q, k, v = _projected(x, w, s)
    gate = None
    if s.gated:
        q, gate = (part.flatten(1) for part in q.unflatten(-1, (s.heads, -1)).chunk(2, -1))
    norms = _norm_weight(w, "q"), _norm_weight(w, "k")
    if not s.norm_last:
        q, k = _normed(q, norms[0], s), _normed(k, norms[1], s)
    if s.clip is not None:
        q, k, v = (part.clamp(-s.clip, s.clip) for part in (q, k, v))
    q, k = (part.unflatten(-1, (-1, s.dim)) for part in (q, k))  # (T, H, D)
    v = v.unflatten(-1, (-1, s.v_dim or s.dim)) * s.v_scale
    q, k = temper(rotate(q, s.rotation), s.rotation), rotate(k, s.rotation)
    if s.norm_last:
        q, k = (
            _normed(part.flatten(1), norm, s).view_as(part)
            for part, norm in zip((q, k), norms, strict=True)
        )
    if s.bare_norm:
        q, k = (rms_norm(part, None, s.eps) for part in (q, k))
    if s.growth is not None:
        q = grown(q, *s.growth, first=1)
    k, v = (part.repeat_interleave(s.heads // s.kv_heads, 1) for part in (k, v))
    scale = s.dim**-0.5 if s.scale is None else s.scale
    sinks = w.get("sinks" if "sinks" in w else "attention_sink_bias")
    parts = [part.split(s.chunk or len(part)) for part in (q, k, v)]
    chunks = [
        attend(*each, scale, window=s.window, softcap=s.softcap, sinks=sinks)
        for each in zip(parts[0], parts[1], parts[2], strict=True)
    ]
    mixed = torch.cat(chunks)
    if s.gate_apart or s.head_gated:
        gate = linear(x, w, "gate_proj")
    if s.softplus_gate:
        mixed = mixed * softplus(linear(x, w, "g_proj")).unflatten(-1, (s.heads, -1))
    if gate is not None:
        mixed = mixed * gate.sigmoid().unflatten(-1, (s.heads, -1))
    # the norm is BitNet's
    return linear(_normed(mixed.flatten(1), w.get("attn_sub_norm.weight"), s), w, "o_proj")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal softmax attention: queries and keys (T, H, D), values (T, H, E), to (T, H, E).

    A sink (H) is one more score of every query, whose value is nothing (GPT-OSS).
    """
    scores = torch.einsum("thd,shd->hts", q, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(len(q))
    distance = at[:, None] - at
    is_seen = (distance >= 0) & (distance < (window or len(q)))
    scores = scores.masked_fill(~is_seen, -torch.inf)
    if sinks is not None:
        more = sinks[:, None, None].expand(-1, len(q), 1)
        shares = torch.cat((scores, more), -1).softmax(-1)[..., :-1]
    else:
        shares = scores.softmax(-1)
    return torch.einsum("hts,she->the", shares, v)


def _projected(x: Tensor, w: Weights, s: AttentionSizes) -> Sequence[Tensor]:
    """Queries, keys and values of all heads, (T, H * D) each."""
    if "qkv_proj.weight" not in w:
        return [linear(x, w, f"{name}_proj") for name in "qkv"]
    sizes = s.heads * s.dim, s.kv_heads * s.dim, s.kv_heads * (s.v_dim or s.dim)
    return linear(x, w, "qkv_proj").split(sizes, -1)


def _norm_weight(w: Weights, name: str) -> Tensor | None:
    """Of a norm of queries or keys; StableLM 2 has a tensor for each head."""
    one_by_one = f"{name}_layernorm.norms.{{}}.weight"
    if one_by_one.format(0) not in w:
        return w.get(f"{name}_norm.weight")
    each = iter(one_by_one.format(head) for head in count())
    return torch.stack([w[name] for name in takewhile(w.__contains__, each)])


def _normed(x: Tensor, weight: Tensor | None, s: AttentionSizes) -> Tensor:
    """Over each head, or over all of them, as long as the weight is: (T, H * D)."""
    if weight is None:
        return x
    if weight.ndim > 1:  # LayerNorms of Command R+ and StableLM 2
        heads = x.unflatten(-1, weight.shape)
        return layer_norm(heads, weight, torch.zeros_like(weight), s.eps).flatten(1)
    return rms_norm(x.unflatten(-1, (-1, len(weight))), weight + s.offset, s.eps).flatten(1)
