"""AutoRound: roundings that were learned, in the formats of other methods [arXiv:2309.05516].

``packing_format`` names the format; before version 0.5 it was ``backend``, after the kernels that
the format was for. Groups and widths that ``extra_config`` gives to some matrices are seen by the
shapes of their tensors.

Source: AutoRound's description of its packing formats.
"""

from __future__ import annotations

from blazr.nn.quant.hf.awq import AWQ
from blazr.nn.quant.hf.compressed_tensors import COMPRESSED_TENSORS
from blazr.nn.quant.hf.fp8 import FP8
from blazr.nn.quant.hf.gptq import GPTQ
from blazr.nn.quant.hf.scheme import Layout, Parts, QuantizationConfig, Read, Scheme

# The method, and what its own settings would say beside those that both have.
_PLAIN_ZEROS = (GPTQ, {"checkpoint_format": "gptq_v2"})
_FORMATS: dict[str, tuple[Scheme, dict[str, str]]] = {
    "auto_round": _PLAIN_ZEROS,
    "auto_round:gptqmodel": _PLAIN_ZEROS,
    "auto_round:auto_gptq": (GPTQ, {}),
    "auto_round:gptq": (GPTQ, {}),
    "auto_round:auto_awq": (AWQ, {}),
    "auto_round:awq": (AWQ, {}),
    "auto_round:fp8_static": (FP8, {}),
    "auto_round:llm_compressor": (COMPRESSED_TENSORS, {}),
}
_DEFAULT = "auto_round:auto_gptq"
# Changes of activations, which nothing here computes.
_ROTATIONS = ("rotation_config", "spinquant_config")
_SCHEMES = [scheme for scheme, _ in _FORMATS.values()]


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout | None:
    for key in _ROTATIONS:
        if settings.raw.get(key):
            raise settings.wrong(key, "none")
    if settings.text("data_type", "int").startswith("mx_int"):  # stored by the types of MXFP4
        raise settings.wrong("data_type", "int, mx_fp, nv_fp or fp")
    name = settings.text("packing_format", "") or _older_format(settings)
    if name not in _FORMATS:
        raise settings.wrong("packing_format", ", ".join(_FORMATS))
    scheme, more = _FORMATS[name]
    if not parts.keys() & set(scheme.mains):
        return None  # a plain matrix beside quantized ones
    return scheme.layout(QuantizationConfig({**settings.raw, **more}, settings.source), parts, read)


def _older_format(settings: QuantizationConfig) -> str:
    """The format by the names of kernels that older versions write."""
    kernels = settings.text("backend", "auto")
    if "awq" in kernels:
        return "auto_round:auto_awq"
    if "gptq" in kernels or kernels == "auto":
        return _DEFAULT
    if kernels.startswith(("auto_round", "autoround")):
        return "auto_round"
    raise settings.wrong("backend", "auto_round, auto_round:gptq or auto_round:awq")


def _ends(ends: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple({end: None for each in ends for end in each})


AUTO_ROUND = Scheme(
    mains=_ends([scheme.mains for scheme in _SCHEMES]),
    others=_ends([scheme.others for scheme in _SCHEMES]),
    layout=_layout,
    ignored=_ends([scheme.ignored for scheme in _SCHEMES]),
)
