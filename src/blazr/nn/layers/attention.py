"""Grouped-query attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, MixerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.derived import derived
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, channels_of
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.attention import AttentionParams, AttentionTemperature, Pages, Rotation
from blazr.nn.ops.attention import attend_bidirectionally, paged_attention, scale_queries
from blazr.nn.ops.norm import rms_norm
from blazr.nn.ops.pointwise import dense, scaled, sigmoid_gate
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
        qk_layer_norm: Whether these are LayerNorms without a bias, with a weight for each head
            (Command R+, StableLM 2 12B).
        qk_norm_last: Whether they are normalised behind the rotation (Hunyuan).
        qk_norm_weight: Whether norms of queries and keys have weights (Llama 4's have none).
        norm_eps: For ``qk_norm``.
        norm_unit_offset: For ``qk_norm``.
        sliding_window: Tokens a query sees, or None for all.
        chunk_size: Tokens of a chunk, a multiple of GRID: queries see their own chunk alone (Llama
            4); None where there are no chunks.
        temperature: How scores grow with the position of the query, counted from 1, beside what
            ``rope`` says (Llama 4); None for not at all.
        attention_multiplier: Applied to the scores; None for ``head_dim ** -0.5``.
        attn_logit_softcap: Scores z become ``softcap * tanh(z / softcap)``; None leaves them.
        output_size: Channels that come out; None for C.
        output_gate: Whether a sigmoid of more query channels weighs the heads' outputs, head by
            head behind the queries (Qwen3-Next).
        head_gate: Whether a sigmoid of one number a head, from a matrix of its own, weighs what the
            head puts out (LFM3).
        gate_proj: Whether a sigmoid of a projection of its own, of all channels, does (Trinity).
        softplus_gate: Whether that is a softplus in the place of the sigmoid (Laguna).
        clip_qkv: Queries, keys and values are cut off at this magnitude before the rotation (OLMo,
            DBRX); None leaves them.
        sinks: Whether every head has a score that takes its share and gives nothing (GPT-OSS).
        v_head_dim: E, of the values, where it is another than D (MiMo-V2).
        v_multiplier: Applied to the values.
        v_norm: Whether values are normalised per head, without a weight (Gemma 3n).
        values_are_keys: Whether values are what the projection of keys makes, before the norm and
            the rotation of keys (Gemma 4).
        out_norm: Whether what all heads put out is normalised, before the output projection
            (BitNet); with ``norm_eps``.
        kv_layer: Index of an earlier layer whose keys and values are attended to, so that none are
            made here (Gemma 3n); None for this layer's own.
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
    qk_layer_norm: bool = False
    qk_norm_last: bool = False
    qk_norm_weight: bool = True
    norm_eps: float = 1e-6
    norm_unit_offset: bool = False
    sliding_window: int | None = None
    chunk_size: int | None = None
    temperature: AttentionTemperature | None = None
    attention_multiplier: float | None = None
    attn_logit_softcap: float | None = None
    output_size: int | None = None
    output_gate: bool = False
    head_gate: bool = False
    gate_proj: bool = False
    softplus_gate: bool = False
    clip_qkv: float | None = None
    sinks: bool = False
    v_head_dim: int | None = None
    v_multiplier: float = 1.0
    v_norm: bool = False
    values_are_keys: bool = False
    out_norm: bool = False
    kv_layer: int | None = None

    @property
    def scale(self) -> float:
        """What the scores are multiplied with."""
        scale = self.attention_multiplier
        return self.head_dim**-0.5 if scale is None else scale

    @property
    def v_size(self) -> int:
        """Channels of a value."""
        return self.v_head_dim or self.head_dim

    def length_class(self, length: int) -> int:
        """As the rotation has it."""
        return self.rope.length_class(length) if self.rope is not None else 0

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """Keys (rotated) and values of every token, or whose they are."""
        if self.kv_layer is not None:
            return CacheSpec(owner=self.kv_layer)
        keys, values = (
            TensorSpec((self.num_kv_heads, size), dtype) for size in (self.head_dim, self.v_size)
        )
        return CacheSpec(paged={"k": keys, "v": values})

    def part(self, rank: Rank) -> tuple[AttentionConfig, Parts]:
        """Cut by heads; ranks share keys and values where these have fewer heads."""
        own = rank.equal_run(self.num_heads, "query heads")
        kept = rank.shared_run(self.num_kv_heads, self.num_heads, "key/value heads")
        query, key = channels_of(own, self.head_dim), channels_of(kept, self.head_dim)
        mixed, value = channels_of(own, self.v_size), channels_of(kept, self.v_size)
        gated = 2 if self.output_gate else 1
        parts: dict[str, Held] = {
            "q_proj": Rows((channels_of(own, gated * self.head_dim),)),
            "k_proj": Rows((key,)),
            "v_proj": Rows((value,)),
            "gate_proj": Rows((own if self.head_gate else mixed,)),
            "o_proj": Columns((mixed,)),
            "out_norm": Rows((mixed,)),
            "sinks": Rows((own,)),
        }
        if self.qk_norm_all_heads:
            parts |= {"q_norm": Rows((query,)), "k_norm": Rows((key,))}
        if self.qk_layer_norm:
            parts |= {"q_norm": Rows((own,)), "k_norm": Rows((kept,))}
        return replace(self, num_heads=len(own), num_kv_heads=len(kept)), parts

    def build(self) -> Attention:
        """The module, with uninitialised parameters."""
        return Attention(self)


class HeadNorm(nn.Module):
    """LayerNorm over the channels of each head, with a weight for each head and no bias."""

    def __init__(self, num_heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, head_dim))
        self.norm = NormConfig(head_dim, eps, "layer", has_weight=False).build()

    def forward(self, x: Tensor) -> Tensor:
        """(..., H, D) to (..., H, D)."""
        normed: Tensor = self.norm(x)
        return normed * self.weight


class Attention(Mixer):
    """Grouped-query attention over paged keys and values."""

    config: AttentionConfig

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        hidden, dim = config.hidden_size, config.head_dim
        query, key = config.num_heads * dim, config.num_kv_heads * dim
        mixed, value = config.num_heads * config.v_size, config.num_kv_heads * config.v_size
        gated = 2 if config.output_gate else 1
        self.q_proj = Linear(hidden, gated * query, bias=config.qkv_bias)
        has_keys = config.kv_layer is None
        if has_keys:
            self.k_proj = Linear(hidden, key, bias=config.qkv_bias)
        if has_keys and not config.values_are_keys:
            self.v_proj = Linear(hidden, value, bias=config.qkv_bias)
        self.o_proj = Linear(mixed, config.output_size or hidden, bias=config.o_bias)
        norm = NormConfig(mixed, config.norm_eps, is_cut=True) if config.out_norm else None
        self.out_norm = None if norm is None else norm.build()
        gates = config.num_heads if config.head_gate else mixed if config.gate_proj else 0
        self.gate_proj = Linear(hidden, gates) if gates else None
        if config.qk_layer_norm:
            self.q_norm: nn.Module = HeadNorm(config.num_heads, dim, config.norm_eps)
            self.k_norm: nn.Module = HeadNorm(config.num_kv_heads, dim, config.norm_eps)
        elif config.qk_norm and config.qk_norm_weight:
            offset, eps = config.norm_unit_offset, config.norm_eps
            is_cut = config.qk_norm_all_heads
            sizes = (query, key) if is_cut else (dim, dim)
            self.q_norm = NormConfig(sizes[0], eps, unit_offset=offset, is_cut=is_cut).build()
            if has_keys:
                self.k_norm = NormConfig(sizes[1], eps, unit_offset=offset, is_cut=is_cut).build()
        self.sinks = nn.Parameter(torch.empty(config.num_heads)) if config.sinks else None

    @derived
    def _weights_behind(self) -> Tensor:
        """What rotated queries are multiplied with where norms stand behind the rotation.

        A rotation does not change how long a vector is, so it may as well be normalised before. The
        weights of both norms are left to the queries, as only their product tells in the scores.
        """
        query, key = self.q_norm.weight, self.k_norm.weight
        assert isinstance(query, Tensor)
        assert isinstance(key, Tensor)
        return query * key

    @derived
    def _params(self) -> AttentionParams:
        """How queries attend to keys."""
        config, rope = self.config, self.config.rope
        return AttentionParams(
            scale=config.scale,
            window=config.sliding_window,
            softcap=config.attn_logit_softcap,
            sinks=None if self.sinks is None else self.sinks.float(),
            temperature=None if rope is None else rope.temperature,
        )

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); writes the new keys and values, then attends to all in memory."""
        config, rope = self.config, self.config.rope
        dim, gate = config.head_dim, None
        q = self.q_proj(x)
        if config.output_gate:
            q, gate = (dense(t).flatten(-2) for t in q.unflatten(-1, (-1, 2 * dim)).chunk(2, -1))
        q = self._heads(q, "q")
        pages = Pages(keys=cache.paged["k"], values=cache.paged["v"], params=self._params)
        q = self._rotate(q, x, batch.rotation(rope), pages)
        if config.qk_norm_last and config.qk_norm_weight:
            q = q * self._weights_behind
        if config.temperature is not None:
            q = scale_queries(q, config.temperature, batch.positions + 1)
        table = batch.table
        if config.chunk_size is not None:
            table = table.in_chunks(config.chunk_size)
        heads = paged_attention(q, pages, table)
        if batch.table.bidirectional_spans:
            attend_bidirectionally(heads, q, pages, batch.table)
        if self.gate_proj is not None:
            gate = self.gate_proj(x)
        if gate is not None and config.softplus_gate:
            gate = gate.unsqueeze(-1) if config.head_gate else gate.view_as(heads)
            heads, gate = (heads * _softplus(gate)).to(heads.dtype), None
        elif gate is not None and config.head_gate:
            heads, gate = sigmoid_gate(heads, gate.unsqueeze(-1)), None
        heads = heads.flatten(-2)
        if self.out_norm is not None:
            heads = self.out_norm(heads)
        return self.o_proj(heads if gate is None else sigmoid_gate(heads, gate))

    def _rotate(self, q: Tensor, x: Tensor, rotation: Rotation, pages: Pages) -> Tensor:
        """The queries, rotated; new keys and values are put into the pages, if there are any."""
        config = self.config
        if config.kv_layer is not None:  # keys of no heads, into pages of none
            none = q[:, :0]
            keys, values = (each[:, :, :0] for each in (pages.keys, pages.values))
            return rotate_and_store(q, none, none, rotation, keys, values)
        k = self.k_proj(x)
        v = self._heads(k if config.values_are_keys else self.v_proj(x), "v")
        v = scaled(v, config.v_multiplier)
        k = self._heads(k, "k")
        if config.v_norm:
            v = rms_norm(v, self._ones, config.norm_eps)
        return rotate_and_store(q, k, v, rotation, pages.keys, pages.values)

    @derived
    def _ones(self) -> Tensor:
        """The weight of a norm that has none, as the operation takes one."""
        weight = self.o_proj.weight
        return torch.ones(self.config.head_dim, dtype=weight.dtype, device=weight.device)

    def _heads(self, x: Tensor, name: str) -> Tensor:
        """Of ``"q"``, ``"k"`` or ``"v"``, (T, H * D) to (T, H, D), normalised and clipped."""
        config = self.config
        is_normed = config.qk_norm and name != "v"
        is_bare = is_normed and (config.qk_norm_last or not config.qk_norm_weight)
        norm = getattr(self, f"{name}_norm") if is_normed and not is_bare else None
        if norm is not None and config.qk_norm_all_heads:
            x = norm(x)
        x = x.unflatten(-1, (-1, config.v_size if name == "v" else config.head_dim))
        if is_bare:
            x = rms_norm(x, self._ones, config.norm_eps)
        elif norm is not None and not config.qk_norm_all_heads:
            x = norm(x)
        limit = config.clip_qkv
        return x if limit is None else x.clamp(-limit, limit)


def _softplus(x: Tensor) -> Tensor:
    """In float32; torch's own rounds a number otherwise beside others."""
    x = x.float()
    return torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0)
