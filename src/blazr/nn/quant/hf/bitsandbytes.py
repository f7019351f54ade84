"""bitsandbytes: four-bit codes of a table with a scale per block, or int8 with a scale per row.

    NF4, FP4   weight                       uint8, (out * in / 2, 1): two codes a byte, high first
               weight.quant_map             float32, (16,): what the codes stand for
               weight.absmax                float32, a scale per block of the flattened matrix
               weight.quant_state.*         JSON: shape, block sizes, offset
      nested   weight.absmax                uint8: codes of a second table
               weight.nested_quant_map      float32, (256,)
               weight.nested_absmax         float32, a scale per block of scales
    int8       weight                       int8, (out, in)
               SCB                          float32, (out,): the largest magnitude of a row

Source: Dettmers et al. 2023, arXiv:2305.14314 (NF4, double quantization), 2022, arXiv:2208.07339
(int8), and the library's ``QuantState``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from blazr.core.errors import CheckpointError
from blazr.nn.operands.floats import ScaledFloats
from blazr.nn.quant.hf.scheme import (
    MAX_SIZE,
    Grid,
    Layout,
    Parts,
    QuantizationConfig,
    Read,
    Scheme,
    agree,
    need,
)

_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
_MAX_STATE_BYTES = 2**16
# The library's own constant: 1 / 127 in float32.
_INVERSE_127 = 7.874015718698502e-3


@dataclass(frozen=True, slots=True)
class _State:
    """What the JSON of a weight says."""

    shape: tuple[int, int]
    block: int
    nested_block: int
    nested_offset: float


class Int8Layout(Layout):
    """Rows of int8, each by its largest magnitude."""

    is_grid = True

    @override
    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Tensor:
        return parts["weight"][rows].float() * parts["SCB"][rows, None] * _INVERSE_127

    @override
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        # the product of two scales is rounded once more
        scales = parts["SCB"][rows, None].float() * _INVERSE_127
        codes, zeros = parts["weight"][rows].int(), torch.zeros_like(scales, dtype=torch.int32)
        return Grid(codes, scales, zeros, size=self.shape[1], bits=8, low=-128)


class TableLayout(Layout):
    """Codes of a table, scaled by blocks.

    Args:
        state: What the weight's JSON says.
    """

    def __init__(self, state: _State) -> None:
        super().__init__("bitsandbytes-4bit", state.shape)
        # else blocks, or pairs of codes, go on in the next row
        self.is_float = state.shape[1] % state.block == 0 and state.shape[1] % 2 == 0
        self.state = state

    @override
    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Tensor:
        columns, block = self.shape[1], self.state.block
        start, stop, _ = rows.indices(self.shape[0])
        low, high = start * columns, stop * columns
        pairs = parts["weight"].flatten()[low // 2 : -(-high // 2)]
        codes = torch.stack((pairs >> 4, pairs & 15), -1).flatten()[low % 2 :][: high - low]
        scales = self._scales(parts, low // block, -(-high // block))
        scales = scales.repeat_interleave(block)[low % block :][: high - low]
        values = parts["weight.quant_map"][codes.int()] * scales
        return values.view(stop - start, columns)

    @override
    def floats(self, parts: Mapping[str, Tensor]) -> ScaledFloats | None:
        if not self.is_float:
            return None
        rows, columns = self.shape
        pairs = parts["weight"].view(rows, -1)
        scales = self._scales(parts, 0, rows * columns // self.state.block)
        return ScaledFloats(
            pairs << 4 | pairs >> 4,  # here the first is the upper half
            scales.view(rows, -1),
            (1, self.state.block),
            table=parts["weight.quant_map"],
        )

    def _scales(self, parts: Mapping[str, Tensor], first: int, last: int) -> Tensor:
        """The scales of some blocks, float32."""
        scales = parts["weight.absmax"][first:last]
        if scales.dtype != torch.uint8:
            return scales.float()
        places = torch.arange(first, last, device=scales.device)
        outer = parts["weight.nested_absmax"][places // self.state.nested_block]
        numbers = parts["weight.nested_quant_map"][scales.int()]
        return numbers * outer + self.state.nested_offset


def _layout(settings: QuantizationConfig, parts: Parts, read: Read) -> Layout | None:
    del settings
    if parts["weight"].dtype == "I8":
        rows, columns = need(parts, "weight", ("I8",), 2)
        agree(parts, need(parts, "SCB", ("F32",), 1), (rows,), "SCB")
        return Int8Layout("bitsandbytes-int8", (rows, columns))
    if parts["weight"].dtype != "U8":
        return None
    key = next((key for key in _STATES if key in parts), _STATES[0])
    need(parts, key, ("U8",), 1)
    state = _parse_state(parts[key].name, parts[key].shape[0], read(key))
    numbers = state.shape[0] * state.shape[1]
    agree(parts, (math.prod(parts["weight"].shape),), (-(-numbers // 2),), "bytes")
    agree(parts, need(parts, "weight.quant_map", ("F32",), 1), (16,), "quant_map")
    blocks = -(-numbers // state.block)
    agree(parts, need(parts, "weight.absmax", ("F32", "U8"), 1), (blocks,), "absmax")
    if parts["weight.absmax"].dtype == "U8":
        agree(parts, need(parts, "weight.nested_quant_map", ("F32",), 1), (256,), "quant_map")
        outer = -(-blocks // state.nested_block)
        agree(parts, need(parts, "weight.nested_absmax", ("F32",), 1), (outer,), "nested_absmax")
    return TableLayout(state)


def _parse_state(name: str, size: int, stored: Tensor) -> _State:
    """The JSON of a weight.

    Raises:
        CheckpointError: It is not what the library writes.
    """
    try:
        if size > _MAX_STATE_BYTES:
            raise ValueError  # noqa: TRY301
        state = json.loads(bytes(stored.tolist()))
        out, inner = state["shape"]
        block, nested = state["blocksize"], state.get("nested_blocksize", 1)
        offset = float(state.get("nested_offset", 0.0))
        sizes = (out, inner, block, nested)
        if not all(type(each) is int and 0 < each < MAX_SIZE for each in sizes):
            raise ValueError  # noqa: TRY301
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"tensor {name[:100]!r} cannot be read.",
            expected="JSON with the weight's shape of two sizes, blocksize, nested_blocksize",
            hint="the file is damaged: download it again",
        ) from error
    return _State((out, inner), block, nested, offset)


BITSANDBYTES = Scheme(
    mains=("weight",),
    others=(
        "SCB",
        "weight.absmax",
        "weight.quant_map",
        "weight.nested_absmax",
        "weight.nested_quant_map",
        *_STATES,
    ),
    layout=_layout,
    ignored=("weight_format",),
)
