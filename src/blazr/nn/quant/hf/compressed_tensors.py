"""compressed-tensors: whole numbers or eight-bit floats, scaled per matrix, row, group or block.

    pack-quantized    weight_packed      int32, (out, in * bits / 32), first column lowest
                      weight_shape       (out, in)
                      weight_zero_point  int32, (out * bits / 32, groups), or absent
                      weight_g_idx       int32, (in,): the group of each column, or absent
    int-quantized     weight             int8, (out, in)
                      weight_zero_point  int8, like the scales, or absent
    float-quantized   weight             float8, (out, in)
    all of these      weight_scale       (1,), (out, 1), (out, groups), or by blocks
    nvfp4-pack-...    weight_packed      uint8, (out, in / 2), four-bit floats, the first one lower
                      weight_scale       float8, (out, in / 16)
                      weight_global_scale  (1,): scales are divided by it
    mxfp4-pack-...    weight_packed      the same
                      weight_scale       uint8, (out, in / 32), exponents of two
    mxfp8-quantized   weight             float8, (out, in)
                      weight_scale       the same

Packed numbers and zero points are stored plus half their range, without gaps. Numbers are ``(q -
zero) * scale``. Activations stay as they are: what is lost by rounding them too is not lost here.

Source: the compressed-tensors library's description of its formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from typing_extensions import override

from blazr.core.errors import CheckpointError
from blazr.nn.quant.hf.fp8 import FLOATS, SCALES, fp8_layout
from blazr.nn.quant.hf.microscaling import has_exponents, microscaling_layout
from blazr.nn.quant.hf.nvfp4 import nvfp4_layout
from blazr.nn.quant.hf.scheme import (
    MAX_SIZE,
    Grid,
    GridLayout,
    Layout,
    Parts,
    QuantizationConfig,
    Read,
    Scheme,
    agree,
    check_groups,
    group_size,
    need,
)
from blazr.nn.quant.hf.words import WORD, span, unpack

WIDTHS = (2, 3, 4, 5, 6, 7, 8)
_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "naive-quantized",
    "dense",
)


class CompressedLayout(GridLayout):
    """Whole numbers as compressed-tensors stores them, packed in words or not.

    Args:
        shape: (out, in).
        bits: Of a number.
        size: Columns of a group, where there is no ``weight_g_idx``.
        packed: Whether numbers are packed in words.
    """

    def __init__(self, shape: tuple[int, int], bits: int, size: int, *, packed: bool) -> None:
        super().__init__(f"compressed-int{bits}", shape)
        self.bits = bits
        self.size = size
        self.packed = packed

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        scales = self._rows(parts["weight_scale"].float(), rows)
        half = 2 ** (self.bits - 1)
        if self.packed:
            words = unpack(parts["weight_packed"][rows], self.bits, 1)
            codes = words[:, : self.shape[1]] - half
        else:
            codes = parts["weight"][rows].int()
        zeros = parts.get("weight_zero_point")
        if zeros is None:
            zeros = torch.zeros_like(scales, dtype=torch.int32)
        elif zeros.dtype == torch.int32:
            lines, inside = span(rows, self.shape[0], self.bits)
            zeros = unpack(zeros[lines], self.bits, 0)[inside] - half
        else:
            zeros = self._rows(zeros.int(), rows)
        groups = parts.get("weight_g_idx")
        return Grid(
            codes=codes,
            scales=scales,
            zeros=zeros,
            size=self.size,
            bits=self.bits,
            low=-half,
            groups=None if groups is None else groups.long(),
        )

    def _rows(self, values: Tensor, rows: slice) -> Tensor:
        """(R, G) of values for the whole matrix, or by rows."""
        values = values.reshape(-1, 1) if values.dim() < 2 else values
        return values.expand(self.shape[0], -1)[rows]


def _check(settings: QuantizationConfig) -> None:
    """Refuse what would change the numbers, and what nothing here computes."""
    for each in (settings, *_groups_of(settings)):
        if each.text("format", _FORMATS[0]) not in {*_FORMATS, "mixed-precision"}:
            raise each.wrong("format", ", ".join(_FORMATS))
    if settings.section("sparsity_config").text("format", "dense") != "dense":
        raise settings.section("sparsity_config").wrong("format", "dense")
    if settings.section("transform_config").raw.get("config_groups"):
        raise settings.wrong("transform_config", "none")


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout | None:
    _check(settings)
    if has_exponents(parts):
        numbers = next(key for key in COMPRESSED_TENSORS.mains if key in parts)
        return microscaling_layout(parts, "compressed", numbers)
    if "weight_packed" in parts:
        if parts["weight_packed"].dtype != "U8":
            return _packed_layout(settings, parts, read)
        return nvfp4_layout(
            parts,
            "compressed-nvfp4",
            numbers="weight_packed",
            whole="weight_global_scale",
            divides=True,
        )
    if parts["weight"].dtype in FLOATS:
        return fp8_layout(parts, "weight_scale", _blocks(settings))
    if parts["weight"].dtype != "I8":
        return None
    rows, columns = need(parts, "weight", ("I8",), 2)
    groups = _groups(parts, rows)
    if "weight_zero_point" in parts:
        zeros = need(parts, "weight_zero_point", ("I8",))
        agree(parts, zeros, parts["weight_scale"].shape, "zero points")
    size = _size(settings, parts, read, columns=columns, groups=groups)
    return CompressedLayout((rows, columns), 8, size, packed=False)


def _packed_layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout:
    need(parts, "weight_shape", ("I64", "I32"), 1)
    rows, words = need(parts, "weight_packed", ("I32",), 2)
    sizes = read("weight_shape").tolist()
    if len(sizes) != 2 or not all(0 < size < MAX_SIZE for size in sizes):
        raise CheckpointError(
            f"{parts['weight_shape'].name[:100]!r} holds no shape.", found=str(sizes)[:100]
        )
    out, columns = sizes
    agree(parts, (out,), (rows,), "rows")
    said = [weights.integer("num_bits", 0) for weights in _weights(settings)]
    widths = [each for each in said if each in WIDTHS] or WIDTHS
    bits = next((b for b in widths if -(-columns * b // WORD) == words), 0)
    if not bits:  # older versions leave bits of a word free where a width does not divide 32
        agree(parts, (words,), (-(-columns * widths[0] // WORD),), "words of a row:")
    groups = _groups(parts, rows)
    if "weight_zero_point" in parts:
        shape = need(parts, "weight_zero_point", ("I32",), 2)
        agree(parts, shape, (-(-rows * bits // WORD), groups), "zero points")
    size = _size(settings, parts, read, columns=columns, groups=groups)
    return CompressedLayout((rows, columns), bits, size, packed=True)


def _size(
    settings: QuantizationConfig, parts: Parts, read: Read, *, columns: int, groups: int
) -> int:
    """Columns of a group, where groups are runs of columns; else the index of groups is sound."""
    if "weight_g_idx" in parts:
        check_groups(parts, "weight_g_idx", read, columns=columns, groups=groups)
        return 1
    sizes = (weights.integer("group_size", 0) for weights in _weights(settings))
    wanted = next((each for each in sizes if each > 0 and -(-columns // each) == groups), 0)
    return group_size(parts, columns, groups, wanted)


def _groups(parts: Parts, rows: int) -> int:
    """How many groups a row has, by the shape of the scales."""
    shape = need(parts, "weight_scale", SCALES)
    if shape in {(), (1,)}:
        return 1
    agree(parts, (shape[0], len(shape)), (rows, 2), "rows of scales")
    return shape[1]


def _blocks(settings: QuantizationConfig) -> list[tuple[int, int]]:
    """The blocks that the settings have for floats; some matrices may have others than the rest."""
    found = []
    for weights in _weights(settings):
        if weights.raw.get("block_structure") is not None:
            found.append(weights.sizes("block_structure", (128, 128)))
        elif (size := weights.integer("group_size", 0)) > 0:
            found.append((1, size))
    return found


def _weights(settings: QuantizationConfig) -> Iterator[QuantizationConfig]:
    for group in _groups_of(settings):
        yield group.section("weights")


def _groups_of(settings: QuantizationConfig) -> Iterator[QuantizationConfig]:
    """The settings of some matrices each."""
    groups = settings.section("config_groups")
    for name in groups.raw:
        yield groups.section(name)


COMPRESSED_TENSORS = Scheme(
    mains=("weight_packed", "weight"),
    others=("weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
            "weight_global_scale"),
    layout=_layout,
    ignored=("input_scale", "input_zero_point", "output_scale", "output_zero_point", "k_scale",
             "v_scale", "q_scale", "k_zero_point", "v_zero_point", "q_zero_point",
             "input_global_scale"),
)  # fmt: skip
