"""Gated delta networks: Qwen's and OLMo's decay by head, and Kimi's by key channel."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, MixerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.derived import derived
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.ranks import Columns, Parts, Rank, Rows, channels_of
from blazr.nn.operands.recurrent import DeltaRows, DeltaWeights, GatedNorm, GateOrder
from blazr.nn.operands.step import StepTable, Window
from blazr.nn.ops.convolution import convolve
from blazr.nn.ops.gated_delta import gated_delta


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaConfig(MixerConfig):
    """Sizes of a gated delta network.

    Args:
        hidden_size: C.
        num_key_heads: Heads of queries and keys, a divisor of ``num_heads``.
        num_heads: Heads of values, H; those that share a key head lie side by side.
        key_head_dim: N.
        value_head_dim: P.
        conv_kernel: K, taps of the causal convolution.
        norm_eps: Of the gated norm.
        beta_scale: What the sigmoid of beta is multiplied with. Twice that lets the memory along a
            key change its sign, an eigenvalue below zero [arXiv:2411.12537].
    """

    hidden_size: int
    num_key_heads: int
    num_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4
    norm_eps: float = 1e-6
    beta_scale: float = 1.0

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

    @property
    def num_decays(self) -> int:
        """Decays of a token: one for each head."""
        return self.num_heads

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """State and convolution window at grid edges; a working state; inputs since the edge."""
        state = (self.num_heads, self.key_head_dim, self.value_head_dim)
        return CacheSpec(
            checkpoint={
                "delta": TensorSpec(state, torch.float32),
                "conv": TensorSpec((self.conv_kernel - 1, self.conv_size), dtype),
            },
            log={
                "conv": TensorSpec((self.conv_size,), dtype),
                "decay": TensorSpec((self.num_decays,), dtype),
                "beta": TensorSpec((self.num_heads,), dtype),
            },
            working=("delta",),
            states=("delta",),
        )

    def part(self, rank: Rank) -> tuple[Self, Parts]:
        """Cut by heads; ranks share queries and keys where these have fewer."""
        own = rank.equal_run(self.num_heads, "heads of values")
        keys = rank.shared_run(self.num_key_heads, self.num_heads, "heads of keys")
        return replace(self, num_heads=len(own), num_key_heads=len(keys)), self._held(own, keys)

    def _held(self, own: range, keys: range) -> Parts:
        value = channels_of(own, self.value_head_dim)
        made = Rows(
            (
                channels_of(keys, self.key_head_dim),
                channels_of(keys, self.key_head_dim, self.key_size),
                channels_of(value, 1, 2 * self.key_size),
            )
        )
        names = ("in_proj_b", "in_proj_a", "dt_bias", "a_log")
        return dict.fromkeys(names, Rows((own,))) | {
            "in_proj_qkv": made,
            "conv1d": made,
            "in_proj_z": Rows((value,)),
            "out_proj": Columns((value,)),
        }

    def build(self) -> DeltaMixer:
        """The module, with uninitialised parameters."""
        return GatedDelta(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoDeltaConfig(GatedDeltaConfig):
    """Sizes of OLMo Hybrid's; queries, keys and values have matrices and filters of their own."""

    def _held(self, own: range, keys: range) -> Parts:
        key, value = channels_of(keys, self.key_head_dim), channels_of(own, self.value_head_dim)
        of_keys = ("q_proj", "k_proj", "q_conv1d", "k_conv1d")
        of_heads = ("b_proj", "a_proj", "dt_bias", "a_log")
        return (
            dict.fromkeys(of_keys, Rows((key,)))
            | dict.fromkeys(("v_proj", "v_conv1d", "g_proj"), Rows((value,)))
            | dict.fromkeys(of_heads, Rows((own,)))
            | {"out_proj": Columns((value,))}
        )

    def build(self) -> DeltaMixer:
        """The module, with uninitialised parameters."""
        return OlmoDelta(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaConfig(GatedDeltaConfig):
    """Sizes of Kimi's delta attention; keys and values have the same heads.

    Args:
        has_low_rank: Whether decays and gates are projected by way of ``key_head_dim`` channels
            (Kimi), or by a matrix each (Ling 3).
        least: Logarithms of decays lie between it and 0; 0 for no limit.
    """

    has_low_rank: bool = True
    least: float = 0.0

    @property
    def num_decays(self) -> int:
        """One for each key channel."""
        return self.key_size

    def _held(self, own: range, keys: range) -> Parts:
        key, value = channels_of(keys, self.key_head_dim), channels_of(own, self.value_head_dim)
        of_keys = ("q_proj", "k_proj", "q_conv1d", "k_conv1d", "f_b_proj", "f_proj", "dt_bias")
        of_values = ("v_proj", "v_conv1d", "g_b_proj", "g_proj")
        return (
            dict.fromkeys(of_keys, Rows((key,)))
            | dict.fromkeys(of_values, Rows((value,)))
            | {
                "b_proj": Rows((own,)),
                "a_log": Rows((own,), dim=2),
                "out_proj": Columns((value,)),
            }
        )

    def build(self) -> DeltaMixer:
        """The module, with uninitialised parameters."""
        return KimiDelta(self)


class Projections(NamedTuple):
    """What a delta network makes of its input, before all that is not linear.

    Args:
        qkv: (B, T, conv_size), in as many parts as there are convolutions.
        gate: Of the output, (B, T, H * P).
        decay: (B, T, H) or (B, T, H * N).
        beta: (B, T, H).
    """

    qkv: tuple[Tensor, ...]
    gate: Tensor
    decay: Tensor
    beta: Tensor


class DeltaMixer(Mixer):
    """The gated delta rule between convolution and gated norm [arXiv:2412.06464].

    Decays are ``exp(-exp(a_log) softplus(decay + dt_bias))``, or
    ``exp(least sigmoid(exp(a_log) (decay + dt_bias)))`` where they have a limit.
    """

    config: GatedDeltaConfig
    least = 0.0
    a_log: nn.Parameter
    dt_bias: nn.Parameter
    order: GateOrder

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__(config)
        self.norm = NormConfig(config.value_head_dim, config.norm_eps).build()
        self.out_proj = Linear(config.value_size, config.hidden_size)

    @abstractmethod
    def _project(self, x: Tensor) -> Projections:
        """(..., C) to all that follows from each token alone."""

    @property
    @abstractmethod
    def _convolutions(self) -> tuple[DepthwiseConv, ...]:
        """Of each part of queries, keys and values."""

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); updates states and log, writes the checkpoints the batch asks for."""
        made = self._project(x)
        cache.append(batch.table, decay=made.decay, beta=made.beta)
        return self.out_proj(self._recur(made, batch.table, cache))

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """Run convolutions and recurrence again."""
        raw, decay, beta = cache.logged(table, "conv", "decay", "beta")
        qkv = raw.split([len(conv.weight) for conv in self._convolutions], -1)
        # the output is dropped: its gate may be anything
        gate = raw[:, -self.config.value_size :]
        self._recur(Projections(qkv, gate, decay, beta), table, cache)

    def _recur(self, made: Projections, table: StepTable, cache: LayerCache) -> Tensor:
        """What the output projection takes, (T, H * P)."""
        cfg = self.config
        low = 0
        qkv = made.gate.new_empty(len(made.gate), cfg.conv_size)
        window = cache.window("conv")
        for part, conv in zip(made.qkv, self._convolutions, strict=True):
            own = slice(low, low + part.shape[1])
            seen = Window(window.kept[..., own], window.log[..., own])
            convolve(part, conv.filter, seen, table, out=qkv[:, own])
            low = own.stop
        q, k, v = qkv.split((cfg.key_size, cfg.key_size, cfg.value_size), -1)
        rows = DeltaRows(q=q, k=k, decay=made.decay, beta=made.beta, gate=made.gate)
        return gated_delta(v, rows, self._weights, cache.carried("delta"), table)

    @derived
    def _weights(self) -> DeltaWeights:
        cfg, norm = self.config, self.norm
        return DeltaWeights(
            heads=cfg.num_heads,
            key_heads=cfg.num_key_heads,
            dt_bias=self.dt_bias.float(),
            a=-self.a_log.float().exp().flatten(),
            norm=GatedNorm(self.order, norm.weight.float(), norm.eps),
            beta_scale=cfg.beta_scale,
            least=self.least,
        )


class GatedDelta(DeltaMixer):
    """Qwen's: one decay for each head."""

    order = "norm_first"

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__(config)
        hidden, heads = config.hidden_size, config.num_heads
        self.in_proj_qkv = Linear(hidden, config.conv_size)
        self.in_proj_z = Linear(hidden, config.value_size)
        self.in_proj_b = Linear(hidden, heads)
        self.in_proj_a = Linear(hidden, heads)
        self.conv1d = DepthwiseConv(config.conv_size, config.conv_kernel, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.a_log = nn.Parameter(torch.empty(heads))

    @property
    def _convolutions(self) -> tuple[DepthwiseConv, ...]:
        return (self.conv1d,)

    def _project(self, x: Tensor) -> Projections:
        qkv, gate = self.in_proj_qkv(x), self.in_proj_z(x)
        return Projections((qkv,), gate, self.in_proj_a(x), self.in_proj_b(x))


class _Apart(DeltaMixer):
    """Queries, keys and values are projected and convolved one by one."""

    def __init__(self, config: GatedDeltaConfig) -> None:
        super().__init__(config)
        sizes = {"q": config.key_size, "k": config.key_size, "v": config.value_size}
        for name, size in sizes.items():
            setattr(self, f"{name}_proj", Linear(config.hidden_size, size))
            setattr(self, f"{name}_conv1d", DepthwiseConv(size, config.conv_kernel, bias=False))
        self.b_proj = Linear(config.hidden_size, config.num_heads)

    @property
    def _convolutions(self) -> tuple[DepthwiseConv, ...]:
        return tuple(getattr(self, f"{name}_conv1d") for name in "qkv")

    def _qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(getattr(self, f"{name}_proj")(x) for name in "qkv")


class OlmoDelta(_Apart):
    """OLMo Hybrid's: one decay for each head."""

    order = "norm_first"

    def __init__(self, config: OlmoDeltaConfig) -> None:
        super().__init__(config)
        hidden, heads = config.hidden_size, config.num_heads
        self.a_proj = Linear(hidden, heads)
        self.g_proj = Linear(hidden, config.value_size)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.a_log = nn.Parameter(torch.empty(heads))

    def _project(self, x: Tensor) -> Projections:
        return Projections(self._qkv(x), self.g_proj(x), self.a_proj(x), self.b_proj(x))


class KimiDelta(_Apart):
    """Kimi's: the decay differs by key channel [arXiv:2510.26692]."""

    order = "norm_sigmoid"

    def __init__(self, config: KimiDeltaConfig) -> None:
        super().__init__(config)
        self.least = config.least
        hidden, heads, dim = config.hidden_size, config.num_heads, config.key_head_dim
        self.has_low_rank = config.has_low_rank
        if config.has_low_rank:
            self.f_a_proj, self.f_b_proj = Linear(hidden, dim), Linear(dim, config.key_size)
            self.g_a_proj, self.g_b_proj = Linear(hidden, dim), Linear(dim, config.value_size)
        else:
            self.f_proj = Linear(hidden, config.key_size)
            self.g_proj = Linear(hidden, config.value_size)
        self.dt_bias = nn.Parameter(torch.empty(config.key_size))
        self.a_log = nn.Parameter(torch.empty(1, 1, heads, 1))

    def _project(self, x: Tensor) -> Projections:
        if self.has_low_rank:
            decay, gate = self.f_b_proj(self.f_a_proj(x)), self.g_b_proj(self.g_a_proj(x))
        else:
            decay, gate = self.f_proj(x), self.g_proj(x)
        return Projections(self._qkv(x), gate, decay, self.b_proj(x))
