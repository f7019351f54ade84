"""Feed-forwards without experts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu, softplus

from blazr.bench.reference.norms import silu
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.weights import Weights, linear


def activate(x: Tensor, name: str) -> Tensor:
    """An activation by the name that configs have for it."""
    match name:
        case "silu" | "swish":
            return silu(x)
        case "gelu":
            return gelu(x)
        case "gelu_tanh" | "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast":
            return gelu(x, approximate="tanh")
        case "relu":
            return x.clamp(min=0)
        case "relu2":
            return x.clamp(min=0).square()
        case _:
            raise NoReferenceError(f"the activation {name!r}")


def _xielu(x: Tensor, w: Weights) -> Tensor:
    """Apertus's [arXiv:2411.13010]."""
    beta, eps = w["beta"], w["eps"]
    above = softplus(w["alpha_p"]) * x.square()
    below = (beta + softplus(w["alpha_n"])) * (torch.expm1(x.clamp(max=eps.item())) - x)
    return torch.where(x > 0, above, below) + beta * x


def mlp(
    x: Tensor, w: Weights, activation: str = "silu", *, gate_scale: float = 1, scale: float = 1
) -> Tensor:
    """``down(act(gate(x)) up(x))``, or ``down(act(up(x)))`` where there is no gate: (T, C)."""
    if "gate_up_proj.weight" in w:
        gate, up = linear(x, w, "gate_up_proj").chunk(2, -1)
    elif "gate_proj.weight" in w:
        gate, up = linear(x, w, "gate_proj"), linear(x, w, "up_proj")
    elif "act_fn.alpha_p" in w:
        return linear(_xielu(linear(x, w, "up_proj"), w.under("act_fn.")), w, "down_proj")
    else:
        gate, up = linear(x, w, "up_proj"), torch.ones((), dtype=x.dtype)
    return linear(activate(gate * gate_scale, activation) * up, w, "down_proj") * scale
