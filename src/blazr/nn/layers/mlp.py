"""The MLP, gated or plain."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blazr.nn.layers.base import FeedForward, FeedForwardConfig
from blazr.nn.layers.linear import Linear
from blazr.nn.ops.activation import ACTIVATIONS
from blazr.nn.ops.matmul import gated_linear
from blazr.nn.quant.weight import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig(FeedForwardConfig):
    """Sizes of an MLP.

    Args:
        hidden_size: C.
        intermediate_size: I.
        activation: A name of ACTIVATIONS.
        gated: Whether the activation of a second projection is multiplied in.
        bias: Whether the projections have biases.
        fused_gate_up: Whether both upward projections are stored as one matrix (Phi-3).
    """

    hidden_size: int
    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    fused_gate_up: bool = False

    def build(self) -> Mlp:
        """The module, with uninitialised parameters."""
        return Mlp(self)


class Mlp(FeedForward):
    """``down(act(gate(x)) * up(x))`` [arXiv:2002.05202], or ``down(act(up(x)))``."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.bias
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        if config.fused_gate_up:
            self.gate_up_proj = Linear(hidden, 2 * inner, bias=bias)
        else:
            if config.gated:
                self.gate_proj = Linear(hidden, inner, bias=bias)
            self.up_proj = Linear(hidden, inner, bias=bias)
        self.down_proj = Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) to (..., C)."""
        if self.config.fused_gate_up:
            gate, up = self.gate_up_proj(x).chunk(2, -1)
            return self.down_proj(self.activation(gate) * up)
        if not self.config.gated:
            return self.down_proj(self.activation(self.up_proj(x)))
        gate, up = self.gate_proj.weight, self.up_proj.weight
        is_plain = self.config.activation == "silu" and not self.config.bias
        if is_plain and not (isinstance(gate, Weight) or isinstance(up, Weight)):
            return self.down_proj(gated_linear(x.to(gate.dtype), gate, up))
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
