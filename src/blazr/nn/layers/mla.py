"""Multi-head latent attention: a small latent per token is all that is remembered."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, MixerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.derived import derived
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.lora import Lora, head_loras
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, channels_of
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.attention import AttentionParams, LatentRows, Latents
from blazr.nn.ops.latent_attention import latent_attention
from blazr.nn.ops.pointwise import sigmoid_gate


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
        q_latent: Size of the query latent; None where there is none (DeepSeek-V2-Lite).
        rope: Rotation of ``rope_dim`` channels; None leaves them as they are (Kimi).
        sliding_window: Tokens a query sees, or None for all.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    rope_dim: int
    kv_latent: int
    q_latent: int | None
    rope: RopeConfig | None
    sliding_window: int | None = None

    def length_class(self, length: int) -> int:
        """As the rotation has it."""
        return self.rope.length_class(length) if self.rope is not None else 0

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """The latent and the rotated key of every token: ``kv_latent + rope_dim`` numbers."""
        return CacheSpec(
            paged={
                "latent": TensorSpec((self.kv_latent,), dtype),
                "k_rope": TensorSpec((self.rope_dim,), dtype),
            }
        )

    @property
    def scale(self) -> float:
        """What the scores are multiplied with."""
        return (self.head_dim + self.rope_dim) ** -0.5

    def part(self, rank: Rank) -> tuple[Self, Parts]:
        """Cut by heads; every rank has all latents."""
        own = rank.equal_run(self.num_heads, "heads")
        return replace(self, num_heads=len(own)), self._held(own)

    def _held(self, own: range) -> Parts:
        unrotated = Rows((channels_of(own, self.head_dim),))
        return {
            "q_up_proj": unrotated,
            "k_up_proj": unrotated,
            "v_up_proj": unrotated,
            "q_rope_proj": Rows((channels_of(own, self.rope_dim),)),
            "o_proj": Columns(unrotated.runs),
        }

    def build(self) -> Mla:
        """The module, with uninitialised parameters."""
        return OxidizrMla(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekMlaConfig(MlaConfig):
    """Sizes of multi-head latent attention, as DeepSeek has it.

    Args:
        v_head_dim: E, of the values.
        norm_eps: Of the norms of both latents.
        bias: Whether the projections from and to the hidden size have biases.
        attention_multiplier: Applied to the scores.
        output_gate: Whether a sigmoid weighs the output of each head (Ling 3).
    """

    v_head_dim: int
    norm_eps: float = 1e-6
    bias: bool = False
    attention_multiplier: float
    output_gate: bool = False

    @property
    def scale(self) -> float:
        """What the scores are multiplied with."""
        return self.attention_multiplier

    def _held(self, own: range) -> Parts:
        query = Rows((channels_of(own, self.head_dim + self.rope_dim),))
        heads: dict[str, Held] = {"k_up": Rows((own,)), "v_up": Rows((own,))}
        return heads | {
            "q_proj": query,
            "q_up_proj": query,
            "gate_proj": Rows((own,)),
            "o_proj": Columns((channels_of(own, self.v_head_dim),)),
        }

    def build(self) -> Mla:
        """The module, with uninitialised parameters."""
        return DeepseekMla(self)


class Mla(Mixer):
    """Latent attention [arXiv:2405.04434, section 2.1].

    The upward matrices are plain numbers however the others are stored. ``loras`` are what
    adapters change in them, by ``"k_up"`` or ``"v_up"`` and the head.
    """

    config: MlaConfig
    o_proj: Linear

    def __init__(self, config: MlaConfig) -> None:
        super().__init__(config)
        self.num_heads = config.num_heads
        self.params = AttentionParams(
            scale=config.scale,
            window=config.sliding_window,
            temperature=None if config.rope is None else config.rope.temperature,
        )
        self.loras: dict[str, dict[int, Lora]] = {"k_up": {}, "v_up": {}}
        self.gate_proj: Linear | None = None

    @abstractmethod
    def _compress(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is remembered: the latents (..., R), and the keys (..., 1, P) before rotation."""

    @abstractmethod
    def _queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The parts that stay (..., H, D), and those to be rotated (..., H, P)."""

    @property
    @abstractmethod
    def up(self) -> tuple[Tensor, Tensor]:
        """From latents to keys, (H, R, D), and to values, (H, E, R)."""

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); writes the new latents, then attends to all in memory."""
        latent, k_rope = self._compress(x)
        q, q_rope = self._queries(x)
        k_up, v_up = self.up
        memory = Latents(
            latents=cache.paged["latent"],
            keys=cache.paged["k_rope"],
            k_up=k_up,
            v_up=v_up,
            params=self.params,
            k_loras=head_loras(self.loras["k_up"]),
            v_loras=head_loras(self.loras["v_up"]),
        )
        rows = LatentRows(q_rope=q_rope, k_rope=k_rope, latent=latent)
        heads = latent_attention(q, rows, memory, batch.rotation(self.config.rope), batch.table)
        if self.gate_proj is not None:
            heads = sigmoid_gate(heads, self.gate_proj(x).unsqueeze(-1))
        return self.o_proj(heads.flatten(-2))


class OxidizrMla(Mla):
    """oxidizr's: a matrix for each part."""

    def __init__(self, config: MlaConfig) -> None:
        super().__init__(config)
        assert config.q_latent is not None, "oxidizr always has a query latent"
        hidden, inner = config.hidden_size, config.num_heads * config.head_dim
        self.kv_down_proj = Linear(hidden, config.kv_latent)
        self.q_down_proj = Linear(hidden, config.q_latent)
        self.q_up_proj = Linear(config.q_latent, inner)
        self.k_up_proj = Linear(config.kv_latent, inner)
        self.v_up_proj = Linear(config.kv_latent, inner)
        self.q_rope_proj = Linear(hidden, config.num_heads * config.rope_dim)
        self.k_rope_proj = Linear(hidden, config.rope_dim)
        self.o_proj = Linear(inner, hidden)

    def _compress(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.kv_down_proj(x), self.k_rope_proj(x).unsqueeze(-2)

    def _queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        heads = (self.num_heads, -1)
        q = self.q_up_proj(self.q_down_proj(x)).unflatten(-1, heads)
        return q, self.q_rope_proj(x).unflatten(-1, heads)

    @derived
    def up(self) -> tuple[Tensor, Tensor]:
        """The matrices of the projections, head by head."""
        heads = (self.num_heads, -1)
        k, v = self.k_up_proj.weight, self.v_up_proj.weight
        assert isinstance(k, Tensor)
        assert isinstance(v, Tensor)
        return k.unflatten(0, heads).transpose(1, 2).contiguous(), v.unflatten(0, heads)


class DeepseekMla(Mla):
    """DeepSeek's [arXiv:2405.04434]: fused matrices, and norms of both latents."""

    def __init__(self, config: DeepseekMlaConfig) -> None:
        super().__init__(config)
        hidden, heads, bias = config.hidden_size, config.num_heads, config.bias
        self.parts = (config.head_dim, config.rope_dim)
        self.latent_parts = (config.kv_latent, config.rope_dim)
        query, latent = heads * sum(self.parts), config.q_latent
        self.q_down_proj = None
        if latent is None:
            self.q_proj = Linear(hidden, query)
        else:
            self.q_down_proj = Linear(hidden, latent, bias=bias)
            self.q_norm = NormConfig(latent, config.norm_eps).build()
            self.q_up_proj = Linear(latent, query)
        self.kv_down_proj = Linear(hidden, sum(self.latent_parts), bias=bias)
        self.kv_norm = NormConfig(config.kv_latent, config.norm_eps).build()
        self.k_up = nn.Parameter(torch.empty(heads, config.kv_latent, config.head_dim))
        self.v_up = nn.Parameter(torch.empty(heads, config.v_head_dim, config.kv_latent))
        if config.output_gate:
            self.gate_proj = Linear(hidden, heads)
        self.o_proj = Linear(heads * config.v_head_dim, hidden, bias=bias)

    def _compress(self, x: Tensor) -> tuple[Tensor, Tensor]:
        latent, k_rope = self.kv_down_proj(x).split(self.latent_parts, -1)
        return self.kv_norm(latent), k_rope.unsqueeze(-2)

    def _queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_down_proj is None:
            q = self.q_proj(x)
        else:
            q = self.q_up_proj(self.q_norm(self.q_down_proj(x)))
        q, q_rope = q.unflatten(-1, (self.num_heads, -1)).split(self.parts, -1)
        return q, q_rope

    @property
    def up(self) -> tuple[Tensor, Tensor]:
        """The parameters, as operations take them."""
        return self.k_up, self.v_up
