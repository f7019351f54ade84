"""Feed-forwards without experts."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu

from blazr.bench.reference.norms import rms_norm, silu
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.weights import Weights, linear

# What xIELU has learned, in the order that it takes them.
XIELU = ("alpha_p", "alpha_n", "beta", "eps")


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


def xielu(x: Tensor, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Tensor:
    """Apertus's [arXiv:2411.13010]."""
    positive, negative = (math.log1p(math.exp(alpha)) for alpha in (alpha_p, alpha_n))
    above = positive * x.square()
    below = (beta + negative) * (torch.expm1(x.clamp(max=eps)) - x)
    return torch.where(x > 0, above, below) + beta * x


def mlp(
    x: Tensor,
    w: Weights,
    activation: str = "silu",
    *,
    gate_scale: float = 1,
    scale: float = 1,
    eps: float = 1e-6,
) -> Tensor:
    """``down(act(gate(x)) up(x))``, or ``down(act(up(x)))`` where there is no gate: (T, C)."""
    if "gate_up_proj.weight" in w:
        gate, up = linear(x, w, "gate_up_proj").chunk(2, -1)
    elif "gate_proj.weight" in w:
        gate, up = linear(x, w, "gate_proj"), linear(x, w, "up_proj")
    elif "act_fn.alpha_p" in w:
        learned = (w[f"act_fn.{name}"].item() for name in XIELU)
        return linear(xielu(linear(x, w, "up_proj"), *learned), w, "down_proj")
    else:
        gate, up = linear(x, w, "up_proj"), torch.ones((), dtype=x.dtype)
    inner = activate(gate * gate_scale, activation) * up
    if "ffn_sub_norm.weight" in w:  # BitNet's
        inner = rms_norm(inner, w["ffn_sub_norm.weight"], eps)
    return linear(inner, w, "down_proj") * scale
