"""The MLP, gated or plain."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blazr.nn.layers.base import FeedForward, FeedForwardConfig
from blazr.nn.layers.linear import Linear, multiply_gated
from blazr.nn.ops.pointwise import activate, scale


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig(FeedForwardConfig):
    """Sizes of an MLP.

    Args:
        hidden_size: C.
        intermediate_size: I.
        activation: A name of ACTIVATIONS.
        gated: Whether the activation of a second projection is multiplied in.
        bias: Whether the projections have biases.
        gate_multiplier: Applied before the activation (Falcon-H1).
        down_multiplier: Applied to the output.
    """

    hidden_size: int
    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0
    down_multiplier: float = 1.0

    def build(self) -> Mlp:
        """The module, with uninitialised parameters."""
        return Mlp(self)


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

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        y = self.down_proj(self._inner(x))
        factor = self.config.down_multiplier
        return y if factor == 1 else scale(y, factor)

    def _inner(self, x: Tensor) -> Tensor:
        """What the down projection is given: (..., C) to (..., I)."""
        kind = self.config.activation
        factor = self.config.gate_multiplier
        if not self.config.gated:
            return activate(self.up_proj(x), kind)
        gate, up = self.gate_proj, self.up_proj
        is_plain = kind == "silu" and not self.config.bias and factor == 1
        # a shared block puts matrices with adapters in their place
        if is_plain and isinstance(gate, Linear) and isinstance(up, Linear):
            return multiply_gated(x, gate.weight, up.weight)
        inner = gate(x)
        inner = inner if factor == 1 else scale(inner, factor)
        return activate(inner, kind, up(x))
