"""Products with weights as files store them."""

from __future__ import annotations

from torch import Tensor

from blazr.nn.operands.floats import ScaledFloats, StoredMatrix
from blazr.nn.operands.packing import TILE
from blazr.nn.ops.matmul import linear
from blazr.nn.ops.op import op


@op
def decode_floats(out: Tensor, floats: ScaledFloats, first: int) -> Tensor:
    """Rows of a matrix of small floats as plain numbers.

    Args:
        out: (R, in), contiguous: where they go.
        floats: (out, in).
        first: The first of the rows.

    Returns:
        ``out``.
    """
    return out.copy_(floats.decode(slice(first, first + len(out))))


@op
def stored_linear(x: Tensor, weight: StoredMatrix, bias: Tensor | None = None) -> Tensor:
    """``x weight.T + bias``, of a weight whose numbers are first rounded to the dtype of x.

    The weight is decoded a tile of rows at a time. The tiles are the same whatever x is.

    Args:
        x: (..., in).
        weight: (out, in).
        bias: (out,).

    Returns:
        (..., out), in the dtype of x.
    """
    rows, step = weight.shape[0], max(1, TILE // max(1, x.shape[-1]))
    out = x.new_empty((*x.shape[:-1], rows))
    room = x.new_empty(min(step, rows), weight.shape[-1])  # for all tiles: new memory is slow
    for low in range(0, rows, step):
        tile = slice(low, min(low + step, rows))
        if isinstance(weight, ScaledFloats):
            numbers = decode_floats(room[: tile.stop - low], weight, low)
        else:
            numbers = weight.decode(tile).to(x.dtype)
        out[..., tile] = linear(x, numbers, None if bias is None else bias[tile])
    return out
