"""Multi-head latent attention: a small latent per token is all that is remembered."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import DecodeGroup, ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.ops.attention import attention, decode_attention
from blazr.nn.ops.rope import rotate_half


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaConfig(MixerConfig):
    """Sizes of multi-head latent attention, as oxidizr trains it.

    The rotated parts come from the layer's input, not from the query latent; latents have no norm.

    Args:
        hidden_size: C.
        num_heads: H.
        head_dim: D, of the unrotated part and of the values.
        rope_dim: P, rotated channels per query head and of the one shared key.
        kv_latent: R, size of the remembered latent.
        q_latent: Size of the query latent.
        rope: Rotation of ``rope_dim`` channels.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    rope_dim: int
    kv_latent: int
    q_latent: int
    rope: RopeConfig

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """The latent and the rotated key of every token: ``kv_latent + rope_dim`` numbers."""
        return CacheSpec(
            paged={
                "latent": TensorSpec((self.kv_latent,), dtype),
                "k_rope": TensorSpec((self.rope_dim,), dtype),
            }
        )

    def build(self) -> Mla:
        """The module, with uninitialised parameters."""
        return Mla(self)


class Mla(Mixer):
    """Latent attention: expanded keys and values in prefill, the latent itself in decode."""

    def __init__(self, config: MlaConfig) -> None:
        super().__init__()
        self.config = config
        hidden, inner = config.hidden_size, config.num_heads * config.head_dim
        self.kv_down_proj = Linear(hidden, config.kv_latent)
        self.q_down_proj = Linear(hidden, config.q_latent)
        self.q_up_proj = Linear(config.q_latent, inner)
        self.k_up_proj = Linear(config.kv_latent, inner)
        self.v_up_proj = Linear(config.kv_latent, inner)
        self.q_rope_proj = Linear(hidden, config.num_heads * config.rope_dim)
        self.k_rope_proj = Linear(hidden, config.rope_dim)
        self.o_proj = Linear(inner, hidden)
        self.scale = (config.head_dim + config.rope_dim) ** -0.5

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); writes the new latents, then attends to all in memory."""
        latent, k_rope = self._compress(x, batch.positions)
        cache.write("latent", latent, batch.slot_mapping)
        cache.write("k_rope", k_rope, batch.slot_mapping)
        q, q_rope = self._queries(x, batch.positions)
        out = torch.empty_like(q)
        for group in batch.decode_groups:
            rows = group.rows
            out[rows] = self._decode(q[rows], q_rope[rows], group, cache)
        for index in range(batch.num_decodes, len(batch.spans)):
            span, pages = batch.spans[index], batch.block_tables[index]
            latents = cache.read("latent", pages, span.total)
            keys = cache.read("k_rope", pages, span.total)
            out[span.rows] = self._attend(q[span.rows], q_rope[span.rows], latents, keys)
        return self.o_proj(out.flatten(-2))

    def forward_sequences(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C), every sequence from position 0."""
        positions = torch.arange(x.shape[1], device=x.device)
        latent, k_rope = self._compress(x, positions)
        q, q_rope = self._queries(x, positions)
        return self.o_proj(self._attend(q, q_rope, latent, k_rope).flatten(-2))

    def _compress(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.config.rope.tables(positions)
        k_rope = rotate_half(self.k_rope_proj(x).unsqueeze(-2), cos, sin).squeeze(-2)
        return self.kv_down_proj(x), k_rope  # (..., R), (..., P)

    def _queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        heads = (self.config.num_heads, -1)
        cos, sin = self.config.rope.tables(positions)
        q = self.q_up_proj(self.q_down_proj(x)).unflatten(-1, heads)  # (..., H, D)
        q_rope = rotate_half(self.q_rope_proj(x).unflatten(-1, heads), cos, sin)  # (..., H, P)
        return q, q_rope

    def _attend(self, q: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor) -> Tensor:
        heads = (self.config.num_heads, -1)
        k = self.k_up_proj(latent).unflatten(-1, heads)  # (..., S, H, D)
        v = self.v_up_proj(latent).unflatten(-1, heads)
        shared = k_rope.unsqueeze(-2).expand(*k.shape[:-1], -1)  # (..., S, H, P)
        query, key = torch.cat((q, q_rope), -1), torch.cat((k, shared), -1)
        return attention(query, key, v, scale=self.scale)

    def _decode(self, q: Tensor, q_rope: Tensor, group: DecodeGroup, cache: LayerCache) -> Tensor:
        heads = (self.config.num_heads, -1)
        k_up = self.k_up_proj.weight.unflatten(0, heads)  # (H, D, R)
        v_up = self.v_up_proj.weight.unflatten(0, heads)
        q_latent = torch.einsum("bhd,hdr->bhr", q, k_up)
        latents = cache.read_together("latent", group.pages)  # (b, S, R)
        keys = torch.cat((latents, cache.read_together("k_rope", group.pages)), -1)
        mixed = decode_attention(
            torch.cat((q_latent, q_rope), -1),
            keys.unsqueeze(2),
            latents.unsqueeze(2),
            group.visible,
            scale=self.scale,
        )
        return torch.einsum("bhr,hdr->bhd", mixed.to(q.dtype), v_up)
