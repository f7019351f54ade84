"""Grouped-query attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, MixerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, channels_of
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.attention import Pages
from blazr.nn.ops.attention import attend_bidirectionally, paged_attention
from blazr.nn.ops.pointwise import dense, sigmoid_gate
from blazr.nn.ops.rope import rotate_and_store


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig(MixerConfig):
    """Sizes of grouped-query attention.

    Args:
        hidden_size: C.
        num_heads: Query heads, H.
        num_kv_heads: Key/value heads, K, a divisor of H.
        head_dim: D.
        rope: Rotation of queries and keys; None for none (NoPE).
        qkv_bias: Whether q, k and v have biases (Qwen2).
        o_bias: Whether the output projection has one.
        qk_norm: Whether queries and keys are normalised: per head (Qwen3), or...
        qk_norm_all_heads: ... all heads at once (OLMo 2).
        norm_eps: For ``qk_norm``.
        norm_unit_offset: For ``qk_norm``.
        sliding_window: Tokens a query sees, or None for all.
        attention_multiplier: Applied to the scores; None for ``head_dim ** -0.5``.
        attn_logit_softcap: Scores z become ``softcap * tanh(z / softcap)``; None leaves them.
        output_size: Channels that come out; None for C.
        output_gate: Whether a sigmoid of more query channels weighs the heads' outputs, head by
            head behind the queries (Qwen3-Next).
        clip_qkv: Queries, keys and values are cut off at this magnitude before the rotation (OLMo,
            DBRX); None leaves them.
        sinks: Whether every head has a score that takes its share and gives nothing (GPT-OSS).
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig | None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    qk_norm_all_heads: bool = False
    norm_eps: float = 1e-6
    norm_unit_offset: bool = False
    sliding_window: int | None = None
    attention_multiplier: float | None = None
    attn_logit_softcap: float | None = None
    output_size: int | None = None
    output_gate: bool = False
    clip_qkv: float | None = None
    sinks: bool = False

    @property
    def scale(self) -> float:
        """What the scores are multiplied with."""
        scale = self.attention_multiplier
        return self.head_dim**-0.5 if scale is None else scale

    def length_class(self, length: int) -> int:
        """As the rotation has it."""
        return self.rope.length_class(length) if self.rope is not None else 0

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """Keys (rotated) and values of every token."""
        entry = TensorSpec((self.num_kv_heads, self.head_dim), dtype)
        return CacheSpec(paged={"k": entry, "v": entry})

    def part(self, rank: Rank) -> tuple[AttentionConfig, Parts]:
        """Cut by heads; ranks share keys and values where these have fewer heads."""
        own = rank.equal_run(self.num_heads, "query heads")
        kept = rank.shared_run(self.num_kv_heads, self.num_heads, "key/value heads")
        query, key = channels_of(own, self.head_dim), channels_of(kept, self.head_dim)
        gated = 2 if self.output_gate else 1
        parts: dict[str, Held] = {
            "q_proj": Rows((channels_of(own, gated * self.head_dim),)),
            "k_proj": Rows((key,)),
            "v_proj": Rows((key,)),
            "o_proj": Columns((query,)),
            "sinks": Rows((own,)),
        }
        if self.qk_norm_all_heads:
            parts |= {"q_norm": Rows((query,)), "k_norm": Rows((key,))}
        return replace(self, num_heads=len(own), num_kv_heads=len(kept)), parts

    def build(self) -> Attention:
        """The module, with uninitialised parameters."""
        return Attention(self)


class Attention(Mixer):
    """Grouped-query attention over paged keys and values."""

    config: AttentionConfig

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        hidden, dim = config.hidden_size, config.head_dim
        query, key = config.num_heads * dim, config.num_kv_heads * dim
        gated = 2 if config.output_gate else 1
        self.q_proj = Linear(hidden, gated * query, bias=config.qkv_bias)
        self.k_proj = Linear(hidden, key, bias=config.qkv_bias)
        self.v_proj = Linear(hidden, key, bias=config.qkv_bias)
        self.o_proj = Linear(query, config.output_size or hidden, bias=config.o_bias)
        if config.qk_norm:
            offset, eps = config.norm_unit_offset, config.norm_eps
            is_cut = config.qk_norm_all_heads
            sizes = (query, key) if is_cut else (dim, dim)
            self.q_norm = NormConfig(sizes[0], eps, unit_offset=offset, is_cut=is_cut).build()
            self.k_norm = NormConfig(sizes[1], eps, unit_offset=offset, is_cut=is_cut).build()
        self.sinks = nn.Parameter(torch.empty(config.num_heads)) if config.sinks else None

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); writes the new keys and values, then attends to all in memory."""
        config, rope = self.config, self.config.rope
        dim, gate = config.head_dim, None
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if config.output_gate:
            q, gate = (dense(t).flatten(-2) for t in q.unflatten(-1, (-1, 2 * dim)).chunk(2, -1))
        if config.qk_norm_all_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, dim)) for t in (q, k, v))  # (T, H or K, D)
        if config.qk_norm and not config.qk_norm_all_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        if (limit := config.clip_qkv) is not None:
            q, k, v = (t.clamp(-limit, limit) for t in (q, k, v))
        pages = Pages(
            keys=cache.paged["k"],
            values=cache.paged["v"],
            scale=config.scale,
            window=config.sliding_window,
            softcap=config.attn_logit_softcap,
            sinks=None if self.sinks is None else self.sinks.float(),
            temperature=None if rope is None else rope.temperature,
        )
        q = rotate_and_store(q, k, v, batch.rotation(rope), pages.keys, pages.values)
        heads = paged_attention(q, pages, batch.table)
        if batch.table.bidirectional_spans:
            attend_bidirectionally(heads, q, pages, batch.table)
        heads = heads.flatten(-2)
        return self.o_proj(heads if gate is None else sigmoid_gate(heads, gate))
