"""Whole numbers with one scale for a row, or for a group of 128 columns: ``int8`` and ``int4``.

Symmetric, and rounded to the nearest: what other programs call W8A16 and W4A16. They are held in
blocks whose scales agree, so that every kernel for blocks serves them, and written as
compressed-tensors, which other programs read.
"""

from __future__ import annotations

from torch import Tensor

from blazr.nn.quant.exact import make_blocks
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.quantize import Quantizer

GROUP, SMALL_GROUP = 128, 32
_SMALLEST = 2.0**-24


def group_of(name: str, columns: int) -> int:
    """How many columns of a row share a scale.

    Args:
        name: ``"int8"`` or ``"int4"``.
        columns: Of a row.
    """
    if name == "int8":
        return columns
    return GROUP if columns % GROUP == 0 else SMALL_GROUP


def _scaled(rows: Tensor, size: int, largest: float) -> tuple[Tensor, Tensor]:
    """Rows over their groups' scales, and those as float16; each fits bfloat16 as well."""
    groups = rows.unflatten(1, (-1, size))
    scales = (groups.abs().amax(2) / largest).bfloat16().half()
    scaled = groups / scales.float().clamp(min=_SMALLEST)[..., None]
    return scaled.flatten(1).round(), scales


def _encode_int8(rows: Tensor) -> Tensor:
    codes, scales = _scaled(rows, rows.shape[1], 127)
    return make_blocks(GGML_TYPES["Q8_0"], codes.clamp(-127, 127) + 128, scales)


def _encode_int4(rows: Tensor) -> Tensor:
    codes, scales = _scaled(rows, group_of("int4", rows.shape[1]), 7.5)
    return make_blocks(GGML_TYPES["Q4_0"], codes.clamp(-8, 7) + 8, scales)


def _int8_packing(columns: int) -> str:
    return "int8" if columns > GGML_TYPES["Q8_0"].length else "Q8_0"


def _int4_packing(columns: int) -> str:
    group = group_of("int4", columns)
    return f"int4 by {group}" if group > GGML_TYPES["Q4_0"].length else "Q4_0"


INT8 = Quantizer(GGML_TYPES["Q8_0"], _encode_int8, by_rows=True, packed_as=_int8_packing)
INT4 = Quantizer(GGML_TYPES["Q4_0"], _encode_int4, by_rows=True, packed_as=_int4_packing)
