"""Products with weight matrices."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.ops.op import op


@op()
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weight.T + bias``, summed in float32.

    Args:
        x: (..., in).
        weight: (out, in), in the dtype of x.
        bias: (out,), in the dtype of x.

    Returns:
        (..., out), in the dtype of x.
    """
    return F.linear(x, weight, bias)


@op()
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


@op()
def gated_linear(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """``silu(x gate.T) * (x up.T)``: the inner half of a gated MLP, reading x once.

    Args:
        x: (..., in).
        gate: (out, in), in the dtype of x.
        up: (out, in), in the dtype of x.

    Returns:
        (..., out), in the dtype of x.

    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU).
    """
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


@op()
def linear_heads(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """``x[:, h] weight[h].T``: each head by a matrix of its own.

    Args:
        x: (T, H, in).
        weight: (H, out, in), in the dtype of x.
        out: (T, H, out), where the result goes, perhaps a part of a wider tensor; None for
            anywhere.

    Returns:
        (T, H, out), in the dtype of x.
    """
    found = torch.einsum("thk,hok->tho", x, weight)
    return found if out is None else out.copy_(found)


# (rows, in, out): whole tiles, tails of each kind, a single row, nothing at all.
_SIZES = (
    (1, 64, 32),
    (5, 96, 16),
    (3, 33, 7),
    (2, 31, 1),
    (7, 1, 5),
    (25, 40, 66),
    (130, 100, 21),
    (140, 40, 300),  # many columns for a last part of few rows
    (0, 8, 4),
    (2, 0, 3),
    (1, 300, 259),
)


@gated_linear.sample
def _matrices(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for rows, inner, outer in _SIZES:
        scale = max(1, inner) ** -0.5
        sizes = ((rows, inner), (outer, inner), (outer, inner))
        x, first, second = (torch.randn(size) for size in sizes)
        yield x.to(dtype), (first * scale).to(dtype), (second * scale).to(dtype)


@linear.sample
@wide_linear.sample
def _linear_samples(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for x, weight, _ in _matrices(dtype):
        yield x, weight
        yield x, weight, torch.randn(len(weight)).to(dtype)
    yield torch.randn(2, 3, 16).to(dtype), torch.randn(8, 16).to(dtype)
    yield torch.randn(16).to(dtype), torch.randn(8, 16).to(dtype)
    yield torch.randn(6, 4).T.to(dtype), torch.randn(9, 20).to(dtype)[:, 3:9]  # neither is dense
    yield torch.randn(4, 6).to(dtype), torch.randn(6, 9).to(dtype).T


@linear_heads.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    sizes = ((1, 16, 64, 512), (5, 3, 40, 33), (33, 2, 7, 130), (2, 1, 1, 5), (100, 2, 32, 18))
    for rows, heads, inner, outer in (*sizes, (0, 2, 8, 4)):
        weight = (torch.randn(heads, outer, inner) * inner**-0.5).to(dtype)
        yield torch.randn(rows, heads, inner).to(dtype), weight
    wide = torch.randn(4, 3, 20).to(dtype), torch.randn(3, 10, 9).to(dtype)
    yield wide[0][..., 5:12], wide[1][:, 2:, 1:8]
    yield wide[0][..., :10], wide[1].transpose(1, 2)
