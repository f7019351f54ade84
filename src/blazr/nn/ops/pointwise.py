"""What is done to each number alone, and rows of an embedding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.nn.ops.activation import ACTIVATIONS
from blazr.nn.ops.op import op


@op()
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


@op()
def scale(a: Tensor, factor: float) -> Tensor:
    """``a * factor``, (..., C), in the dtype of a."""
    return a * factor


@op()
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


@op()
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


@op()
def sigmoid_gate(a: Tensor, gate: Tensor) -> Tensor:
    """``a * sigmoid(gate)``, (..., C), in the dtype of a; the gate is (..., C) or (..., 1)."""
    return a * gate.sigmoid()


@op()
def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of a matrix.

    Args:
        weight: (V, C).
        ids: (...), int64.

    Returns:
        (..., C), in the dtype of the weight.
    """
    return F.embedding(ids, weight)


@op()
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


_SHAPES = ((1, 16), (3, 40), (2, 7), (5, 1), (0, 8), (2, 3, 24), (3, 20000))


def _pairs(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    for shape in _SHAPES:
        yield 2 * torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    wide = torch.randn(4, 20).to(dtype)
    yield wide[:, 3:12], wide[:, 10:19]


@add.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for a, b in _pairs(dtype):
        yield a, b
        yield a, b, 0.22


@scale.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for a, _ in _pairs(dtype):
        yield a, 12.5


@widen.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for a, _ in _pairs(dtype):
        yield (a,)
        yield a * 10, 8.0
        yield a * 10, 1.0, 30.0


@activate.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for kind in ACTIVATIONS:
        for a, b in _pairs(dtype):
            yield 4 * a, kind
            yield 4 * a, kind, b
        yield torch.tensor([[0.0, -0.0, 50, -50, 1e-4, -1e-4]]).to(dtype), kind


@sigmoid_gate.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for a, b in _pairs(dtype):
        yield a, b
        yield a, b[..., :1]


@embedding.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for rows, width, count in ((5, 8, 3), (40, 7, 70), (3, 16, 0), (1, 5, 1)):
        yield torch.randn(rows, width).to(dtype), torch.randint(0, rows, (count,))
    yield torch.randn(9, 20).to(dtype)[:, 2:7], torch.randint(0, 9, (2, 3))


@take_columns.sample
def _(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for shape, size in (((3, 24), 4), ((1, 5), 1), ((2, 3, 12), 6), ((0, 8), 2)):
        x = torch.randn(shape).to(dtype)
        yield x, torch.randperm(shape[-1] // size), size
    yield torch.randn(4, 20).to(dtype)[:, 2:14], torch.tensor([2, 0]), 3


def dense(x: Tensor) -> Tensor:
    """Its numbers side by side: itself, or a copy that a kernel makes."""
    return x if x.is_contiguous() else scale(x, 1.0)
