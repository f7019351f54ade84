"""SCHEMES: how quantized Hugging Face checkpoints store matrices, by their ``quant_method``.

Importing it imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.core.table import Table

if TYPE_CHECKING:
    from blazr.nn.quant.hf.scheme import Scheme

_MODULE = "blazr.nn.quant.hf."

SCHEMES: Table[Scheme] = Table(
    "quantization method",
    {},
    lazy={
        "fp8": _MODULE + "fp8:FP8",
        "fbgemm_fp8": _MODULE + "fp8:FP8",
        "gptq": _MODULE + "gptq:GPTQ",
        "awq": _MODULE + "awq:AWQ",
        "compressed-tensors": _MODULE + "compressed_tensors:COMPRESSED_TENSORS",
        "modelopt": _MODULE + "modelopt:MODELOPT",
        "quark": _MODULE + "quark:QUARK",
        "auto-round": _MODULE + "auto_round:AUTO_ROUND",
        "intel/auto-round": _MODULE + "auto_round:AUTO_ROUND",
        "bitsandbytes": _MODULE + "bitsandbytes:BITSANDBYTES",
        "bitnet": _MODULE + "bitnet:BITNET",
        "torchao": _MODULE + "torchao:TORCHAO",
        "mlx": _MODULE + "mlx:MLX",
        "metal": _MODULE + "mlx:MLX",
    },
)
