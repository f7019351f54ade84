"""FP8: eight-bit floats with a scale for the whole matrix, for each row, or for each block.

    weight             float8 E4M3 (or E5M2), (out, in)
    weight_scale_inv   float32, (out / 128, in / 128) rounded up: DeepSeek-V3, transformers
    weight_scale       one number, or one for each row, (out,) or (out, 1)

Numbers are ``weight * scale``. Blocks at the right and lower edge may be smaller.

Source: DeepSeek-V3 technical report [arXiv:2412.19437], section 3.3, and the model card's
``README_WEIGHTS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from torch import Tensor
from typing_extensions import override

from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.quant.hf.scheme import (
    FloatLayout,
    Layout,
    Parts,
    QuantizationConfig,
    Read,
    Scheme,
    agree,
    need,
)

FLOATS = ("F8_E4M3", "F8_E5M2")
SCALES = ("F32", "BF16", "F16", "F8_E8M0")
_KEYS = ("weight_scale_inv", "weight_scale")


class Fp8Layout(FloatLayout):
    """Floats of eight bits, scaled.

    Args:
        shape: (out, in).
        block: Rows and columns that share a scale.
        scale: Which part holds the scales.
        numbers: Which holds the floats.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        block: tuple[int, int],
        scale: str,
        numbers: str = "weight",
    ) -> None:
        super().__init__("fp8", shape)
        self.block = block
        self.scale = scale
        self.numbers = numbers

    @override
    def floats(self, parts: Mapping[str, Tensor]) -> ScaledFloats:
        scales = parts[self.scale]
        scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
        return ScaledFloats(parts[self.numbers], scales, self.block)


def fp8_layout(
    parts: Parts, key: str, blocks: Iterable[tuple[int, int]] = (), *, numbers: str = "weight"
) -> Fp8Layout:
    """The layout of a float8 matrix by the shape of its scales.

    Args:
        parts: Its tensors.
        key: Which are the scales.
        blocks: Rows and columns of a block, where there are blocks; of several, the first that
            fits.
        numbers: Which of the tensors holds the floats.

    Raises:
        CheckpointError: The scales fit nothing.
    """
    rows, columns = need(parts, numbers, FLOATS, 2)
    shape = need(parts, key, SCALES)
    if shape in {(), (1,), (1, 1)}:
        return Fp8Layout((rows, columns), (max(rows, 1), max(columns, 1)), key, numbers)
    if shape == (rows,):
        return Fp8Layout((rows, columns), (1, max(columns, 1)), key, numbers)
    sizes = (*blocks, (1, max(columns, 1)))
    fitting = (b for b in sizes if shape == (ceil(rows / b[0]), ceil(columns / b[1])))
    block = next(fitting, sizes[0])
    agree(parts, shape, (ceil(rows / block[0]), ceil(columns / block[1])), "scales")
    return Fp8Layout((rows, columns), block, key, numbers)


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout | None:
    del read
    if parts["weight"].dtype not in FLOATS:
        return None
    key = next((key for key in _KEYS if key in parts), _KEYS[0])
    blocks = []
    if settings.raw.get("weight_block_size") is not None or key == _KEYS[0]:
        blocks.append(settings.sizes("weight_block_size", (128, 128)))
    return fp8_layout(parts, key, blocks)


FP8 = Scheme(
    mains=("weight",),
    others=_KEYS,
    layout=_layout,
    ignored=("input_scale", "activation_scale", "k_scale", "v_scale"),
)
