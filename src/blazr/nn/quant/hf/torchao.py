"""torchao: tensors of its own kinds, taken apart into those that safetensors can store.

    Int8Tensor, IntxUnpackedToInt8Tensor (whole numbers of fewer bits, too)
        _weight_qdata        int8, (out, in)
        _weight_scale        (out, groups)
        _weight_zero_point   int8, (out, groups), or none
    Int4Tensor
        _weight_qdata        int8, (out, in / 2): two numbers from -8, the first in the lower half
        _weight_scale        (groups, out)
        _weight_zero_point   floats, (groups, out), which are added
    Float8Tensor
        _weight_qdata        float8, (out, in)
        _weight_scale        (out, 1), (1, 1), or one for each block

Whole numbers are ``(q - zero) * scale``, those of Int4Tensor ``q * scale + zero``. What activations
are rounded to is not used. Other kinds, and inputs with a scale of their own (AWQ), are refused.

Source: torchao's ``prototype/safetensors`` and the descriptions of its tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from blazr.core.errors import CheckpointError
from blazr.nn.quant.hf.fp8 import FLOATS, fp8_layout
from blazr.nn.quant.hf.scheme import (
    Grid,
    GridLayout,
    Layout,
    Parts,
    QuantizationConfig,
    Read,
    Scheme,
    agree,
    group_size,
    need,
)

_MAIN, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
_OTHER_KINDS = ("_weight_per_tensor_scale", "_weight_scale_and_zero", "_weight_act_pre_scale",
                "_weight_act_per_tensor_scale")  # fmt: skip
_SCALES = ("F32", "BF16", "F16")
_WIDTH = re.compile(r"int([1-8])")
_NARROW, _WIDE = 4, 8


class IntLayout(GridLayout):
    """Whole numbers in a byte each, of fewer bits or not.

    Args:
        shape: (out, in).
        size: Columns of a group.
        bits: Of a number.
    """

    def __init__(self, shape: tuple[int, int], size: int, bits: int) -> None:
        super().__init__(f"torchao-int{bits}", shape)
        self.size = size
        self.bits = bits

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        codes, scales = parts[_MAIN][rows].int(), parts[_SCALE][rows].float()
        half = 2 ** (self.bits - 1)
        if bool(((codes < -half) | (codes >= half)).any()):
            raise CheckpointError(
                "the numbers of a matrix are not of the width that config.json names.",
                found=f"{int(codes.min())} to {int(codes.max())}",
                expected=f"{-half} to {half - 1}, which have {self.bits} bits",
                hint="the file is damaged: download it again",
            )
        zeros = parts.get(_ZERO)
        zeros = torch.zeros_like(scales) if zeros is None else zeros[rows]
        return Grid(codes, scales, zeros.int(), size=self.size, bits=self.bits, low=-half)


class Int4Layout(GridLayout):
    """Two numbers of four bits in a byte, with numbers that are added to groups.

    Args:
        shape: (out, in).
        size: Columns of a group.
    """

    def __init__(self, shape: tuple[int, int], size: int) -> None:
        super().__init__("torchao-int4", shape)
        self.size = size

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        pairs = parts[_MAIN][rows].view(torch.uint8)
        # codes of two's complement, counted from -8
        codes = (torch.stack((pairs & 15, pairs >> 4), -1).flatten(1) ^ 8).int() - 8
        scales, offsets = (parts[key][:, rows].float().T for key in (_SCALE, _ZERO))
        zeros = torch.zeros_like(scales, dtype=torch.int32)
        return Grid(codes, scales, zeros, self.size, bits=_NARROW, low=-8, offsets=offsets)


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout:
    del read
    other = next((part.name for key, part in parts.items() if key in _OTHER_KINDS), None)
    kind = parts[_MAIN].dtype
    if other is not None or kind not in {"I8", "U8", *FLOATS}:
        raise CheckpointError(
            "a tensor of torchao is of a kind that blazr does not read.",
            found=other[:100] if other else f"{parts[_MAIN].name[:80]!r} of {kind}",
            expected="Int8Tensor, IntxUnpackedToInt8Tensor, Int4Tensor or Float8Tensor, whose"
            " inputs have no scale",
            hint="take the model unquantized, or quantized in another way",
        )
    if kind in FLOATS:
        rows, columns = need(parts, _MAIN, FLOATS, 2)
        count, groups = need(parts, _SCALE, _SCALES, 2)
        block = -(-rows // max(count, 1)), -(-columns // max(groups, 1))
        return fp8_layout(parts, _SCALE, (block,), numbers=_MAIN)
    zeros = parts.get(_ZERO)
    if kind == "U8" or (zeros is not None and zeros.dtype in _SCALES):
        rows, half = need(parts, _MAIN, ("I8", "U8"), 2)
        groups, count = need(parts, _SCALE, _SCALES, 2)
        agree(parts, (count,), (rows,), "rows of scales")
        agree(parts, need(parts, _ZERO, _SCALES, 2), (groups, rows), "zero points")
        size = group_size(parts, 2 * half, groups, 0)
        return Int4Layout((rows, 2 * half), size)
    rows, columns = need(parts, _MAIN, ("I8",), 2)
    count, groups = need(parts, _SCALE, _SCALES, 2)
    agree(parts, (count,), (rows,), "rows of scales")
    if zeros is not None:
        agree(parts, need(parts, _ZERO, ("I8",), 2), (rows, groups), "zero points")
    width = _width(settings, parts[_MAIN].name.removesuffix(f".{_MAIN}"))
    bits = _NARROW if width <= _NARROW else _WIDE
    return IntLayout((rows, columns), group_size(parts, columns, groups, 0), bits)


def _width(settings: QuantizationConfig, module: str) -> int:
    """The bits that the settings give to a matrix's numbers; eight where they do not say it.

    Args:
        settings: With the settings of all, or of each module by its name.
        module: Whose matrix it is.
    """
    if not isinstance(settings.raw.get("quant_type"), Mapping):
        return _WIDE
    data = settings.section("quant_type").section("default").section("_data")
    for key in ("fqn_to_config", "module_fqn_to_config"):
        named = data.section(key)
        if named.raw:
            # patterns are not tried: eight bits hold all numbers
            others = not any(str(name).startswith("re:") for name in named.raw)
            name = module if module in named.raw else "_default" if others else ""
            data = named.section(name).section("_data")
            break
    dtype = data.raw.get("weight_dtype")
    name = str(dtype.get("_data")) if isinstance(dtype, Mapping) else ""
    match = _WIDTH.fullmatch(name)
    return int(match[1]) if match else _WIDE


TORCHAO = Scheme(
    mains=(_MAIN,),
    others=(_SCALE, _ZERO, *_OTHER_KINDS),
    layout=_layout,
    ignored=("_weight_act_quant_scale", "_weight_act_quant_zero_point"),
)
