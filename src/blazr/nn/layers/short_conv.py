"""The short convolution: two gates around a causal convolution of a few taps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blazr.nn.layers.base import MixerConfig
from blazr.nn.layers.batch import LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.recurrent import RecurrentMixer, State
from blazr.nn.ops.conv1d import causal_conv1d
from blazr.nn.ops.sequence import Recurrences, StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig(MixerConfig):
    """Sizes of a short convolution.

    Args:
        hidden_size: C.
        conv_kernel: K, taps of the convolution.
        bias: Whether projections and convolution have biases.
    """

    hidden_size: int
    conv_kernel: int = 3
    bias: bool = False

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """The gated inputs of the last K - 1 tokens."""
        window = (self.conv_kernel - 1, self.hidden_size)
        return CacheSpec(checkpoint={"conv": TensorSpec(window, dtype)})

    def build(self) -> ShortConv:
        """The module, with uninitialised parameters."""
        return ShortConv(self)


class ShortConv(RecurrentMixer):
    """``out(c * conv(b * x))``, with b, c and x from one projection [arXiv:2511.23404]."""

    def __init__(self, config: ShortConvConfig) -> None:
        super().__init__()
        self.config = config
        hidden, bias = config.hidden_size, config.bias
        self.in_proj = Linear(hidden, 3 * hidden, bias=bias)  # b | c | x
        self.conv1d = DepthwiseConv(hidden, config.conv_kernel, bias=bias)
        self.out_proj = Linear(hidden, hidden, bias=bias)

    def state_spec(self) -> Mapping[str, TensorSpec]:
        """The window of the convolution."""
        return self.config.cache_spec(self.in_proj.weight.dtype).checkpoint

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """At most GRID tokens of B sequences, (B, T, C) to (B, T, C)."""
        b, c, inputs = self.in_proj(x).chunk(3, -1)
        window = torch.cat((state["conv"], b * inputs), 1)
        y = causal_conv1d(window, self.conv1d.weight, self.conv1d.bias).to(x.dtype)
        return self.out_proj(c * y), {"conv": window[:, window.shape[1] - self._before :]}

    @property
    def fits_kernels(self) -> bool:
        """Whether the kernels have room for it."""
        return self.config.conv_kernel <= 8

    def step(self, x: Tensor, kernels: Recurrences, table: StepTable, cache: LayerCache) -> Tensor:
        """A whole step by kernels, (T, C) to (T, C)."""
        b, c, inputs = self.in_proj(x).chunk(3, -1)
        window = cache.carried("conv")
        return self.out_proj(kernels.convolve(inputs, self.conv1d.filter, window, table, (b, c)))

    @property
    def _before(self) -> int:
        return self.config.conv_kernel - 1
