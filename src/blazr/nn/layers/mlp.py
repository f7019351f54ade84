"""The MLP, gated or plain."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from blazr.core.errors import ConfigError
from blazr.nn.layers.base import FeedForward, FeedForwardConfig, NormConfig
from blazr.nn.layers.linear import Linear, multiply_gated
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, whole_blocks
from blazr.nn.ops.activation import xielu
from blazr.nn.ops.pointwise import activate, scaled
from blazr.nn.ops.replay import recordable

XIELU = "xielu"  # has learned scalars, and so is no row of ACTIVATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig(FeedForwardConfig):
    """Sizes of an MLP.

    Args:
        hidden_size: C.
        intermediate_size: I.
        activation: A name of ACTIVATIONS, or XIELU where the MLP has no gate.
        gated: Whether the activation of a second projection is multiplied in.
        bias: Whether the projections have biases.
        gate_multiplier: Applied before the activation (Falcon-H1).
        down_multiplier: Applied to the output.
        sparsity: The share of a token's gates that is to be cut off before the activation, as if
            they were normally distributed (Gemma 3n).
        norm_eps: Of an RMSNorm of the inner channels (BitNet); None for no norm.
    """

    hidden_size: int
    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0
    down_multiplier: float = 1.0
    sparsity: float = 0.0
    norm_eps: float | None = None

    @property
    def quantile(self) -> float:
        """How many standard deviations above the mean gates are cut off, rounded to float32."""
        return (torch.erfinv(2 * torch.tensor(self.sparsity) - 1) * math.sqrt(2)).item()

    def part(self, rank: Rank) -> tuple[MlpConfig, Parts]:
        """Cut by inner channels."""
        size = self.intermediate_size
        if self.sparsity and rank.count > 1:
            raise ConfigError(
                "inner channels that are compared with each other are not cut.",
                found=f"activations of which {self.sparsity:.0%} are cut off",
                expected="a model with dense activations",
            )
        own = rank.run(size, "inner channels", unit=whole_blocks(size, rank.count))
        rows, columns = Rows((own,)), Columns((own,))
        parts: dict[str, Held] = {"gate_proj": rows, "up_proj": rows, "down_proj": columns}
        parts["inner_norm"] = rows
        return replace(self, intermediate_size=len(own)), parts

    def build(self) -> Mlp:
        """The module, with uninitialised parameters."""
        return Mlp(self)


class Xielu(nn.Module):
    """An activation with scalars of its own (Apertus)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.empty(1))
        self.alpha_n = nn.Parameter(torch.empty(1))
        self.beta = nn.Parameter(torch.empty(()))
        self.eps = nn.Parameter(torch.empty(()))

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., I)."""
        return xielu(x, self.alpha_p, self.alpha_n, self.beta, self.eps)


class Mlp(FeedForward):
    """``down(act(gate(x)) * up(x))`` [arXiv:2002.05202], or ``down(act(up(x)))``."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.bias
        self.config = config
        if config.gated:
            self.gate_proj = Linear(hidden, inner, bias=bias)
        self.up_proj = Linear(hidden, inner, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)
        eps = config.norm_eps
        norm = None if eps is None else NormConfig(inner, eps, is_cut=True)
        self.inner_norm = None if norm is None else norm.build()
        self.xielu = Xielu() if config.activation == XIELU else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        config, kind = self.config, self.config.activation
        is_plain = kind == "silu" and not config.bias and config.gate_multiplier == 1
        is_plain = is_plain and not config.sparsity
        if self.xielu is not None:
            up = self.up_proj(x)
            inner = recordable(self.xielu, up, like=up)
        elif not config.gated:
            inner = activate(self.up_proj(x), kind)
        # a shared block puts matrices with adapters in their place
        elif is_plain and isinstance(self.gate_proj, Linear) and isinstance(self.up_proj, Linear):
            inner = multiply_gated(x, self.gate_proj, self.up_proj)
        else:
            gate = scaled(self.gate_proj(x), config.gate_multiplier)
            if config.sparsity:
                gate = recordable(self._cut_off, gate, like=gate)
            inner = activate(gate, kind, self.up_proj(x))
        if self.inner_norm is not None:
            inner = self.inner_norm(inner)
        return scaled(self.down_proj(inner), config.down_multiplier)

    def _cut_off(self, gate: Tensor) -> Tensor:
        deviation, mean = torch.std_mean(gate, -1, keepdim=True, correction=0)
        return (gate - (mean + deviation * self.config.quantile)).relu()
