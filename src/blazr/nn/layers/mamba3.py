"""The Mamba-3 mixer: trapezoidal step, data-dependent rotation, optionally multi-input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

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
from blazr.nn.ops.norm import gated_rms_norm, rms_norm
from blazr.nn.ops.pointwise import activate, dense
from blazr.nn.ops.rope import rotate_pairs
from blazr.nn.ops.sequence import (
    GatedNorm,
    Mamba3Memory,
    Mamba3Rows,
    Mamba3Weights,
    Recurrences,
    StepTable,
)
from blazr.nn.ops.ssd import (
    DT_MAX,
    DT_MIN,
    decay_rates,
    ssd_output,
    ssd_state,
    state_output,
    step_sizes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba3Config(MixerConfig):
    """Sizes of a Mamba-3 mixer, as oxidizr trains it.

    Args:
        hidden_size: C.
        num_heads: H.
        head_dim: P; the inner size is H * P.
        state_size: N, even with ``complex_rope``.
        num_groups: G, how many input and output maps the heads share.
        conv_kernel: K, taps of the causal convolution.
        use_conv: Whether there is a convolution over x, B and C.
        complex_rope: Whether B and C are rotated by an angle that depends on the data.
        mimo_rank: r; 0 is single-input. Otherwise each head's input is expanded to P * r.
        norm_eps: Of the gated norm and of the norm of B and C.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int = 1
    conv_kernel: int = 4
    use_conv: bool = False
    complex_rope: bool = True
    mimo_rank: int = 0
    norm_eps: float = 1e-6

    @property
    def inner_size(self) -> int:
        """Channels of x, z and the output: H * P."""
        return self.num_heads * self.head_dim

    @property
    def map_size(self) -> int:
        """Channels of B, and of C: G * N."""
        return self.num_groups * self.state_size

    @property
    def state_dim(self) -> int:
        """Input channels of the recurrence per head: P, or P * r."""
        return self.head_dim * max(self.mimo_rank, 1)

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """State, the previous input and map, the angle, the convolution window."""
        heads = self.num_heads
        shapes = {
            "ssm": (heads, self.state_dim, self.state_size),
            "x": (heads, self.state_dim),
            "b": (heads, self.state_size),
        }
        if self.complex_rope:
            shapes["angle"] = (heads, self.state_size // 2)
        specs = {name: TensorSpec(shape, torch.float32) for name, shape in shapes.items()}
        if self.use_conv:
            window = (self.conv_kernel - 1, self.inner_size + 2 * self.map_size)
            specs["conv"] = TensorSpec(window, dtype)
        return CacheSpec(checkpoint=specs)

    def build(self) -> Mamba3:
        """The module, with uninitialised parameters."""
        return Mamba3(self)


class Mamba3(RecurrentMixer):
    """State space with a trapezoidal rule: each step adds this input and the one before.

        h[t] = e[t] h[t-1] + (1 - l[t]) dt[t] e[t] x[t-1] (outer) b[t-1]
               + l[t] dt[t] x[t] (outer) b[t]

    with ``e = exp(A dt)`` and ``l = sigmoid(lambda)``; ``y = h . c + D x``.
    """

    def __init__(self, config: Mamba3Config) -> None:
        super().__init__()
        self.config = config
        hidden, heads, inner = config.hidden_size, config.num_heads, config.inner_size
        states, rank = config.state_size, config.mimo_rank
        # z | x | B | C | dt
        self.in_proj = Linear(hidden, 2 * inner + 2 * config.map_size + heads, bias=True)
        self.lambda_proj = Linear(hidden, heads, bias=True)
        if config.use_conv:
            self.conv1d = DepthwiseConv(inner + 2 * config.map_size, config.conv_kernel)
        if config.complex_rope:
            self.theta_proj = Linear(hidden, heads * states // 2, bias=True)
        if rank:
            self.mimo_x_up = Linear(config.head_dim, config.state_dim, bias=True)
            self.mimo_x_down = Linear(config.state_dim, config.head_dim, bias=True)
        self.b_bias = nn.Parameter(torch.empty(heads, states))
        self.c_bias = nn.Parameter(torch.empty(heads, states))
        self.bc_norm = NormConfig(states, config.norm_eps).build()
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.a_log = nn.Parameter(torch.empty(heads))
        self.d = nn.Parameter(torch.empty(heads))
        self.norm = NormConfig(inner, config.norm_eps).build()
        self.out_proj = Linear(inner, hidden, bias=True)

    def state_spec(self) -> Mapping[str, TensorSpec]:
        """The tensors of the state."""
        return self.config.cache_spec(torch.float32).checkpoint

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """At most GRID tokens of B sequences, (B, T, C) to (B, T, C)."""
        cfg, after = self.config, dict(state)
        z, xbc, dt = (
            self.in_proj(x)
            .float()
            .split([cfg.inner_size, cfg.inner_size + 2 * cfg.map_size, cfg.num_heads], -1)
        )
        inputs, b, c = self._convolve(xbc, state, after)
        dt = step_sizes(dt, self.dt_bias)
        b = self._heads(b, self.b_bias)  # (B, T, H, N)
        c = self._heads(c, self.c_bias)
        if cfg.complex_rope:
            theta = self.theta_proj(x).float().unflatten(-1, (cfg.num_heads, -1))
            angle = state["angle"][:, None] + (theta * dt.unsqueeze(-1)).cumsum(1)
            b = rotate_pairs(b, angle.cos(), angle.sin())
            c = rotate_pairs(c, angle.cos(), angle.sin())
            after["angle"] = angle[:, -1]
        inputs = inputs.unflatten(-1, (cfg.num_heads, -1))  # (B, T, H, P)
        if cfg.mimo_rank:
            inputs = self.mimo_x_up(inputs).float()

        mix = self.lambda_proj(x).float().sigmoid()
        y = self._recur((inputs, b, c, dt, mix), state, after)
        y = y + inputs * self.d.float()[:, None]
        if cfg.mimo_rank:
            y = self.mimo_x_down(y).float()
        y = gated_rms_norm(y.flatten(-2), z, self.norm.weight, self.norm.eps)
        return self.out_proj(y), after

    @property
    def fits_kernels(self) -> bool:
        """Whether the kernels have room for it."""
        cfg = self.config
        has_room = cfg.state_size <= 256 and cfg.state_dim <= 1024 and cfg.inner_size <= 1 << 15
        return has_room and cfg.conv_kernel <= 8

    def step(self, x: Tensor, kernels: Recurrences, table: StepTable, cache: LayerCache) -> Tensor:
        """A whole step by kernels, (T, C) to (T, C)."""
        cfg, maps = self.config, self.config.map_size
        sizes = [cfg.inner_size, cfg.inner_size + 2 * maps, cfg.num_heads]
        z, xbc, dt = self.in_proj(x).split(sizes, -1)
        if cfg.use_conv:
            xbc = kernels.convolve(xbc, self.conv1d.filter, cache.carried("conv"), table)
        inputs, b, c = xbc.split([cfg.inner_size, maps, maps], -1)
        if cfg.mimo_rank:
            inputs = dense(inputs) if cfg.use_conv else activate(inputs, "silu")
            inputs = self.mimo_x_up(inputs.view(-1, cfg.head_dim)).view(len(x), -1)
        theta = self.theta_proj(x) if cfg.complex_rope else None
        rows = Mamba3Rows(x=inputs, b=b, c=c, dt=dt, mix=self.lambda_proj(x), theta=theta)
        memory = Mamba3Memory(
            state=cache.carried("ssm"),
            x=cache.carried("x"),
            b=cache.carried("b"),
            angle=cache.carried("angle") if cfg.complex_rope else None,
        )
        weights, norm = self._weights
        y = kernels.mamba3(rows, weights, memory, table)
        if cfg.mimo_rank:
            y = self.mimo_x_down(y.view(-1, cfg.state_dim)).view(len(x), -1)
        return self.out_proj(kernels.gated_norm(y, z, norm))

    @cached_property
    def _weights(self) -> tuple[Mamba3Weights, GatedNorm]:
        """As the kernels take them; made once, when weights are in place."""
        cfg, norm = self.config, self.norm
        weights = Mamba3Weights(
            groups=cfg.num_groups,
            norm=self.bc_norm.weight.float(),
            eps=self.bc_norm.eps,
            b_bias=self.b_bias.float(),
            c_bias=self.c_bias.float(),
            dt_bias=self.dt_bias.float(),
            a=decay_rates(self.a_log),
            d=self.d.float(),
            dt_limits=(DT_MIN, DT_MAX),
            silu=not (cfg.use_conv or cfg.mimo_rank),
        )
        return weights, GatedNorm(order="gate_first", weight=norm.weight.float(), eps=norm.eps)

    def _convolve(self, xbc: Tensor, state: State, after: State) -> tuple[Tensor, Tensor, Tensor]:
        cfg = self.config
        sizes = [cfg.inner_size, cfg.map_size, cfg.map_size]
        if not cfg.use_conv:
            x, b, c = xbc.split(sizes, -1)
            return F.silu(x), b, c
        window = torch.cat((state["conv"], xbc), 1)
        after["conv"] = window[:, 1 - cfg.conv_kernel :]
        post = F.silu(causal_conv1d(window, self.conv1d.weight, self.conv1d.bias))
        x, b, c = post.split(sizes, -1)
        return x, b, c

    def _heads(self, maps: Tensor, bias: Tensor) -> Tensor:
        cfg = self.config
        maps = maps.unflatten(-1, (cfg.num_groups, -1))
        maps = maps.repeat_interleave(cfg.num_heads // cfg.num_groups, -2)
        return rms_norm(maps, self.bc_norm.weight.float(), self.bc_norm.eps) + bias.float()

    def _recur(self, operands: tuple[Tensor, ...], state: State, after: State) -> Tensor:
        """The two terms of the trapezoid are two sums with the same decays."""
        x, b, c, dt, mix = operands
        log_decay = dt * decay_rates(self.a_log)
        x_before = torch.cat((state["x"][:, None], x[:, :-1]), 1)
        b_before = torch.cat((state["b"][:, None], b[:, :-1]), 1)
        now, before = mix * dt, (1 - mix) * dt * log_decay.exp()
        nothing = torch.zeros_like(state["ssm"])
        y = ssd_output(x, now, log_decay, b, c, state_output(c, state["ssm"]))
        y = y + ssd_output(x_before, before, log_decay, b_before, c)
        ends = ssd_state(x, now, log_decay, b, state["ssm"])
        after["ssm"] = ends + ssd_state(x_before, before, log_decay, b_before, nothing)
        after["x"], after["b"] = x[:, -1], b[:, -1]
        return y
