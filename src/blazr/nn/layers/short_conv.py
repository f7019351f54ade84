"""The short convolution: two gates around a causal convolution of a few taps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blazr.nn.layers.base import Mixer, MixerConfig
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.cache_spec import CacheSpec, TensorSpec
from blazr.nn.layers.linear import DepthwiseConv, Linear
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, channels_of
from blazr.nn.ops.convolution import convolve


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig(MixerConfig):
    """Sizes of a short convolution.

    Args:
        hidden_size: C.
        conv_kernel: K, taps of the convolution.
        bias: Whether projections and convolution have biases.
        num_channels: Of the convolution; None for C.
    """

    hidden_size: int
    conv_kernel: int = 3
    bias: bool = False
    num_channels: int | None = None

    @property
    def inner_size(self) -> int:
        """Channels of the convolution."""
        return self.hidden_size if self.num_channels is None else self.num_channels

    def cache_spec(self, dtype: torch.dtype) -> CacheSpec:
        """The gated inputs of the last K - 1 tokens before a grid edge, and of those since."""
        window = (self.conv_kernel - 1, self.inner_size)
        return CacheSpec(
            checkpoint={"conv": TensorSpec(window, dtype)},
            log={"conv": TensorSpec((self.inner_size,), dtype)},
        )

    def part(self, rank: Rank) -> tuple[ShortConvConfig, Parts]:
        """Cut by channels."""
        size = self.inner_size
        own = rank.equal_run(size, "channels")
        parts: dict[str, Held] = {
            "in_proj": Rows(tuple(channels_of(own, 1, offset) for offset in (0, size, 2 * size))),
            "conv1d": Rows((own,)),
            "out_proj": Columns((own,)),
        }
        return replace(self, num_channels=len(own)), parts

    def build(self) -> ShortConv:
        """The module, with uninitialised parameters."""
        return ShortConv(self)


class ShortConv(Mixer):
    """``out(c * conv(b * x))``, with b, c and x from one projection [arXiv:2511.23404]."""

    config: ShortConvConfig

    def __init__(self, config: ShortConvConfig) -> None:
        super().__init__(config)
        hidden, inner, bias = config.hidden_size, config.inner_size, config.bias
        self.in_proj = Linear(hidden, 3 * inner, bias=bias)  # b | c | x
        self.conv1d = DepthwiseConv(inner, config.conv_kernel, bias=bias)
        self.out_proj = Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor, batch: ForwardBatch, cache: LayerCache) -> Tensor:
        """(T, C) to (T, C); appends to the log, writes the checkpoints the batch asks for."""
        b, c, inputs = self.in_proj(x).chunk(3, -1)
        window = cache.window("conv")
        return self.out_proj(convolve(inputs, self.conv1d.filter, window, batch.table, (b, c)))
