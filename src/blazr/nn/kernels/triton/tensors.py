"""Tensors as kernels take them: tuples of a pointer and how far it is to the next row, and so on.

On the host the tensor itself stands in the place of the pointer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

Rows = tuple[Tensor, int]
"""A tensor (rows, ...), and numbers from one row to the next."""

HeadRows = tuple[Tensor, int, int]
"""A tensor (rows, heads, size), and numbers from one row to the next, and from head to head."""

PagedRows = tuple[Tensor, int, int, int]
"""A tensor (pages, GRID, heads, ...), and elements from page to page, from token to token, and from
head to head."""


def dense(x: Tensor) -> Tensor:
    """The same with the numbers of a row side by side; rows may lie apart."""
    return x if x.stride(-1) == 1 else x.contiguous()


def rows_of(x: Tensor) -> Rows:
    """Those of a tensor (rows, ...)."""
    return x, x.stride(0)


def heads_of(x: Tensor) -> HeadRows:
    """Those of a tensor (rows, heads, size)."""
    row, head, _ = x.stride()
    return x, row, head


def pages_of(stored: Tensor) -> PagedRows:
    """Of keys, values or latents; of small floats the bits, because not every GPU knows them."""
    page, row, head, _ = stored.stride()
    is_float8 = stored.dtype == torch.float8_e4m3fn
    return stored.view(torch.uint8) if is_float8 else stored, page, row, head


@triton.jit
def load_row(rows, row, places, is_wanted):
    """Numbers of a row, in float32; zero where they are not wanted."""
    first, step = rows
    return tl.load(first + row * step + places, mask=is_wanted, other=0).to(tl.float32)
