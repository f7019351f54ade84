"""MXFP4 and MXFP8: small floats, and a power of two as the scale of 32 columns.

    numbers  MXFP4: uint8, (out, in / 2), four-bit floats, the first of two in the lower half
             MXFP8: float8, (out, in)
    scales   uint8 or float8 E8M0, (out, in / 32): exponents, biased by 127

Source: OCP Microscaling Formats (MX) specification 1.0, sections 5.2 and 5.3; the descriptions of
compressed-tensors, of NVIDIA's Model Optimizer and of AMD's Quark, which write it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.hf.fp8 import FLOATS
from blazr.nn.quant.hf.scheme import FloatLayout, Parts, agree, need

EXPONENTS = ("U8", "F8_E8M0")
_GROUP = GGML_TYPES["MXFP4"].length


class MicroscalingLayout(FloatLayout):
    """A matrix of small floats with powers of two as scales, as any of its writers names them.

    Args:
        name: Method and width, for people.
        shape: (out, in).
        numbers: Which part holds the numbers.
        are_pairs: Whether they have four bits.
    """

    def __init__(self, name: str, shape: tuple[int, int], numbers: str, *, are_pairs: bool) -> None:
        super().__init__(name, shape)
        if are_pairs:
            self.packed_as = "MXFP4"
        self.numbers = numbers

    @override
    def floats(self, parts: Mapping[str, Tensor]) -> ScaledFloats:
        scales = parts["weight_scale"].view(torch.float8_e8m0fnu)
        return ScaledFloats(parts[self.numbers], scales, (1, _GROUP))


def has_exponents(parts: Parts) -> bool:
    """Whether the scales of a matrix are powers of two."""
    return "weight_scale" in parts and parts["weight_scale"].dtype in EXPONENTS


def microscaling_layout(parts: Parts, method: str, numbers: str) -> MicroscalingLayout:
    """The layout of a matrix by the types and shapes of its tensors.

    Args:
        parts: They.
        method: What wrote it, for people.
        numbers: Which part holds the numbers.

    Raises:
        CheckpointError: They do not fit each other.
    """
    rows, columns = need(parts, numbers, ("U8", *FLOATS), 2)
    are_pairs = parts[numbers].dtype == "U8"
    columns *= 2 if are_pairs else 1
    scales = need(parts, "weight_scale", EXPONENTS, 2)
    agree(parts, (rows, columns), (scales[0], scales[1] * _GROUP), f"groups of {_GROUP}:")
    name = f"{method}-mxfp{4 if are_pairs else 8}"
    return MicroscalingLayout(name, (rows, columns), numbers, are_pairs=are_pairs)
