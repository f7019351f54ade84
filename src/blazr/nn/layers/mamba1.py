"""The Mamba-1 mixer, in oxidizr's form and in mamba_ssm's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.base import MixerConfig
from blazr.nn.layers.batch import LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.recurrent import RecurrentMixer, State
from blazr.nn.ops.conv1d import causal_conv1d
from blazr.nn.ops.norm import rms_norm
from blazr.nn.ops.pointwise import dense
from blazr.nn.ops.sequence import Mamba1Rows, Mamba1Weights, Recurrences, StepTable
from blazr.nn.ops.ssd import selective_scan

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
        """State and convolution window at grid edges, and a working copy of both."""
        window = (self.conv_kernel - 1, self.inner_size)
        return CacheSpec(
            checkpoint={
                "ssm": TensorSpec((self.inner_size, self.state_size), torch.float32),
                "conv": TensorSpec(window, dtype),
            }
        )

    def build(self) -> Mamba1:
        """The module, with uninitialised parameters."""
        return Mamba1(self)


class Mamba1(RecurrentMixer):
    """Selective state space with a decay per channel and state [arXiv:2312.00752]."""

    def __init__(self, config: Mamba1Config) -> None:
        super().__init__()
        self.config = config
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

    def state_spec(self) -> Mapping[str, TensorSpec]:
        """State and convolution window."""
        return self.config.cache_spec(torch.float32).checkpoint

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """At most GRID tokens of B sequences, (B, T, C) to (B, T, C)."""
        cfg = self.config
        u, gate = self.in_proj(x).chunk(2, -1)
        window = torch.cat((state["conv"], u.float()), 1)
        u = F.silu(causal_conv1d(window, self.conv1d.weight, self.conv1d.bias))
        parts = self.x_proj(u).split(tuple(self.sizes.values()), -1)
        dt, b, c = (self._normed(*each) for each in zip(self.sizes, parts, strict=True))
        dt = F.softplus(self.dt_proj(dt).float())
        a, clamp = self._rates()
        y, ssm = selective_scan(u, dt, a, b.float(), c.float(), state["ssm"], clamp=clamp)
        y = (y + self.d.float() * u) * F.silu(gate.float())
        return self.out_proj(y), {"ssm": ssm, "conv": window[:, 1 - cfg.conv_kernel :]}

    @property
    def fits_kernels(self) -> bool:
        """Whether the kernels have room for it."""
        return self.config.state_size <= 256 and self.config.conv_kernel <= 8

    def step(self, x: Tensor, kernels: Recurrences, table: StepTable, cache: LayerCache) -> Tensor:
        """A whole step by kernels, (T, C) to (T, C)."""
        raw, gate = self.in_proj(x).chunk(2, -1)
        u = kernels.convolve(raw, self.conv1d.filter, cache.carried("conv"), table)
        parts = self.x_proj(u).split(tuple(self.sizes.values()), -1)
        dt, b, c = (self._normed(*each) for each in zip(self.sizes, parts, strict=True))
        rows = Mamba1Rows(u=u, dt=self.dt_proj(dense(dt)), b=b, c=c, gate=gate)
        return self.out_proj(kernels.mamba1(rows, self._weights, cache.carried("ssm"), table))

    @cached_property
    def _weights(self) -> Mamba1Weights:
        """As the kernel takes them; made once, when weights are in place."""
        a, clamp = self._rates()
        return Mamba1Weights(a.contiguous(), self.d.float(), clamp or 0.0)

    def _rates(self) -> tuple[Tensor, float | None]:
        """Decay rates, and the state's limit."""
        a_log = self.a_log.float()
        if self.config.variant == "oxidizr":
            return torch.exp(-a_log), OXIDIZR_STATE_LIMIT
        return -torch.exp(a_log), None

    def _normed(self, name: str, x: Tensor) -> Tensor:
        cfg = self.config
        if cfg.inner_norms == "weighted":
            normed: Tensor = getattr(self, f"{name}_norm")(x)
            return normed
        if cfg.inner_norms == "plain":
            return rms_norm(x, _ones(self.sizes[name], x.device, x.dtype), cfg.norm_eps)
        return x


@lru_cache(maxsize=16)
def _ones(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A norm's weight, where it has none."""
    return torch.ones(size, device=device, dtype=dtype)
