"""Multi-head latent attention: a small latent per token is all that is remembered."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import DecodeGroup, ForwardBatch, LayerCache, rotate_and_write
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import Linear
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.rope import Positions, RopeConfig
from blazr.nn.ops.attention import attention, decode_attention
from blazr.nn.ops.matmul import linear, linear_heads
from blazr.nn.ops.sequence import Pages, attention_kernel

MAX_KEY, MAX_LATENT = 576, 512  # what the kernel has room for


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
        apart: Whether the upward matrices are two, of keys and of values (GGUF), and not one.
    """

    v_head_dim: int
    norm_eps: float = 1e-6
    bias: bool = False
    attention_multiplier: float
    apart: bool = False

    @property
    def scale(self) -> float:
        """What the scores are multiplied with."""
        return self.attention_multiplier

    def build(self) -> Mla:
        """The module, with uninitialised parameters."""
        return ApartMla(self) if self.apart else DeepseekMla(self)


class Mla(Mixer):
    """Latent attention in its absorbed form [arXiv:2405.04434, section 2.1].

    With kernels every token attends to the latents themselves, in prefill as in decode: one
    formula, so neither cutting a prompt elsewhere nor other sequences can change a bit. Without
    them prefill expands keys and values. The upward matrices are plain numbers however the others
    are stored, and that of the keys is kept turned over as well: H * D * R more numbers a layer.
    """

    o_proj: Linear

    def __init__(self, config: MlaConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.rope = config.rope
        self.scale = config.scale
        self.sliding_window = config.sliding_window
        sizes = config.kv_latent, config.kv_latent + config.rope_dim
        self._fits_kernel = sizes[0] <= MAX_LATENT and sizes[1] <= MAX_KEY
        self._kernel_up: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def _compress(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is remembered: the latents (..., R), and the keys (..., 1, P) before rotation."""

    @abstractmethod
    def _queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The parts that stay (..., H, D), and those to be rotated (..., H, P)."""

    @abstractmethod
    def _expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (..., H, D) and values (..., H, E) of latents."""

    @abstractmethod
    def _up(self) -> tuple[Tensor, Tensor]:
        """The matrices of `_expand`, (H, D, R) and (H, E, R)."""

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); writes the new latents, then attends to all in memory."""
        latent, k_rope = self._compress(x)
        q, q_rope = self._queries(x)
        # one key for all heads, and the latent in the place of its values
        pages = cache.paged["k_rope"].unsqueeze(2), cache.paged["latent"].unsqueeze(2)
        rotated = q_rope, k_rope, latent.unsqueeze(1)
        attend = attention_kernel(q.device.type, q.dtype)
        if attend is not None and self._fits_kernel:
            up, kept = self._kernel_weights(), latent.shape[-1]
            queries = q.new_empty(*q.shape[:2], kept + q_rope.shape[-1])
            linear_heads(q, up[0], queries[..., :kept])
            rotate_and_write(rotated, self.rope, batch, pages, out=queries[..., kept:])
            memory = Pages(
                keys=pages[1],
                more_keys=pages[0],
                values=pages[1],
                scale=self.scale,
                window=self.sliding_window,
                temperature=None if self.rope is None else self.rope.temperature,
            )
            mixed = attend(queries, memory, batch.table)
            return self.o_proj(linear_heads(mixed, up[1]).flatten(-2))
        q_rope = rotate_and_write(rotated, self.rope, batch, pages)
        q, q_rope = (batch.rotary.temper(part, self.rope) for part in (q, q_rope))
        parts = torch.empty((len(x), self.o_proj.weight.shape[1]), dtype=q.dtype, device=q.device)
        out = parts.unflatten(-1, (self.num_heads, -1))  # (T, H, E)
        for group in batch.decode_groups:
            rows = group.rows
            out[rows] = self._decode(q[rows], q_rope[rows], group, cache)
        for index in range(batch.num_decodes, len(batch.spans)):
            span, table = batch.spans[index], batch.block_tables[index]
            latents = cache.read("latent", table, span.total)
            keys = cache.read("k_rope", table, span.total)
            out[span.rows] = self._attend(q[span.rows], q_rope[span.rows], latents, keys)
        return self.o_proj(parts)

    def _kernel_weights(self) -> tuple[Tensor, Tensor]:
        """The matrices of `_up` by output, (H, R, D) and (H, E, R); once weights are in place."""
        if self._kernel_up is None:
            keys, values = self._up()
            self._kernel_up = keys.transpose(1, 2).contiguous(), values
        return self._kernel_up

    def forward_sequences(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C), every sequence from position 0."""
        positions = Positions(torch.arange(x.shape[1], device=x.device))
        latent, k_rope = self._compress(x)
        q, q_rope = self._queries(x)
        q_rope, k_rope = positions.rotate(q_rope, self.rope), positions.rotate(k_rope, self.rope)
        q, q_rope = (positions.temper(part, self.rope) for part in (q, q_rope))
        k_rope = k_rope.squeeze(-2)
        return self.o_proj(self._attend(q, q_rope, latent, k_rope).flatten(-2))

    def _attend(self, q: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor) -> Tensor:
        k, v = self._expand(latent)
        shared = k_rope.unsqueeze(-2).expand(*k.shape[:-1], -1)  # (..., S, H, P)
        query, key = torch.cat((q, q_rope), -1), torch.cat((k, shared), -1)
        return attention(query, key, v, scale=self.scale, window=self.sliding_window)

    def _decode(self, q: Tensor, q_rope: Tensor, group: DecodeGroup, cache: LayerCache) -> Tensor:
        k_up, v_up = self._up()
        q_latent = torch.einsum("bhd,hdr->bhr", q, k_up)
        latents = cache.read_together("latent", group.pages)  # (b, S, R)
        keys = torch.cat((latents, cache.read_together("k_rope", group.pages)), -1)
        mixed = decode_attention(
            torch.cat((q_latent, q_rope), -1),
            keys.unsqueeze(2),
            latents.unsqueeze(2),
            group.visible,
            scale=self.scale,
            window=self.sliding_window,
        )
        return torch.einsum("bhr,her->bhe", mixed.to(q.dtype), v_up)


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

    def _expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        heads = (self.num_heads, -1)
        k, v = self.k_up_proj(latent), self.v_up_proj(latent)
        return k.unflatten(-1, heads), v.unflatten(-1, heads)

    def _up(self) -> tuple[Tensor, Tensor]:
        heads = (self.num_heads, -1)
        k, v = self.k_up_proj.weight, self.v_up_proj.weight
        assert isinstance(k, Tensor)
        assert isinstance(v, Tensor)
        return k.unflatten(0, heads), v.unflatten(0, heads)


class DeepseekMla(Mla):
    """DeepSeek's [arXiv:2405.04434]: fused matrices, and norms of both latents."""

    def __init__(self, config: DeepseekMlaConfig) -> None:
        super().__init__(config)
        hidden, heads, bias = config.hidden_size, config.num_heads, config.bias
        self.parts = (config.head_dim, config.rope_dim)
        self.kv_parts = (config.head_dim, config.v_head_dim)
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
        if not config.apart:
            self.kv_up_proj = Linear(config.kv_latent, heads * sum(self.kv_parts))
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

    def _expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        both = self.kv_up_proj(latent).unflatten(-1, (self.num_heads, -1))
        k, v = both.split(self.kv_parts, -1)
        return k, v

    def _up(self) -> tuple[Tensor, Tensor]:
        both = self.kv_up_proj.weight
        assert isinstance(both, Tensor)
        k, v = both.unflatten(0, (self.num_heads, -1)).split(self.kv_parts, 1)
        return k, v


class ApartMla(DeepseekMla):
    """The same with the upward matrices head by head, that of the keys turned over."""

    def __init__(self, config: DeepseekMlaConfig) -> None:
        super().__init__(config)
        heads, latent = config.num_heads, config.kv_latent
        self.k_up = nn.Parameter(torch.empty(heads, latent, config.head_dim))
        self.v_up = nn.Parameter(torch.empty(heads, config.v_head_dim, latent))

    def _expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._up()
        shape = (self.num_heads, -1)
        keys = linear(latent, k.flatten(0, 1)).unflatten(-1, shape)
        return keys, linear(latent, v.flatten(0, 1)).unflatten(-1, shape)

    def _up(self) -> tuple[Tensor, Tensor]:
        return self.k_up.transpose(1, 2), self.v_up
