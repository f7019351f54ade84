"""Products with weight matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.operands.lora import UNCHANGED, HeadLoras, LoraDelta, LoraDeltas
from blazr.nn.ops.lora import change_product, lora_expand, lora_shrink
from blazr.nn.ops.op import op


@op
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, lora: LoraDelta | None = None
) -> Tensor:
    """``x weight.T + bias``, summed in float32.

    Args:
        x: (..., in).
        weight: (out, in), in the dtype of x.
        bias: (out,), in the dtype of x.
        lora: What adapters change; None for nothing.

    Returns:
        (..., out), in the dtype of x.
    """
    return change_product(F.linear(x, weight, bias), lora, bias)


@op
def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weight.T + bias`` in float32: for decisions that rounding must not turn.

    Args:
        x: (..., in).
        weight: (out, in), in the dtype of x.
        bias: (out,), in the dtype of x.

    Returns:
        (..., out), float32.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))


@op
def gated_linear(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    loras: LoraDeltas = UNCHANGED,
) -> Tensor:
    """``silu(x gate.T) * (x up.T)``: the inner half of a gated MLP, reading x once.

    Args:
        x: (..., in).
        gate: (out, in), in the dtype of x.
        up: (out, in), in the dtype of x.
        loras: What adapters change in both products.

    Returns:
        (..., out), in the dtype of x.

    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU).
    """
    gates, ups = (
        linear.reference(x, weight, None, lora)
        for weight, lora in zip((gate, up), loras, strict=True)
    )
    return F.silu(gates) * ups


@op
def linear_heads(
    x: Tensor, weight: Tensor, out: Tensor | None = None, loras: HeadLoras | None = None
) -> Tensor:
    """``x[:, h] weight[h].T``: each head by a matrix of its own.

    Args:
        x: (T, H, in).
        weight: (H, out, in), in the dtype of x.
        out: (T, H, out), where the result goes, perhaps a part of a wider tensor; None for
            anywhere.
        loras: What adapters change; None for nothing.

    Returns:
        (T, H, out), in the dtype of x.
    """
    found = torch.einsum("thk,hok->tho", x, weight)
    if loras is not None:
        for head, table in loras.tables.items():
            inner = lora_shrink.reference(x[:, head], table, loras.slots)
            lora_expand.reference(found[:, head], LoraDelta(table, loras.slots, inner))
    return found if out is None else out.copy_(found)
