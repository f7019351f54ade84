"""MLX: whole numbers with a scale and an offset per group of columns, or small floats.

    affine   weight   uint32, (out, in * bits / 32), first column lowest
             scales   floats, (out, in / group)
             biases   the same (``qbiases`` where transformers wrote them, for Metal)
    mxfp4    weight   uint32, (out, in / 8), four-bit floats, first column lowest
             scales   uint8, (out, in / 32), exponents of two
    mxfp8    weight   uint32, (out, in / 4), float8 E4M3
             scales   the same
    nvfp4    weight   uint32, (out, in / 8)
             scales   uint8, (out, in / 16), the bytes of float8 E4M3

Numbers of the first kind are ``q * scale + bias``. Beside the settings stand those of some
matrices, by the names of their modules; these inherit nothing.

Source: MLX's description of ``mlx.core.quantize``, and files that mlx-lm writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.hf.scheme import (
    FloatLayout,
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
from blazr.nn.quant.hf.words import WORD, unpack

WIDTHS = (2, 3, 4, 5, 6, 8)


class _Floats(NamedTuple):
    """A mode of small floats: bits and columns of a scale, and what both are stored as."""

    bits: int
    size: int
    numbers: torch.dtype
    scales: torch.dtype


_AFFINE = "affine"
_MODES = {
    "mxfp4": _Floats(4, 32, torch.uint8, torch.float8_e8m0fnu),
    "mxfp8": _Floats(8, 32, torch.float8_e4m3fn, torch.float8_e8m0fnu),
    "nvfp4": _Floats(4, 16, torch.uint8, torch.float8_e4m3fn),
}


class MlxLayout(GridLayout):
    """Whole numbers as MLX stores them.

    Args:
        shape: (out, in).
        bits: Of a number.
        size: Columns of a group.
        offsets: Which part is added to the numbers.
    """

    def __init__(self, shape: tuple[int, int], bits: int, size: int, *, offsets: str) -> None:
        super().__init__(f"mlx-int{bits}", shape)
        self.bits = bits
        self.size = size
        self.offsets = offsets

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        scales = parts["scales"][rows].float()
        codes = unpack(parts["weight"][rows].view(torch.int32), self.bits, 1)
        return Grid(
            codes=codes[:, : self.shape[1]],
            scales=scales,
            zeros=torch.zeros_like(scales, dtype=torch.int32),
            size=self.size,
            bits=self.bits,
            offsets=parts[self.offsets][rows].float(),
        )


class MlxFloatLayout(FloatLayout):
    """Small floats as MLX stores them.

    Args:
        shape: (out, in).
        mode: Which, by MLX's name.
    """

    def __init__(self, shape: tuple[int, int], mode: str) -> None:
        super().__init__(f"mlx-{mode}", shape)
        name = mode.upper()
        if name in GGML_TYPES and shape[1] % GGML_TYPES[name].length == 0:
            self.packed_as = name
        self.mode = mode

    @override
    def floats(self, parts: Mapping[str, Tensor]) -> ScaledFloats:
        mode = _MODES[self.mode]
        numbers = parts["weight"].view(mode.numbers)
        return ScaledFloats(numbers, parts["scales"].view(mode.scales), (1, mode.size))


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout | None:
    del read
    if parts["weight"].dtype != "U32":
        return None
    module = parts["weight"].name.removesuffix(".weight")
    own = settings.section(module) if isinstance(settings.raw.get(module), Mapping) else settings
    mode = own.text("mode", _AFFINE)
    rows, words = need(parts, "weight", ("U32",), 2)
    if mode in _MODES:
        bits, size = _MODES[mode][:2]
        scale_rows, groups = need(parts, "scales", ("U8",), 2)
    elif mode == _AFFINE:
        bits, size = own.integer("bits", 4), own.integer("group_size", 64)
        scale_rows, groups = need(parts, "scales", ("F16", "BF16", "F32"), 2)
    else:
        raise own.wrong("mode", ", ".join((_AFFINE, *_MODES)))
    if bits not in WIDTHS:
        raise own.wrong("bits", ", ".join(map(str, WIDTHS)))
    if size < 1:
        raise own.wrong("group_size", "at least 1")
    columns = groups * size
    agree(parts, (scale_rows, words * WORD), (rows, columns * bits), f"{bits} bits a number:")
    if mode in _MODES:
        return MlxFloatLayout((rows, columns), mode)
    offsets = "qbiases" if "qbiases" in parts else "biases"
    agree(parts, need(parts, offsets, ("F16", "BF16", "F32"), 2), (rows, groups), offsets)
    return MlxLayout((rows, columns), bits, size, offsets=offsets)


MLX = Scheme(mains=("weight",), others=("scales", "biases", "qbiases"), layout=_layout)
