"""Products with packed weights: ``csrc/matmul_q.hpp`` behind the op's signature."""

from __future__ import annotations

import torch
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.kernels.cpu.library import DTYPES, library

# Bytes of a packed block to what kernels.hpp numbers.
_PACKINGS = {544: 0, 288: 1}


def packed_linear(x: Tensor, packed: Tensor, rows: int, bias: Tensor | None = None) -> Tensor:
    """See ``blazr.nn.ops.packed.packed_linear``; a row's result depends on that row alone."""
    groups, blocks, size = packed.shape
    shape, dtype, k = x.shape, x.dtype, blocks * 32
    fits = shape[-1] == k and groups == (rows + 15) // 16 and packed.dtype == torch.uint8
    if not fits or (bias is not None and (bias.shape != (rows,) or bias.dtype != dtype)):
        raise ShapeError(
            "a packed matrix does not fit what it is multiplied with.",
            found=f"{tuple(shape)} {dtype}, {rows} rows",
            expected=f"{groups} groups of 16 rows and {k} columns",
        )
    x, packed = x.contiguous(), packed.contiguous()
    m = shape[0] if len(shape) == 2 else shape[:-1].numel()
    y = torch.empty(m, rows, dtype=dtype)
    room = torch.empty(m * (k + k // 4), dtype=torch.uint8)  # the activations as int8
    library().blazr_packed_linear(
        _PACKINGS[size],
        DTYPES[dtype],
        x.data_ptr(),
        packed.data_ptr(),
        None if bias is None else bias.contiguous().data_ptr(),
        y.data_ptr(),
        room.data_ptr(),
        m,
        rows,
        k,
        torch.get_num_threads(),
    )
    return y if len(shape) == 2 else y.view(*shape[:-1], rows)
