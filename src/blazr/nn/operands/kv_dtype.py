"""How keys, values and latents are stored in fewer bits than they are computed in.

What a token's entry becomes depends on that entry alone, so that it is the same however a prompt
was cut and whatever else was in the batch. ``csrc/stored.hpp`` says the same to kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.core.table import Table

T = TypeVar("T")

BLOCK = 32  # numbers that have one scale
_BLOCK_BYTES = BLOCK + 2


@dataclass(frozen=True, slots=True)
class KvDtype:
    """A way to store the D numbers of a head, or of a latent.

    Args:
        number: As ``kernels.hpp`` has it.
        dtype: Of the tensors, one byte an element; it tells how their numbers are stored. None for
            whatever they are computed in.
        width: Elements that D numbers take.
        size: D, of so many elements.
        encode: (..., D) of any floating-point dtype to (..., width).
        decode: (..., width) to (..., D), float32.
    """

    number: int
    dtype: torch.dtype | None
    width: Callable[[int], int]
    size: Callable[[int], int]
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _encode_q8_0(x: Tensor) -> Tensor:
    """A block's largest magnitude becomes 127; the last block may be shorter."""
    size = x.shape[-1]
    blocks = F.pad(x.float(), (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    scale = (blocks.abs().amax(-1) / 127).half().unsqueeze(-1)
    inverse = 1 / scale.float()
    inverse = torch.where(inverse.isfinite(), inverse, 0)
    codes = (blocks * inverse).round().clamp(-127, 127).to(torch.int8)
    both = torch.cat((scale.view(torch.uint8), codes.view(torch.uint8)), -1)
    return both.flatten(-2)[..., : _Q8_0.width(size)]


def _decode_q8_0(stored: Tensor) -> Tensor:
    """0:2 scale, float16; then int8; value = scale * int8."""
    count = stored.shape[-1]
    blocks = F.pad(stored, (0, -count % _BLOCK_BYTES)).unflatten(-1, (-1, _BLOCK_BYTES))
    scale = blocks[..., :2].contiguous().view(torch.float16).float()
    values = blocks[..., 2:].contiguous().view(torch.int8).float() * scale
    return values.flatten(-2)[..., : _Q8_0.size(count)]


def _encode_fp8(x: Tensor) -> Tensor:
    """To the nearest; what is too large becomes the largest."""
    most = torch.finfo(torch.float8_e4m3fn).max
    return x.float().clamp(-most, most).to(torch.float8_e4m3fn)


def _same(x: T) -> T:
    return x


_AUTO = KvDtype(0, None, _same, _same, _same, _same)
_Q8_0 = KvDtype(
    1,
    torch.uint8,
    lambda size: size + 2 * _blocks(size, BLOCK),
    lambda count: count - 2 * _blocks(count, _BLOCK_BYTES),
    _encode_q8_0,
    _decode_q8_0,
)
_FP8 = KvDtype(
    2,
    torch.float8_e4m3fn,
    _same,
    _same,
    _encode_fp8,
    lambda stored: stored.float(),
)

KV_DTYPES: Table[KvDtype] = Table(
    "dtype of keys and values",
    # the last is vLLM's name
    {"auto": _AUTO, "q8_0": _Q8_0, "fp8_e4m3": _FP8, "fp8": _FP8},
)
_BY_DTYPE = {row.dtype: row for row in KV_DTYPES.values()}


def kv_dtype_of(stored: Tensor) -> KvDtype:
    """How the numbers of a tensor are stored."""
    return _BY_DTYPE.get(stored.dtype, _AUTO)


def kind_of(stored: Tensor) -> str:
    """The name of how the numbers of a tensor are stored."""
    row = kv_dtype_of(stored)
    return next(name for name, other in KV_DTYPES.items() if other is row)


def stored_size(stored: Tensor) -> int:
    """D, of a tensor (..., what D numbers take)."""
    return kv_dtype_of(stored).size(stored.shape[-1])


def write_entries(stored: Tensor, slots: Tensor, entries: Tensor) -> None:
    """Put entries at their places.

    Args:
        stored: (pages, GRID, ..., what D numbers take); written.
        slots: (T,), int64, page id * GRID + offset.
        entries: (T, ..., D); of another dtype in layers that are trained with autocast.
    """
    places = slots // stored.shape[1], slots % stored.shape[1]
    kind = kv_dtype_of(stored)
    if kind.dtype is None:
        stored[places] = entries.to(stored.dtype)
    else:  # as bytes, because torch cannot index every dtype
        stored.view(torch.uint8)[places] = kind.encode(entries).view(torch.uint8)


def read_pages(stored: Tensor, pages: Tensor, dtype: torch.dtype) -> Tensor:
    """What pages hold.

    Args:
        stored: (pages, GRID, ..., what D numbers take).
        pages: (B, M), int64, ids.
        dtype: Of what is returned, if numbers are stored otherwise than they are computed.

    Returns:
        (B, M * GRID, ..., D).
    """
    kind = kv_dtype_of(stored)
    if kind.dtype is None:
        return stored[pages].flatten(1, 2)
    found = stored.view(torch.uint8)[pages].flatten(1, 2).view(stored.dtype)
    return kind.decode(found).to(dtype)
