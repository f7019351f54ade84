"""The Mamba-1 mixer, in oxidizr's form and in mamba_ssm's, and with heads (Zamba)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, MixerConfig, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.derived import derived
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, channels_of
from blazr.nn.operands.recurrent import Mamba1Rows, Mamba1Weights
from blazr.nn.operands.step import Carried, StepTable
from blazr.nn.ops.convolution import convolve
from blazr.nn.ops.mamba1 import mamba1
from blazr.nn.ops.matmul import linear_heads
from blazr.nn.ops.norm import rms_norm
from blazr.nn.ops.pointwise import dense

OXIDIZR_STATE_LIMIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1Config(MixerConfig):
    """Sizes of a Mamba-1 mixer.

    Args:
        hidden_size: C.
        inner_size: Channels of the recurrence.
        state_size: N.
        dt_rank: Size of the step-size projection's input (oxidizr: the inner size).
        conv_kernel: K, taps of the causal convolution.
        bias: Whether the projections into the mixer and out of it have biases.
        conv_bias: Whether the convolution has one.
        inner_norms: Whether step sizes, B and C are normalised, without weights (FalconMamba) or
            with them (Jamba).
        norm_eps: Of these norms.
        variant: ``"mamba_ssm"``: ``A = -exp(a_log)``. ``"oxidizr"``: ``A = exp(-a_log)``, which
            grows the state, and every element of it is limited to 30 after each token.
    """

    hidden_size: int
    inner_size: int
    state_size: int
    dt_rank: int
    conv_kernel: int = 4
    bias: bool = False
    conv_bias: bool = True
    inner_norms: Literal["none", "plain", "weighted"] = "none"
    norm_eps: float = 1e-6
    variant: Literal["oxidizr", "mamba_ssm"] = "mamba_ssm"

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """State and convolution window at grid edges; a working state; inputs since the edge."""
        window = (self.conv_kernel - 1, self.inner_size)
        return CacheSpec(
            checkpoint={
                "ssm": TensorSpec((self.inner_size, self.state_size), torch.float32),
                "conv": TensorSpec(window, dtype),
            },
            log={
                "conv": TensorSpec((self.inner_size,), dtype),
                "dt": TensorSpec((self.inner_size,), dtype),
                "b": TensorSpec((self.state_size,), dtype),
            },
            working=("ssm",),
            states=("ssm",),
        )

    def part(self, rank: Rank) -> tuple[Mamba1Config, Parts]:
        """Cut by channels; step sizes of low rank, B and C are made of all of them."""
        own = rank.equal_run(self.inner_size, "inner channels")
        rows, columns = Rows((own,)), Columns((own,))
        parts: dict[str, Held] = dict.fromkeys(("conv1d", "dt_proj", "a_log", "d"), rows)
        parts |= {
            "in_proj": Rows((own, channels_of(own, 1, self.inner_size))),
            "x_proj": columns,
            "out_proj": columns,
        }
        return replace(self, inner_size=len(own)), parts

    def build(self) -> Mixer:
        """The module, with uninitialised parameters."""
        return Mamba1(self)


class Mamba1(Mixer):
    """Selective state space with a decay per channel and state [arXiv:2312.00752]."""

    config: Mamba1Config

    def __init__(self, config: Mamba1Config) -> None:
        super().__init__(config)
        inner, rank, states = config.inner_size, config.dt_rank, config.state_size
        self.in_proj = Linear(config.hidden_size, 2 * inner, bias=config.bias)
        self.conv1d = DepthwiseConv(inner, config.conv_kernel, bias=config.conv_bias)
        self.x_proj = Linear(inner, rank + 2 * states)
        self.dt_proj = Linear(rank, inner, bias=True)
        self.a_log = nn.Parameter(torch.empty(inner, states))
        self.d = nn.Parameter(torch.empty(inner))
        self.out_proj = Linear(inner, config.hidden_size, bias=config.bias)
        self.sizes = {"dt": rank, "b": states, "c": states}
        if config.inner_norms == "weighted":
            for name, size in self.sizes.items():
                setattr(self, f"{name}_norm", NormConfig(size, config.norm_eps).build())

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); updates states and log, writes the checkpoints the batch asks for."""
        raw, gate = self.in_proj(x).chunk(2, -1)
        u = convolve(raw, self.conv1d.filter, cache.window("conv"), batch.table)
        made = self.ranks.sum(self.x_proj(u))
        parts = made.split(tuple(self.sizes.values()), -1)
        if self.config.inner_norms != "none":
            eps = self.config.norm_eps
            pairs = zip(parts, self._norms, strict=True)
            parts = tuple(rms_norm(part, weight, eps) for part, weight in pairs)
        dt, b, c = parts
        rows = Mamba1Rows(dt=self.dt_proj(dense(dt)), b=b, c=c, gate=gate)
        cache.append(batch.table, dt=rows.dt, b=b)
        return self.out_proj(mamba1(u, rows, self._weights, cache.carried("ssm"), batch.table))

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """Run convolution and recurrence again."""
        raw, dt, b = cache.logged(table, "conv", "dt", "b")
        u = convolve(raw, self.conv1d.filter, cache.window("conv"), table)
        # the output is dropped: what it alone depends on may be anything
        rows = Mamba1Rows(dt=dt, b=b, c=b, gate=u)
        mamba1(u, rows, self._weights, cache.carried("ssm"), table)

    @derived
    def _weights(self) -> Mamba1Weights:
        a_log = self.a_log.float()
        if self.config.variant == "oxidizr":
            return Mamba1Weights(torch.exp(-a_log), self.d.float(), OXIDIZR_STATE_LIMIT)
        return Mamba1Weights(-torch.exp(a_log), self.d.float(), 0.0)

    @derived
    def _norms(self) -> list[Tensor]:
        """Weights of the norms of step sizes, B and C; ones where the model has none."""
        if self.config.inner_norms == "weighted":
            return [getattr(self, f"{name}_norm").weight for name in self.sizes]
        return [self.conv1d.weight.new_ones(size) for size in self.sizes.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadedMamba1Config(Mamba1Config):
    """Sizes of a Mamba-1 mixer with heads, each of which has step sizes, B and C of its own.

    Args:
        num_heads: H, a divisor of ``inner_size``.
    """

    num_heads: int

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.inner_size // self.num_heads

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """The same, with B of every head."""
        spec = Mamba1Config.cache_spec(self, dtype)
        b = TensorSpec((self.num_heads * self.state_size,), dtype)
        return replace(spec, log={**spec.log, "b": b})

    def part(self, rank: Rank) -> tuple[HeadedMamba1Config, Parts]:
        """Cut by heads."""
        own = rank.equal_run(self.num_heads, "heads")
        channels = channels_of(own, self.head_dim)
        rows, heads = Rows((channels,)), Rows((own,))
        parts: dict[str, Held] = dict.fromkeys(("conv1d", "dt_bias", "a_log", "d"), rows)
        parts |= {
            "in_proj": Rows((channels, channels_of(channels, 1, self.inner_size))),
            "x_proj": heads,
            "dt_proj": heads,
            "out_proj": Columns((channels,)),
        }
        return replace(self, inner_size=len(channels), num_heads=len(own)), parts

    def build(self) -> Mixer:
        """The module, with uninitialised parameters."""
        return HeadedMamba1(self)


class HeadedMamba1(Mixer):
    """Mamba-1's recurrence, head by head [arXiv:2405.16712]."""

    config: HeadedMamba1Config

    def __init__(self, config: HeadedMamba1Config) -> None:
        super().__init__(config)
        inner, rank, states = config.inner_size, config.dt_rank, config.state_size
        heads, dim = config.num_heads, config.head_dim
        self.in_proj = Linear(config.hidden_size, 2 * inner, bias=config.bias)
        self.conv1d = DepthwiseConv(inner, config.conv_kernel, bias=config.conv_bias)
        self.x_proj = nn.Parameter(torch.empty(heads, rank + 2 * states, dim))
        self.dt_proj = nn.Parameter(torch.empty(heads, dim, rank))
        self.dt_bias = nn.Parameter(torch.empty(inner))
        self.a_log = nn.Parameter(torch.empty(inner, states))
        self.d = nn.Parameter(torch.empty(inner))
        self.out_proj = Linear(inner, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); updates states and log, writes the checkpoints the batch asks for."""
        cfg, table = self.config, batch.table
        raw, gate = self.in_proj(x).chunk(2, -1)
        u = convolve(raw, self.conv1d.filter, cache.window("conv"), table)
        made = linear_heads(u.unflatten(-1, (cfg.num_heads, -1)), self.x_proj)
        parts = made.split((cfg.dt_rank, cfg.state_size, cfg.state_size), -1)
        dt, b, c = (dense(part) for part in parts)  # (T, H, ...)
        dt = linear_heads(dt, self.dt_proj).flatten(-2) + self.dt_bias
        rows = Mamba1Rows(dt=dt, b=b.flatten(-2), c=c.flatten(-2), gate=gate)
        cache.append(table, dt=rows.dt, b=rows.b)
        return self.out_proj(self._recur(u, rows, table, cache))

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """Run convolution and recurrence again."""
        raw, dt, b = cache.logged(table, "conv", "dt", "b")
        u = convolve(raw, self.conv1d.filter, cache.window("conv"), table)
        # the output is dropped: what it alone depends on may be anything
        self._recur(u, Mamba1Rows(dt=dt, b=b, c=b, gate=u), table, cache)

    def _recur(self, u: Tensor, rows: Mamba1Rows, table: StepTable, cache: LayerCache) -> Tensor:
        """What the output projection takes, (T, inner)."""
        cfg, state = self.config, cache.carried("ssm")
        channels, numbers = cfg.head_dim, cfg.state_size
        outputs = []
        for head, weights in enumerate(self._weights):
            own = slice(head * channels, (head + 1) * channels)
            maps = slice(head * numbers, (head + 1) * numbers)
            some = Mamba1Rows(
                dt=dense(rows.dt[:, own]),
                b=rows.b[:, maps],
                c=rows.c[:, maps],
                gate=rows.gate[:, own],
            )
            carried = Carried(state.kept[:, own], state.working[:, own])
            outputs.append(mamba1(dense(u[:, own]), some, weights, carried, table))
        return torch.cat(outputs, -1)

    @derived
    def _weights(self) -> list[Mamba1Weights]:
        """Of each head."""
        a, d = -torch.exp(self.a_log.float()), self.d.float()
        size = self.config.head_dim
        return [
            Mamba1Weights(*both, 0.0) for both in zip(a.split(size), d.split(size), strict=True)
        ]
