"""Gated delta networks: Qwen's, with a decay per head, and Kimi's, with one per key channel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.base import MixerConfig
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.recurrent import RecurrentMixer, State
from blazr.nn.ops.conv1d import causal_conv1d
from blazr.nn.ops.gated_delta import gated_delta_chunk
from blazr.nn.ops.norm import rms_norm

_L2_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaConfig(MixerConfig):
    """Sizes of a gated delta network.

    Args:
        hidden_size: C.
        num_key_heads: Heads of queries and keys, a divisor of ``num_heads``.
        num_heads: Heads of values, H.
        key_head_dim: N.
        value_head_dim: P.
        conv_kernel: K, taps of the causal convolution.
        norm_eps: Of the gated norm.
        grouped: Whether the projections lie together by key head (Qwen3-Next) or apart (Qwen3.5).
        grouped_gates: Whether those of decay and beta alone do (Qwen3-Next in GGUF).
        tiled: Whether the values of one key head lie ``num_key_heads`` heads apart (Qwen3.5 in
            GGUF) and not side by side.
    """

    hidden_size: int
    num_key_heads: int
    num_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4
    norm_eps: float = 1e-6
    grouped: bool = False
    grouped_gates: bool = False
    tiled: bool = False

    @property
    def key_size(self) -> int:
        """Channels of the queries, and of the keys."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Channels of the values, and of the output."""
        return self.num_heads * self.value_head_dim

    @property
    def conv_size(self) -> int:
        """Channels the convolution runs over: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """State and convolution window at grid edges, and a working copy of both."""
        state = (self.num_heads, self.key_head_dim, self.value_head_dim)
        return CacheSpec(
            checkpoint={
                "delta": TensorSpec(state, torch.float32),
                "conv": TensorSpec((self.conv_kernel - 1, self.conv_size), dtype),
            }
        )

    def build(self) -> DeltaMixer:
        """The module, with uninitialised parameters."""
        return GatedDelta(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaConfig(GatedDeltaConfig):
    """Sizes of Kimi's delta attention; keys and values have the same heads."""

    def build(self) -> DeltaMixer:
        """The module, with uninitialised parameters."""
        return KimiDelta(self)


class Projections(NamedTuple):
    """What a delta network makes of its input.

    Args:
        qkv: Before the convolution, (B, T, conv_size).
        gate: Of the output, before its activation, (B, T, H, P).
        log_decay: (B, T, H, 1 or N), float32.
        beta: (B, T, H), float32.
    """

    qkv: Tensor
    gate: Tensor
    log_decay: Tensor
    beta: Tensor


class DeltaMixer(RecurrentMixer):
    """The gated delta rule between convolution and gated norm [arXiv:2412.06464]."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = NormConfig(config.value_head_dim, config.norm_eps).build()
        self.out_proj = Linear(config.value_size, config.hidden_size)

    @abstractmethod
    def _project(self, x: Tensor) -> Projections:
        """(B, T, C) to all that follows from each token alone."""

    @abstractmethod
    def _convolve(self, window: Tensor) -> Tensor:
        """(B, K - 1 + T, conv_size) to (B, T, conv_size), float32."""

    @abstractmethod
    def _activate(self, gate: Tensor) -> Tensor:
        """The activation of the output's gate."""

    def state_spec(self) -> Mapping[str, TensorSpec]:
        """State and convolution window."""
        return self.config.cache_spec(self.out_proj.weight.dtype).checkpoint

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """At most GRID tokens of B sequences, (B, T, C) to (B, T, C)."""
        cfg, made = self.config, self._project(x)
        window = torch.cat((state["conv"], made.qkv), 1)
        post = F.silu(self._convolve(window))
        q, k, v = post.split((cfg.key_size, cfg.key_size, cfg.value_size), -1)
        q, k = (self._key_heads(each) for each in (q, k))
        v = v.unflatten(-1, (cfg.num_heads, -1))
        q = q * cfg.key_head_dim**-0.5
        y, delta = gated_delta_chunk(q, k, v, made.log_decay, made.beta, state["delta"])
        y = rms_norm(y, self.norm.weight.float(), self.norm.eps)
        y = y * self._activate(made.gate.float())
        before = window.shape[1] - cfg.conv_kernel + 1
        return self.out_proj(y.flatten(-2)), {"delta": delta, "conv": window[:, before:]}

    def _key_heads(self, x: Tensor) -> Tensor:
        """Of length one, one for each value head: (B, T, H, N)."""
        cfg = self.config
        x = x.unflatten(-1, (cfg.num_key_heads, -1))
        x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _L2_EPS)
        share = cfg.num_heads // cfg.num_key_heads
        return x.repeat(1, 1, share, 1) if cfg.tiled else x.repeat_interleave(share, -2)


class GatedDelta(DeltaMixer):
    """Qwen's: ``log_decay = -exp(a_log) softplus(a + dt_bias)``, one for each head."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__(config)
        hidden, heads = config.hidden_size, config.num_heads
        if config.grouped:
            self.in_proj_qkvz = Linear(hidden, config.conv_size + config.value_size)
            self.in_proj_ba = Linear(hidden, 2 * heads)
        else:
            self.in_proj_qkv = Linear(hidden, config.conv_size)
            self.in_proj_z = Linear(hidden, config.value_size)
            if config.grouped_gates:
                self.in_proj_ba = Linear(hidden, 2 * heads)
            else:
                self.in_proj_b = Linear(hidden, heads)
                self.in_proj_a = Linear(hidden, heads)
        self.conv1d = DepthwiseConv(config.conv_size, config.conv_kernel, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.a_log = nn.Parameter(torch.empty(heads))

    def _project(self, x: Tensor) -> Projections:
        if self.config.grouped:
            qkv, z, b, a = self._project_grouped(x)
        else:
            qkv, z = self.in_proj_qkv(x), self.in_proj_z(x)
            is_grouped = self.config.grouped_gates
            b, a = self._gates(x) if is_grouped else (self.in_proj_b(x), self.in_proj_a(x))
        step = F.softplus(a.float() + self.dt_bias.float())
        decay = -self.a_log.float().exp() * step
        gate = z.unflatten(-1, (self.config.num_heads, -1))
        return Projections(qkv, gate, decay.unsqueeze(-1), b.float().sigmoid())

    def _project_grouped(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        cfg = self.config
        share = cfg.num_heads // cfg.num_key_heads
        values = share * cfg.value_head_dim
        sizes = (cfg.key_head_dim, cfg.key_head_dim, values, values)
        rows = self.in_proj_qkvz(x).unflatten(-1, (cfg.num_key_heads, -1))
        q, k, v, z = (part.flatten(-2) for part in rows.split(sizes, -1))
        return torch.cat((q, k, v), -1), z, *self._gates(x)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = self.in_proj_ba(x).unflatten(-1, (self.config.num_key_heads, 2, -1))
        return both[..., 0, :].flatten(-2), both[..., 1, :].flatten(-2)

    def _convolve(self, window: Tensor) -> Tensor:
        return causal_conv1d(window, self.conv1d.weight, self.conv1d.bias)

    def _activate(self, gate: Tensor) -> Tensor:
        return F.silu(gate)


class KimiDelta(DeltaMixer):
    """Kimi's: the decay has low rank and differs by key channel [arXiv:2510.26692]."""

    def __init__(self, config: KimiDeltaConfig) -> None:
        super().__init__(config)
        hidden, heads, dim = config.hidden_size, config.num_heads, config.key_head_dim
        sizes = {"q": config.key_size, "k": config.key_size, "v": config.value_size}
        self.sizes = sizes
        for name, size in sizes.items():
            setattr(self, f"{name}_proj", Linear(hidden, size))
            setattr(self, f"{name}_conv1d", DepthwiseConv(size, config.conv_kernel, bias=False))
        self.b_proj = Linear(hidden, heads)
        self.f_a_proj, self.f_b_proj = Linear(hidden, dim), Linear(dim, config.key_size)
        self.g_a_proj, self.g_b_proj = Linear(hidden, dim), Linear(dim, config.value_size)
        self.dt_bias = nn.Parameter(torch.empty(config.key_size))
        self.a_log = nn.Parameter(torch.empty(1, 1, heads, 1))

    def _project(self, x: Tensor) -> Projections:
        heads = (self.config.num_heads, -1)
        qkv = torch.cat([getattr(self, f"{name}_proj")(x) for name in self.sizes], -1)
        step = F.softplus(self.f_b_proj(self.f_a_proj(x)).float() + self.dt_bias.float())
        decay = -self.a_log.float().exp() * step.unflatten(-1, heads)
        gate = self.g_b_proj(self.g_a_proj(x)).unflatten(-1, heads)
        return Projections(qkv, gate, decay, self.b_proj(x).float().sigmoid())

    def _convolve(self, window: Tensor) -> Tensor:
        parts = window.split(tuple(self.sizes.values()), -1)
        convs = [getattr(self, f"{name}_conv1d") for name in self.sizes]
        return torch.cat(
            [causal_conv1d(x, conv.weight, None) for x, conv in zip(parts, convs, strict=True)], -1
        )

    def _activate(self, gate: Tensor) -> Tensor:
        return gate.sigmoid()
