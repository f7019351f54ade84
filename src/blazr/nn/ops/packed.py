"""Products with weights packed for processors: 16 rows interleaved, activations as int8.

A packed matrix is (groups, blocks, bytes) uint8: a group is 16 rows, a block 32 columns of them. A
block holds 16 float16 scales and then the numbers, four columns of each row after the other:

    Q8_0    544 bytes: 8 lines of 64 with columns 4j to 4j + 3, as q + 128
    Q4_0    288 bytes: 4 lines of 64 with columns 8j to 8j + 3 in the low nibbles and
            8j + 4 to 8j + 7 in the high ones, as q + 8
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.core.errors import ShapeError
from blazr.nn.ops.op import Op

BLOCK, GROUP, SCALES = 32, 16, 32
# Bytes of a block by GGML type: what can be packed.
BLOCK_BYTES = {"Q8_0": 544, "Q4_0": 288}
_FILE_BYTES = {"Q8_0": 34, "Q4_0": 18}


def pack(kind: str, blocks: Tensor) -> Tensor:
    """Interleave the rows of a matrix of GGML blocks.

    Args:
        kind: ``"Q8_0"`` or ``"Q4_0"``.
        blocks: (out, blocks * bytes of a block in files), uint8.

    Returns:
        (out / 16 rounded up, blocks, bytes of a packed block), uint8; rows added are zero.

    Raises:
        ShapeError: The rows are no whole blocks.
    """
    rows, row_bytes = blocks.shape
    size = _FILE_BYTES[kind]
    if row_bytes % size:
        raise ShapeError(
            f"rows of {kind} are whole blocks.",
            found=f"{row_bytes} bytes a row",
            expected=f"a multiple of {size}",
        )
    blocks = F.pad(blocks, (0, 0, 0, -rows % GROUP))
    split = blocks.view(-1, GROUP, row_bytes // size, size)  # (groups, 16, blocks, bytes)
    scales, body = split[..., :2], split[..., 2:]
    if kind == "Q4_0":
        # in files the first half of a block is in the low nibbles; here every first four columns
        columns = torch.cat([body & 15, body >> 4], -1).unflatten(-1, (4, 2, 4))
        body = (columns[..., 0, :] | (columns[..., 1, :] << 4)).flatten(-2)
    else:
        body = body ^ 0x80
    lines = body.unflatten(-1, (-1, 4)).permute(0, 2, 3, 1, 4)  # (groups, blocks, lines, 16, 4)
    return torch.cat([scales.transpose(1, 2).flatten(2), lines.flatten(2)], -1)


def unpack(packed: Tensor, rows: int) -> Tensor:
    """The first so many rows of a packed matrix, (rows, blocks * 32), float32."""
    scales, lines = _split(packed)
    whole = _decode(scales.transpose(1, 2), lines.permute(0, 3, 1, 2, 4))  # (groups, 16, in)
    return whole.flatten(0, 1)[:rows]


def unpack_rows(packed: Tensor, ids: Tensor) -> Tensor:
    """Some rows of a packed matrix: (N,) int64 to (N, blocks * 32), float32."""
    scales, lines = _split(packed[ids // GROUP])
    each, lane = torch.arange(len(ids), device=ids.device), ids % GROUP
    return _decode(scales[each, :, lane], lines[each, :, :, lane])


def _split(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Scales, (groups, blocks, 16) float32, and lines, (groups, blocks, lines, 16, 4) uint8."""
    scales = packed[..., :SCALES].contiguous().view(torch.float16).float()
    return scales, packed[..., SCALES:].unflatten(-1, (-1, GROUP, 4))


def _decode(scales: Tensor, lines: Tensor) -> Tensor:
    """Rows from their scales, (..., blocks), and lines, (..., blocks, lines, 4)."""
    lines = lines.short()
    if lines.shape[-2] == BLOCK // 8:
        numbers = torch.cat([lines & 15, lines >> 4], -1) - 8
    else:
        numbers = lines - 128
    return (numbers.flatten(-2) * scales[..., None]).flatten(-2)


def _packed_linear(x: Tensor, packed: Tensor, rows: int, bias: Tensor | None = None) -> Tensor:
    """``x weight.T + bias`` with a packed weight, x rounded to int8 in blocks of 32.

    The rounding is part of the definition: with ``m`` the largest magnitude of a block of x, its
    numbers become ``round(x * 127 / m)``, ties to even, times ``m / 127``.

    Args:
        x: (..., in).
        packed: From ``pack``.
        rows: ``out``: rows of the weight; fewer than are in ``packed`` where some were added.
        bias: (out,), in the dtype of x.

    Returns:
        (..., out), in the dtype of x.
    """
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    inverse = (
        largest.new_tensor(127.0) / largest
    )  # 127 / largest would round twice, as a reciprocal
    whole = torch.round(blocks * torch.where(largest < 2.0**-120, 0, inverse))
    rounded = (whole * (largest * (1 / 127))).flatten(-2)
    wide = torch.promote_types(x.dtype, torch.float32)
    y = F.linear(rounded.to(wide), unpack(packed, rows).to(wide))
    return (y if bias is None else y + bias).to(x.dtype)


def _samples(dtype: torch.dtype) -> Iterator[tuple[object, ...]]:
    for kind in BLOCK_BYTES:
        for count, blocks, rows in ((1, 2, 32), (5, 3, 7), (26, 1, 50), (140, 2, 300), (0, 1, 4)):
            packed = pack(kind, _random_blocks(kind, rows, blocks))
            x = torch.randn(count, BLOCK * blocks).to(dtype)
            yield x, packed, rows
            yield x * 1e-4, packed, rows, torch.randn(rows).to(dtype)
        yield torch.zeros(2, 3, BLOCK * blocks).to(dtype), packed, rows


def _random_blocks(kind: str, rows: int, blocks: int) -> Tensor:
    body = torch.randint(0, 256, (rows, blocks, _FILE_BYTES[kind] - 2), dtype=torch.uint8)
    scales = (torch.rand(rows, blocks, 1) * 0.01).half().view(torch.uint8)
    return torch.cat([scales, body], -1).flatten(1)


packed_linear = Op("packed_linear", reference=_packed_linear, samples=_samples)
