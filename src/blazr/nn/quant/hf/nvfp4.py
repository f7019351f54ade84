"""NVFP4: four-bit floats, an eight-bit float scale for 16 columns, one number for the matrix.

    numbers  uint8, (out, in / 2), the first of two in the lower half
    scales   float8 E4M3, (out, in / 16)
    whole    float32, one number

Source: the descriptions of compressed-tensors and of NVIDIA's Model Optimizer, which write it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.hf.fp8 import SCALES
from blazr.nn.quant.hf.scheme import FloatLayout, Parts, agree, need

_GROUP = 16


class Nvfp4Layout(FloatLayout):
    """A matrix in NVFP4: four-bit floats with scales, as either of its writers names the parts.

    Args:
        name: Method and width, for people.
        shape: (out, in).
        numbers: Which part holds the numbers.
        whole: Which holds the number for the matrix.
        divides: Whether scales are divided by that, not multiplied.
    """

    def __init__(
        self, name: str, shape: tuple[int, int], *, numbers: str, whole: str, divides: bool
    ) -> None:
        super().__init__(name, shape)
        if shape[1] % GGML_TYPES["NVFP4"].length == 0:
            self.packed_as = "NVFP4"
        self.numbers = numbers
        self.whole = whole
        self.divides = divides

    @override
    def floats(self, parts: Mapping[str, Tensor]) -> ScaledFloats:
        whole = parts[self.whole].float().reshape(())
        scales, block = parts["weight_scale"], (1, _GROUP)
        return ScaledFloats(parts[self.numbers], scales, block, whole, is_divided=self.divides)


def nvfp4_layout(
    parts: Parts, name: str, *, numbers: str, whole: str, divides: bool
) -> Nvfp4Layout:
    """The layout of a matrix by the shapes of its tensors; see `Nvfp4Layout` for the arguments.

    Raises:
        CheckpointError: They do not fit each other.
    """
    rows, half = need(parts, numbers, ("U8",), 2)
    agree(parts, need(parts, whole, SCALES) or (1,), (1,), f"{whole}:")
    scales = need(parts, "weight_scale", ("F8_E4M3",), 2)
    agree(parts, (rows, 2 * half), (scales[0], scales[1] * _GROUP), "groups of 16")
    return Nvfp4Layout(name, (rows, 2 * half), numbers=numbers, whole=whole, divides=divides)
