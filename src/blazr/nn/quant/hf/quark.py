"""AMD's Quark: float8 and MXFP4 (OCP Microscaling), in one checkpoint or the other.

    FP8    weight        float8, (out, in)
           weight_scale  one number, or one for each row
    MXFP4  weight        uint8, (out, in / 2)
           weight_scale  uint8, (out, in / 32)

Which matrices are which is seen by their types. Its whole numbers are not read.

Source: the exporter of AMD's Quark library.
"""

from __future__ import annotations

from blazr.core.errors import CheckpointError
from blazr.nn.quant.hf.fp8 import FLOATS, fp8_layout
from blazr.nn.quant.hf.microscaling import has_exponents, microscaling_layout
from blazr.nn.quant.hf.scheme import Layout, Parts, QuantizationConfig, Read, Scheme


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout | None:
    del settings, read
    weight = parts["weight"]
    if weight.dtype == "U8" or has_exponents(parts):
        return microscaling_layout(parts, "quark", "weight")
    if weight.dtype in FLOATS:
        return fp8_layout(parts, "weight_scale")
    if "weight_scale" in parts:
        raise CheckpointError(
            f"the matrix {weight.name[:100]!r} is quantized in a way that blazr does not read.",
            found=f"Quark's whole numbers in {weight.dtype}",
            expected="float8 or MXFP4",
            hint="take the model unquantized, or quantized in another way",
        )
    return None


QUARK = Scheme(
    mains=("weight",),
    others=("weight_scale",),
    layout=_layout,
    ignored=(
        "input_scale",
        "output_scale",
        "weight_zero_point",
        "input_zero_point",
        "output_zero_point",
        "k_scale",
        "v_scale",
    ),
)
