"""Grouped-query attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import DecodeGroup, ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.ops.attention import attention, decode_attention
from blazr.nn.ops.rope import rotate_half


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig(MixerConfig):
    """Sizes of grouped-query attention.

    Args:
        hidden_size: C.
        num_heads: Query heads, H.
        num_kv_heads: Key/value heads, K, a divisor of H.
        head_dim: D.
        rope: Rotation of queries and keys.
        qkv_bias: Whether q, k and v have biases (Qwen2).
        qk_norm: Whether queries and keys are normalised per head (Qwen3).
        norm_eps: For ``qk_norm``.
        sliding_window: Tokens a query sees, or None for all.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig
    qkv_bias: bool = False
    qk_norm: bool = False
    norm_eps: float = 1e-6
    sliding_window: int | None = None

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """Keys (rotated) and values of every token."""
        entry = TensorSpec((self.num_kv_heads, self.head_dim), dtype)
        return CacheSpec(paged={"k": entry, "v": entry})

    def build(self) -> Attention:
        """The module, with uninitialised parameters."""
        return Attention(self)


class Attention(Mixer):
    """Grouped-query attention over paged keys and values."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        query, key = config.num_heads * dim, config.num_kv_heads * dim
        self.q_proj = Linear(hidden, query, bias=config.qkv_bias)
        self.k_proj = Linear(hidden, key, bias=config.qkv_bias)
        self.v_proj = Linear(hidden, key, bias=config.qkv_bias)
        self.o_proj = Linear(query, hidden)
        if config.qk_norm:
            self.q_norm = NormConfig(dim, config.norm_eps).build()
            self.k_norm = NormConfig(dim, config.norm_eps).build()

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); writes the new keys and values, then attends to all in memory."""
        q, k, v = self._project(x, batch.positions)
        cache.write("k", k, batch.slot_mapping)
        cache.write("v", v, batch.slot_mapping)
        out = torch.empty_like(q)
        for group in batch.decode_groups:
            out[group.rows] = self._decode(q[group.rows], group, cache).to(q.dtype)
        for index in range(batch.num_decodes, len(batch.spans)):
            span, pages = batch.spans[index], batch.block_tables[index]
            keys = cache.read("k", pages, span.total)
            values = cache.read("v", pages, span.total)
            out[span.rows] = self._attend(q[span.rows], keys, values)
        return self.o_proj(out.flatten(-2))

    def forward_sequences(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C), every sequence from position 0."""
        q, k, v = self._project(x, torch.arange(x.shape[1], device=x.device))
        return self.o_proj(self._attend(q, k, v).flatten(-2))

    def _project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dim = self.config.head_dim
        q = self.q_proj(x).unflatten(-1, (-1, dim))  # (..., H, D)
        k = self.k_proj(x).unflatten(-1, (-1, dim))  # (..., K, D)
        v = self.v_proj(x).unflatten(-1, (-1, dim))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = self.config.rope.tables(positions)
        return rotate_half(q, cos, sin), rotate_half(k, cos, sin), v

    def _decode(self, q: Tensor, group: DecodeGroup, cache: LayerCache) -> Tensor:
        keys, values = (cache.read_together(name, group.pages) for name in ("k", "v"))
        window, scale = self.config.sliding_window, self.config.head_dim**-0.5
        return decode_attention(q, keys, values, group.visible, scale=scale, window=window)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = self.config.head_dim**-0.5
        return attention(q, k, v, scale=scale, window=self.config.sliding_window)
