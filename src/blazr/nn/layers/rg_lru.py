"""The recurrent block of Griffin: a convolution and the RG-LRU beside a gate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.derived import derived
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, channels_of
from blazr.nn.operands.recurrent import RgLruRows, RgLruWeights
from blazr.nn.operands.step import StepTable
from blazr.nn.ops.convolution import convolve
from blazr.nn.ops.matmul import linear_heads
from blazr.nn.ops.pointwise import activate
from blazr.nn.ops.rg_lru import rg_lru

_STEEPNESS = 8.0  # of the decay, "c" in the paper


@dataclass(frozen=True, slots=True, kw_only=True)
class RgLruConfig(MixerConfig):
    """Sizes of a recurrent block.

    Args:
        hidden_size: C.
        num_heads: H.
        head_dim: Channels of a head; gates see those of their own head alone.
        conv_kernel: K, taps of the causal convolution.
        activation: Of the gate beside the recurrence.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    conv_kernel: int = 4
    activation: str = "gelu_tanh"

    @property
    def width(self) -> int:
        """Channels of the recurrence."""
        return self.num_heads * self.head_dim

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """State and convolution window at grid edges; a working state; inputs since the edge."""
        return CacheSpec(
            checkpoint={
                "lru": TensorSpec((self.width,), torch.float32),
                "conv": TensorSpec((self.conv_kernel - 1, self.width), dtype),
            },
            log={"conv": TensorSpec((self.width,), dtype)},
            working=("lru",),
            states=("lru",),
        )

    def part(self, rank: Rank) -> tuple[RgLruConfig, Parts]:
        """Cut by heads."""
        own = rank.equal_run(self.num_heads, "heads")
        channels = channels_of(own, self.head_dim)
        of_channels = ("gate_proj", "in_proj", "conv1d", "input_bias", "decay_bias", "a_param")
        parts: dict[str, Held] = dict.fromkeys(of_channels, Rows((channels,)))
        parts |= dict.fromkeys(("input_gate", "decay_gate"), Rows((own,)))
        return replace(self, num_heads=len(own)), parts | {"out_proj": Columns((channels,))}

    def build(self) -> RgLru:
        """The module, with uninitialised parameters."""
        return RgLru(self)


class RgLru(Mixer):
    """``out(act(gate(x)) * rg_lru(conv(in(x))))`` [arXiv:2402.19427]."""

    config: RgLruConfig

    def __init__(self, config: RgLruConfig) -> None:
        super().__init__(config)
        hidden, width, dim = config.hidden_size, config.width, config.head_dim
        self.gate_proj = Linear(hidden, width, bias=True)
        self.in_proj = Linear(hidden, width, bias=True)
        self.conv1d = DepthwiseConv(width, config.conv_kernel, silu=False)
        self.input_gate = nn.Parameter(torch.empty(config.num_heads, dim, dim))  # (H, out, in)
        self.input_bias = nn.Parameter(torch.empty(width))
        self.decay_gate = nn.Parameter(torch.empty(config.num_heads, dim, dim))
        self.decay_bias = nn.Parameter(torch.empty(width))
        self.a_param = nn.Parameter(torch.empty(width))
        self.out_proj = Linear(width, hidden, bias=True)

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); updates states and log, writes the checkpoints the batch asks for."""
        y = self._recur(self.in_proj(x), batch.table, cache)
        return self.out_proj(activate(self.gate_proj(x), self.config.activation, y))

    def rewind(self, table: StepTable, cache: LayerCache) -> None:
        """Run convolution and recurrence again."""
        (raw,) = cache.logged(table, "conv")
        self._recur(raw, table, cache)

    def _recur(self, raw: Tensor, table: StepTable, cache: LayerCache) -> Tensor:
        """What the recurrence puts out, (T, width)."""
        u = convolve(raw, self.conv1d.filter, cache.window("conv"), table)
        heads = u.unflatten(-1, (self.config.num_heads, -1))
        gates = (
            linear_heads(heads, each).flatten(-2) for each in (self.input_gate, self.decay_gate)
        )
        return rg_lru(u, RgLruRows(*gates), self._weights, cache.carried("lru"), table)

    @derived
    def _weights(self) -> RgLruWeights:
        return RgLruWeights(
            input_bias=self.input_bias.float(),
            decay_bias=self.decay_bias.float(),
            a=-_STEEPNESS * F.softplus(self.a_param.float()),
        )
