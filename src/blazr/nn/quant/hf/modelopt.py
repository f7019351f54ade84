"""NVIDIA's Model Optimizer: NVFP4, MXFP4, MXFP8 and float8, in one checkpoint or the other.

    NVFP4  weight          uint8, (out, in / 2)
           weight_scale    float8, (out, in / 16)
           weight_scale_2  one number that the scales are multiplied by
    FP8    weight          float8, (out, in)
           weight_scale    one number, or (out, 1)
    MXFP8  weight_scale    uint8, (out, in / 32), exponents of two
    MXFP4  weight          uint8, (out, in / 2), with such scales

Which matrices are which is seen by their types: a checkpoint may hold both, and plain ones.
Settings lie in config.json, or in ``hf_quant_config.json``.

Source: checkpoints of its export for Hugging Face.
"""

from __future__ import annotations

from blazr.nn.quant.hf.fp8 import FLOATS, fp8_layout
from blazr.nn.quant.hf.microscaling import has_exponents, microscaling_layout
from blazr.nn.quant.hf.nvfp4 import nvfp4_layout
from blazr.nn.quant.hf.scheme import Layout, Parts, QuantizationConfig, Read, Scheme

_ALGORITHMS = ("NVFP4", "W4A16_NVFP4", "FP8", "MXFP8", "MXFP4", "MIXED_PRECISION")


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout | None:
    del read
    if settings.text("quant_algo", _ALGORITHMS[0]).upper() not in _ALGORITHMS:
        raise settings.wrong("quant_algo", ", ".join(_ALGORITHMS))
    if has_exponents(parts):
        return microscaling_layout(parts, "modelopt", "weight")
    if parts["weight"].dtype in FLOATS:
        return fp8_layout(parts, "weight_scale")
    if parts["weight"].dtype != "U8":
        return None
    return nvfp4_layout(
        parts, "modelopt-nvfp4", numbers="weight", whole="weight_scale_2", divides=False
    )


MODELOPT = Scheme(
    mains=("weight",),
    others=("weight_scale", "weight_scale_2"),
    layout=_layout,
    ignored=("input_scale", "output_scale", "k_scale", "v_scale", "q_scale", "k_bias", "v_bias"),
)
