"""The Mamba-3 mixer: trapezoidal step, data-dependent rotation, optionally multi-input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.derived import derived
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, channels_of, mean_square
from blazr.nn.layers.state_space import StateSpaceConfig
from blazr.nn.operands.recurrent import GatedNorm, Mamba3Memory, Mamba3Rows, Mamba3Weights
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.convolution import convolve
from blazr.nn.ops.mamba3 import mamba3
from blazr.nn.ops.norm import gated_norm, scale_rms
from blazr.nn.ops.pointwise import activate, dense
from blazr.nn.ops.ssd import DT_LIMITS, decay_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba3Config(StateSpaceConfig):
    """Sizes of a Mamba-3 mixer, as oxidizr trains it; N is even with ``complex_rope``.

    Args:
        use_conv: Whether there is a convolution over x, B and C.
        complex_rope: Whether B and C are rotated by an angle that depends on the data.
        mimo_rank: r; 0 is single-input. Otherwise each head's input is expanded to P * r.
        norm_eps: Of the gated norm and of the norm of B and C.
        is_norm_cut: Whether ranks have equal parts of the gated norm's channels.
    """

    use_conv: bool = False
    complex_rope: bool = True
    mimo_rank: int = 0
    norm_eps: float = 1e-6
    is_norm_cut: bool = False

    @property
    def state_dim(self) -> int:
        """Input channels of the recurrence per head: P, or P * r."""
        return self.head_dim * max(self.mimo_rank, 1)

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """State, last input and map, and angle at grid edges; a working copy; inputs since."""
        heads = self.num_heads
        shapes = {
            "ssm": (heads, self.state_dim, self.state_size),
            "x": (heads, self.state_dim),
            "b": (heads, self.state_size),
        }
        if self.complex_rope:
            shapes["angle"] = (heads, self.state_size // 2)
        specs = {name: TensorSpec(shape, torch.float32) for name, shape in shapes.items()}
        sizes = {
            "x": heads * self.state_dim,
            "b": self.map_size,
            "dt": heads,
            "mix": heads,
        }
        if self.complex_rope:
            sizes["theta"] = heads * self.state_size // 2
        log = {name: TensorSpec((size,), dtype) for name, size in sizes.items()}
        if self.use_conv:
            specs["conv"] = TensorSpec((self.conv_kernel - 1, self.conv_size), dtype)
            log["conv"] = TensorSpec((self.conv_size,), dtype)
        # angles grow, and x and b are small: they stay as they are
        return CacheSpec(checkpoint=specs, log=log, working=tuple(shapes), states=("ssm",))

    def part(self, rank: Rank) -> tuple[Mamba3Config, Parts]:
        """Cut by heads; ranks share B and C where these have fewer groups."""
        own = self.runs(rank)
        names = ("lambda_proj", "b_bias", "c_bias", "dt_bias", "a_log", "d")
        parts: dict[str, Held] = dict.fromkeys(names, Rows((own.heads,)))
        parts |= {
            "in_proj": Rows(own.projected),
            "conv1d": Rows(own.conv),
            "theta_proj": Rows((channels_of(own.heads, self.state_size // 2),)),
            "norm": Rows((own.inner,)),
            "out_proj": Columns((own.inner,)),
        }
        return replace(
            self, num_heads=len(own.heads), num_groups=len(own.groups), is_norm_cut=True
        ), parts

    def build(self) -> Mamba3:
        """The module, with uninitialised parameters."""
        return Mamba3(self)


class Mamba3(Mixer):
    """State space with a trapezoidal rule; see :func:`~blazr.nn.ops.mamba3.mamba3`."""

    config: Mamba3Config

    def __init__(self, config: Mamba3Config) -> None:
        super().__init__(config)
        hidden, heads, inner = config.hidden_size, config.num_heads, config.inner_size
        states, rank = config.state_size, config.mimo_rank
        # z | x | B | C | dt
        self.in_proj = Linear(hidden, inner + config.conv_size + heads, bias=True)
        self.lambda_proj = Linear(hidden, heads, bias=True)
        if config.use_conv:
            self.conv1d = DepthwiseConv(config.conv_size, config.conv_kernel)
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

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); updates states and log, writes the checkpoints the batch asks for."""
        cfg, maps = self.config, self.config.map_size
        sizes = [cfg.inner_size, cfg.conv_size, cfg.num_heads]
        z, xbc, dt = self.in_proj(x).split(sizes, -1)
        if cfg.use_conv:
            xbc = convolve(xbc, self.conv1d.filter, cache.window("conv"), batch.table)
        inputs, b, c = xbc.split([cfg.inner_size, maps, maps], -1)
        if cfg.mimo_rank:
            inputs = dense(inputs) if cfg.use_conv else activate(inputs, "silu")
            inputs = self.mimo_x_up(inputs.view(-1, cfg.head_dim)).view(len(x), -1)
        theta = self.theta_proj(x) if cfg.complex_rope else None
        rows = Mamba3Rows(b=b, c=c, dt=dt, mix=self.lambda_proj(x), theta=theta)
        cache.append(batch.table, x=inputs, b=b, dt=dt, mix=rows.mix)
        if theta is not None:
            cache.append(batch.table, theta=theta)
        y = mamba3(inputs, rows, self._weights, self._memory(cache), batch.table)
        if cfg.mimo_rank:
            y = self.mimo_x_down(y.view(-1, cfg.state_dim)).view(len(x), -1)
        y = gated_norm(y, z, self._gated_norm)
        if cfg.is_norm_cut:
            mean = mean_square(y.float(), self.ranks)
            y = scale_rms(y, mean, self.norm.weight, self.norm.eps)
        return self.out_proj(y)

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """Run the recurrence again; the convolution finds its inputs in the log."""
        x, b, dt, mix = cache.logged(table, "x", "b", "dt", "mix")
        theta = cache.logged(table, "theta")[0] if self.config.complex_rope else None
        # the output is dropped: c may be anything
        rows = Mamba3Rows(b=b, c=b, dt=dt, mix=mix, theta=theta)
        mamba3(x, rows, self._weights, self._memory(cache), table)

    def _memory(self, cache: LayerCache) -> Mamba3Memory:
        return Mamba3Memory(
            state=cache.carried("ssm"),
            x=cache.carried("x"),
            b=cache.carried("b"),
            angle=cache.carried("angle") if self.config.complex_rope else None,
        )

    @derived
    def _weights(self) -> Mamba3Weights:
        return Mamba3Weights(
            groups=self.config.num_groups,
            norm=self.bc_norm.weight.float(),
            eps=self.bc_norm.eps,
            b_bias=self.b_bias.float(),
            c_bias=self.c_bias.float(),
            dt_bias=self.dt_bias.float(),
            a=decay_rates(self.a_log),
            d=self.d.float(),
            dt_limits=DT_LIMITS,
            silu=not (self.config.use_conv or self.config.mimo_rank),
        )

    @derived
    def _gated_norm(self) -> GatedNorm:
        if self.config.is_norm_cut:  # the gate alone
            return GatedNorm("none", None, self.norm.eps)
        return GatedNorm("gate_first", self.norm.weight.float(), self.norm.eps)
