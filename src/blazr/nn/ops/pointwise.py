"""What is done to each number alone, and rows of an embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.ops.activation import ACTIVATIONS
from blazr.nn.ops.op import op


@op
def add(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """``a + b * scale``.

    Args:
        a: (..., C).
        b: (..., C), in the dtype of a; of no use to the caller from here on, as a recorded step
            may never have it apart from the sum.
        scale: 1 leaves b.

    Returns:
        (..., C), in the dtype of a.
    """
    return a + (b if scale == 1 else b * scale)


@op
def scale(a: Tensor, factor: float) -> Tensor:
    """``a * factor``, (..., C), in the dtype of a."""
    return a * factor


def scaled(a: Tensor, factor: float) -> Tensor:
    """`scale`, or ``a`` itself where the factor is 1."""
    return a if factor == 1 else scale(a, factor)


@op
def widen(a: Tensor, divisor: float = 1.0, cap: float | None = None) -> Tensor:
    """Scores of a vocabulary as they are drawn from.

    Args:
        a: (..., V).
        divisor: They are divided by it.
        cap: Scores z then become ``cap * tanh(z / cap)`` [arXiv:2408.00118]; None leaves them.

    Returns:
        (..., V), float32.
    """
    wide = a.float() if divisor == 1 else a.float() / divisor
    return wide if cap is None else torch.tanh(wide / cap) * cap


@op
def activate(a: Tensor, kind: str, b: Tensor | None = None) -> Tensor:
    """``act(a)``, or ``act(a) * b``.

    Args:
        a: (..., I).
        kind: A name of ACTIVATIONS.
        b: (..., I), in the dtype of a, or None.

    Returns:
        (..., I), in the dtype of a.
    """
    y = ACTIVATIONS[kind](a)
    return y if b is None else y * b


@op
def sigmoid_gate(a: Tensor, gate: Tensor) -> Tensor:
    """``a * sigmoid(gate)``, (..., C), in the dtype of a; the gate is (..., C) or (..., 1)."""
    return a * gate.sigmoid()


@op
def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of a matrix.

    Args:
        weight: (V, C).
        ids: (...), int64.

    Returns:
        (..., C), in the dtype of the weight.
    """
    return F.embedding(ids, weight)


@op
def take_columns(x: Tensor, order: Tensor, size: int) -> Tensor:
    """Columns in another order, for a weight whose blocks do not let its own be moved.

    Args:
        x: (..., C).
        order: (count,), int64, which of the pieces of ``size`` channels each is; they are not
            checked.
        size: Divides C.

    Returns:
        (..., count * size), in the dtype of x.
    """
    return x.unflatten(-1, (-1, size)).index_select(-2, order).flatten(-2)


def dense(x: Tensor) -> Tensor:
    """Its numbers side by side: itself, or a copy that a kernel makes."""
    return x if x.is_contiguous() else scale(x, 1.0)
