"""BitNet: -1, 0 and 1 with a scale for the whole matrix [arXiv:2402.17764].

    weight         uint8, (out / 4, in): two bits a number, 0, 1 or 2 for -1, 0 or 1; the lowest
                   bits hold the first quarter of the rows, the next ones the second
    weight_scale   one number

Numbers are ``code * weight_scale`` where ``linear_class`` is ``autobitlinear``, else ``code /
weight_scale``.

Source: transformers' ``integrations/bitnet.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from blazr.nn.quant.hf.scheme import (
    Grid,
    GridLayout,
    Layout,
    Parts,
    QuantizationConfig,
    Read,
    Scheme,
    agree,
    need,
)

_COUNT, _BITS = 4, 2  # numbers of a byte, and bits of a number
_MULTIPLIED = "autobitlinear"
_CLASSES = (_MULTIPLIED, "bitlinear")
_ONLINE = "online"


class BitNetLayout(GridLayout):
    """A matrix of -1, 0 and 1, four quarters of its rows in one.

    Args:
        shape: (out, in).
        is_divided: Whether numbers are divided by the scale.
    """

    def __init__(self, shape: tuple[int, int], *, is_divided: bool) -> None:
        super().__init__("bitnet", shape)
        self.is_divided = is_divided

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        stored = parts["weight"]
        wanted = torch.arange(self.shape[0], device=stored.device)[rows]
        quarter = self.shape[0] // _COUNT
        places = (wanted // quarter * _BITS).to(torch.uint8)
        codes = (stored[wanted % quarter] >> places[:, None] & 3).int() - 1
        scale = parts["weight_scale"].float().reshape(1, 1)
        scales = (scale.reciprocal() if self.is_divided else scale).expand(len(codes), 1)
        zeros = torch.zeros_like(scales, dtype=torch.int32)
        return Grid(codes, scales, zeros, size=self.shape[1], bits=_BITS, low=-2)


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout | None:
    del read
    kind = settings.text("linear_class", "bitlinear")
    if kind not in _CLASSES:
        raise settings.wrong("linear_class", " or ".join(_CLASSES))
    if settings.raw.get("use_rms_norm"):
        raise settings.wrong("use_rms_norm", "no norms before the matrices")
    if settings.text("quantization_mode", "offline") == _ONLINE:
        raise settings.wrong("quantization_mode", "offline: weights that are packed already")
    if "weight_scale" not in parts and parts["weight"].dtype != "U8":
        return None  # a plain matrix beside quantized ones
    packed, columns = need(parts, "weight", ("U8",), 2)
    shape = need(parts, "weight_scale", ("F32", "BF16", "F16"))
    agree(parts, shape, shape if shape in {(), (1,)} else (1,), "scales")
    return BitNetLayout((packed * _COUNT, columns), is_divided=kind != _MULTIPLIED)


BITNET = Scheme(mains=("weight",), others=("weight_scale",), layout=_layout)
