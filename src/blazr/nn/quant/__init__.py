"""Weights in storage of their own: packed blocks that are decoded as they are used.

QUANTIZERS: what ``--quantize`` can make of plain weights while it loads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.core.table import Table

if TYPE_CHECKING:
    from blazr.nn.quant.gguf.quantize import Quantizer

_GGUF = "blazr.nn.quant.gguf.quantize:"
_GROUPS = "blazr.nn.quant.groups:"

QUANTIZERS: Table[Quantizer] = Table(
    "quantization",
    {},
    lazy={
        "q8_0": _GGUF + "Q8_0",
        "q4_0": _GGUF + "Q4_0",
        "q4_k": "blazr.nn.quant.gguf.kquantize:Q4_K",
        "int8": _GROUPS + "INT8",
        "int4": _GROUPS + "INT4",
    },
)
