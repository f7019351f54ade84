"""The MLP, gated or plain."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from blazr.nn.layers.base import FeedForward, FeedForwardConfig
from blazr.nn.layers.linear import Linear, multiply_gated
from blazr.nn.layers.ranks import Columns, Held, Parts, Rank, Rows, whole_blocks
from blazr.nn.ops.pointwise import activate, scaled


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

    def part(self, rank: Rank) -> tuple[MlpConfig, Parts]:
        """Cut by inner channels."""
        size = self.intermediate_size
        own = rank.run(size, "inner channels", unit=whole_blocks(size, rank.count))
        rows, columns = Rows((own,)), Columns((own,))
        parts: dict[str, Held] = {"gate_proj": rows, "up_proj": rows, "down_proj": columns}
        return replace(self, intermediate_size=len(own)), parts

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
        config, kind = self.config, self.config.activation
        is_plain = kind == "silu" and not config.bias and config.gate_multiplier == 1
        if not config.gated:
            inner = activate(self.up_proj(x), kind)
        # a shared block puts matrices with adapters in their place
        elif is_plain and isinstance(self.gate_proj, Linear) and isinstance(self.up_proj, Linear):
            inner = multiply_gated(x, self.gate_proj, self.up_proj)
        else:
            gate = scaled(self.gate_proj(x), config.gate_multiplier)
            inner = activate(gate, kind, self.up_proj(x))
        return scaled(self.down_proj(inner), config.down_multiplier)
