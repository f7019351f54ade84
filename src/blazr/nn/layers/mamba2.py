"""The Mamba-2 mixer: a checkpoint of the state, and a log of the tokens since."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from blazr.core.errors import ConfigError
from blazr.nn.layers.base import Mixer, NormConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.derived import derived
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, mean_square
from blazr.nn.layers.state_space import StateSpaceConfig
from blazr.nn.operands.recurrent import GatedNorm, Mamba2Memory, Mamba2Weights
from blazr.nn.ops.mamba2 import mamba2
from blazr.nn.ops.norm import scale_rms
from blazr.nn.ops.ssd import DT_LIMITS, decay_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Config(StateSpaceConfig):
    """Sizes of a Mamba-2 mixer.

    Args:
        norm_eps: Of the gated norm.
        norm: Whether the gate comes before the norm or behind it, or there is no norm.
        norm_groups: The norm is taken over each of so many groups of channels.
        in_bias: Whether the projection into the mixer has a bias.
        conv_bias: Whether the convolution has one.
        out_bias: Whether the projection out of the mixer has one.
        dt_limits: Least and most that a step size may be.
        multipliers: Applied to z, x, B, C and dt as they are projected; None for none.
        is_norm_cut: Whether ranks have equal parts of a group of the norm's channels;
            ``norm_groups`` then counts those of all ranks.
    """

    norm_eps: float = 1e-6
    norm: Literal["gate_first", "norm_first", "none"] = "gate_first"
    norm_groups: int = 1
    in_bias: bool = True
    conv_bias: bool = True
    out_bias: bool = True
    dt_limits: tuple[float, float] = DT_LIMITS
    multipliers: tuple[float, float, float, float, float] | None = None
    is_norm_cut: bool = False

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """State and convolution window at grid edges; inputs of the recurrence since then."""
        state = (self.num_heads, self.head_dim, self.state_size)
        return CacheSpec(
            checkpoint={
                "ssm": TensorSpec(state, torch.float32),
                "conv": TensorSpec((self.conv_kernel - 1, self.conv_size), dtype),
            },
            log={
                "raw": TensorSpec((self.conv_size,), dtype),
                "xb": TensorSpec((self.inner_size + self.map_size,), dtype),
                "dt": TensorSpec((self.num_heads,), torch.float32),
            },
            states=("ssm",),
        )

    def part(self, rank: Rank) -> tuple[Mamba2Config, Parts]:
        """Cut by heads; ranks share B and C where these have fewer groups."""
        own = self.runs(rank)
        is_norm_cut = self.norm != "none" and self.norm_groups % rank.count > 0
        if is_norm_cut and (self.norm == "norm_first" or rank.count % self.norm_groups):
            raise ConfigError(
                f"the norm cannot be cut in {rank.count}.",
                found=f"{self.norm_groups} groups of its channels",
                expected=f"a multiple of {rank.count}",
            )
        heads = Rows((own.heads,))
        parts: dict[str, Held] = {
            "in_proj": Rows(own.projected),
            "conv1d": Rows(own.conv),
            "dt_bias": heads,
            "a_log": heads,
            "d": heads,
            "norm": Rows((own.inner,)),
            "out_proj": Columns((own.inner,)),
        }
        part = replace(
            self,
            num_heads=len(own.heads),
            num_groups=len(own.groups),
            norm_groups=self.norm_groups // (1 if is_norm_cut else rank.count) or 1,
            is_norm_cut=is_norm_cut,
        )
        return part, parts

    def build(self) -> Mamba2:
        """The module, with uninitialised parameters."""
        return Mamba2(self)


class Mamba2(Mixer):
    """Selective state space with scalar decay per head [arXiv:2405.21060]."""

    config: Mamba2Config

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__(config)
        heads, inner = config.num_heads, config.inner_size
        projected = inner + config.conv_size + heads  # z | x B C | dt
        self.in_proj = Linear(config.hidden_size, projected, bias=config.in_bias)
        self.conv1d = DepthwiseConv(config.conv_size, config.conv_kernel, bias=config.conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.a_log = nn.Parameter(torch.empty(heads))
        self.d = nn.Parameter(torch.empty(heads))
        self.norm = None
        if config.norm != "none":
            self.norm = NormConfig(inner, config.norm_eps).build()
        self.out_proj = Linear(inner, config.hidden_size, bias=config.out_bias)

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); appends to the log, writes the checkpoints the batch asks for."""
        memory = Mamba2Memory(
            states=cache.checkpoint["ssm"],
            conv_states=cache.checkpoint["conv"],
            log_raw=cache.log["raw"],
            log_xb=cache.log["xb"],
            log_dt=cache.log["dt"],
        )
        y = mamba2(self.in_proj(x), self._weights, memory, batch.table)
        if self.config.is_norm_cut:
            assert self.norm is not None
            mean = mean_square(y.float(), self.ranks, self.config.norm_groups)
            y = scale_rms(y, mean, self.norm.weight, self.config.norm_eps)
        return self.out_proj(y)

    @derived
    def _weights(self) -> Mamba2Weights:
        cfg, like = self.config, self.conv1d.weight
        multipliers = None
        if cfg.multipliers is not None:
            # each projected channel has one, which is rounded as activations are
            sizes = (cfg.inner_size, cfg.inner_size, cfg.map_size, cfg.map_size, cfg.num_heads)
            values = torch.tensor(cfg.multipliers, dtype=like.dtype, device=like.device).float()
            multipliers = values.repeat_interleave(torch.tensor(sizes, device=like.device))
        return Mamba2Weights(
            heads=cfg.num_heads,
            head_dim=cfg.head_dim,
            state_size=cfg.state_size,
            groups=cfg.num_groups,
            conv=self.conv1d.filter,
            dt_bias=self.dt_bias.float(),
            a=decay_rates(self.a_log),
            d=self.d.float(),
            norm=GatedNorm(
                # where ranks have parts of the channels, the gate alone is applied here
                order="none" if cfg.is_norm_cut else cfg.norm,
                weight=None if self.norm is None or cfg.is_norm_cut else self.norm.weight.float(),
                eps=cfg.norm_eps,
                groups=cfg.norm_groups,
            ),
            dt_limits=cfg.dt_limits,
            multipliers=multipliers,
        )
