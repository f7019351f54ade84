"""Packed weights: which parameters are packed, and the order of bytes that the CPU kernels read.

A user asks for ``"q8_0"``, for example, or for ``"experts=q4_0,lm_head=q8_0"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from typing_extensions import override

from blazr.core.errors import ConfigError
from blazr.nn.device import zero_bytes
from blazr.nn.operands.lora import UNCHANGED, LoraDelta, LoraDeltas
from blazr.nn.operands.packing import GROUP, PACKINGS, TILE, BlockType, Packed, Packing
from blazr.nn.ops.op import op
from blazr.nn.ops.packed import (
    interleave,
    packed_gated_linear,
    packed_linear,
    packed_rows,
)
from blazr.nn.quant import QUANTIZERS
from blazr.nn.quant.exact import ShiftedWeight, mxfp4_of_floats, nvfp4_blocks
from blazr.nn.quant.gguf import GGML_TYPES
from blazr.nn.quant.gguf.split_blocks import CodesAndScales, SplitBlocks
from blazr.nn.quant.weight import FloatWeight, GgufWeight, StoredStack, Weight

KEEP = "none"
# Parts of a network by what their parameters' names hold, the most particular first.
PARTS: tuple[tuple[str, str], ...] = (
    ("lm_head", "lm_head."),
    ("embedding", "embed_tokens."),
    ("experts", ".experts."),
    ("mixer", ".mixer."),
    ("feed_forward", ".feed_forward."),
)
# What the output head has in place of four bits: its rounding goes straight into the scores.
_HEAD = {"q4_0": "q8_0", "q4_k": "q8_0", "int4": "int8"}
# What weights have in place of a quantization whose blocks their rows do not fill.
SHORTER = {"q4_k": "q8_0"}
# How many blocks of 32 may share a scale and a zero point, most first.
_RUNS = (4, 2)
_CENTER, _LARGEST_ZERO = 8, 255  # the zero point of Q4_0, and the largest of int4
# The GGML types that packings of no GGML type are packed from.
_SOURCES = {"int8": "Q8_0", **{f"int4 by {size}": "Q4_0" for size in (32, 64, 128)}}


@dataclass(frozen=True, slots=True)
class QuantizePolicy:
    """What to do with each weight while loading.

    Args:
        default: A name of QUANTIZERS for all weights without a rule, or None to keep them.
        rules: By part: a name of QUANTIZERS, or ``"none"``.
    """

    default: str | None = None
    rules: Mapping[str, str] = field(default_factory=dict)

    def choose(self, parameter: str, *, is_head: bool = False) -> str | None:
        """The quantizer of a parameter, or None to keep it as it is.

        Args:
            parameter: Its name in the network.
            is_head: Whether scores are computed with it; an embedding may be the head, too.
        """
        name = self.default
        if is_head and name is not None:
            name = _HEAD.get(name, name)
        parts = [part for part, mark in PARTS if mark in f".{parameter}"]
        for part in ["lm_head", *parts] if is_head else parts:
            if part in self.rules:
                name = self.rules[part]
                break
        return None if name == KEEP else name


def parse_policy(text: str | None) -> QuantizePolicy:
    """Read what the user asks for.

    Args:
        text: Names of QUANTIZERS, alone or behind a part and ``=``, with commas between them; None
            asks for nothing.

    Raises:
        ConfigError: A part is unknown, or said twice.
        UnknownNameError: A quantization is unknown.
    """
    default: str | None = None
    rules: dict[str, str] = {}
    for item in text.split(",") if text else ():
        part, _, name = (word.strip().lower() for word in item.rpartition("="))
        if name != KEEP and name not in QUANTIZERS:
            QUANTIZERS[name]  # raises, and lists the names
        if not part and default is None:
            default = name
        elif part in dict(PARTS) and part not in rules:
            rules[part] = name
        else:
            raise ConfigError(
                "what to quantize cannot be read.",
                found=repr(item)[:100],
                expected=f"a quantization, or part=quantization, each part once; parts:"
                f" {', '.join(dict(PARTS))}",
            )
    return QuantizePolicy(default, rules)


class PackedWeight(Weight):
    """16 rows interleaved; products round their activations to int8 (see ``nn/ops/packed.py``).

    Args:
        packing: The layout.
        blocks: (..., groups, superblocks, bytes), uint8.
        rows: ``out``.
        dtype: What products and rows come in.
        row_scales: (..., out), float32: what rows are multiplied with; None for 1.
    """

    blocks: Tensor
    row_scales: Tensor | None
    operand: Packed

    def __init__(
        self,
        packing: Packing,
        blocks: Tensor,
        rows: int,
        dtype: torch.dtype,
        *,
        row_scales: Tensor | None = None,
    ) -> None:
        super().__init__((*blocks.shape[:-3], rows, blocks.shape[-2] * packing.columns), dtype)
        self.packing = packing
        self.register_buffer("blocks", blocks)
        self.register_buffer("row_scales", row_scales)
        self._matrices: dict[int, PackedWeight] = {}
        self.operand = Packed(packing, blocks, rows, row_scales)

    @override
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return packed_linear(x, self.operand, bias)

    @override
    def adapted(self, x: Tensor, lora: LoraDelta, bias: Tensor | None = None) -> Tensor:
        return packed_linear(x, self.operand, bias, lora)

    @override
    def gated(
        self,
        x: Tensor,
        up: Weight,
        loras: LoraDeltas = UNCHANGED,
    ) -> Tensor:
        if isinstance(up, PackedWeight):
            other = up.operand
            if other.packing is self.packing and other.blocks.shape == self.blocks.shape:
                return packed_gated_linear(x, self.operand, other, loras)
        return super().gated(x, up, loras)

    @override
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        if len(self.shape) == 2:
            out = torch.empty(self.shape, dtype=dtype)
            return packed_rows(out, self.operand, torch.arange(self.shape[0]))
        return super().dequantize(dtype)

    @override
    def rows(self, ids: Tensor) -> Tensor:
        out = torch.empty(ids.numel(), self.shape[1], dtype=self.dtype)
        return packed_rows(out, self.operand, ids.flatten()).view(*ids.shape, -1)

    @override
    def select(self, index: int) -> PackedWeight:
        found = self._matrices.get(index)
        if found is None:
            found = PackedWeight(
                self.packing,
                self.blocks[index],
                self.shape[-2],
                self.dtype,
                row_scales=None if self.row_scales is None else self.row_scales[index],
            )
            self._matrices[index] = found
        return found

    def extra_repr(self) -> str:
        """For people: the shape."""
        return f"packed, {self.packing.bits} bits, {list(self.shape)}"


def can_pack(kind: BlockType, dtype: torch.dtype) -> bool:
    """Whether a CPU's kernels compute with such blocks in a dtype."""
    return kind.name in PACKINGS and packed_linear.has_kernel(dtype)


def pack_weight(weight: Weight) -> Weight:
    """The same numbers in the order that CPU kernels read; the weight itself if they have none."""
    if weight.device.type != "cpu":
        return weight
    if isinstance(weight, GgufWeight):
        return _packed(weight) if can_pack(weight.kind, weight.dtype) else weight
    if isinstance(weight, ShiftedWeight):
        return _pack_shifted(weight)
    if isinstance(weight, FloatWeight):
        return _pack_floats(weight)
    if isinstance(weight, StoredStack):
        each = [pack_weight(weight.select(i)) for i in range(weight.shape[0])]
        weight.matrices = nn.ModuleList(each)
        return _one_stack(each) or weight
    return weight


def _one_stack(matrices: Sequence[Weight]) -> PackedWeight | None:
    """Matrices of one packing side by side, as kernels take experts; None for others."""
    packed = [each for each in matrices if isinstance(each, PackedWeight)]
    kinds = {(each.packing, each.blocks.shape, each.row_scales is None) for each in packed}
    if len(packed) < len(matrices) or len(kinds) != 1:
        return None
    first = packed[0]
    scales = [each.row_scales for each in packed if each.row_scales is not None]
    blocks = zero_bytes(torch.Size((len(packed), *first.blocks.shape)))
    for room, each in zip(blocks, packed, strict=True):
        room.copy_(each.blocks)
    row_scales = torch.stack(scales) if scales else None
    return PackedWeight(first.packing, blocks, first.shape[0], first.dtype, row_scales=row_scales)


def _pack_shifted(weight: ShiftedWeight) -> Weight:
    """Pack a weight with its scale and shift, if the packing can hold the shift as zero points."""
    inner, scale = weight.inner, weight.scale
    if not isinstance(inner, GgufWeight) or not can_pack(inner.kind, inner.dtype):
        return weight
    zeros = None if weight.shift is None else _zeros(inner, scale, weight.shift)
    if weight.shift is not None and zeros is None:
        weight.inner = _packed(inner)
        return weight
    packed = _packed(inner, scale, zeros)
    return (
        packed
        if weight.order is None
        else ShiftedWeight(packed, order=weight.order, piece=weight.piece)
    )


def _pack_floats(weight: FloatWeight) -> Weight:
    """Pack floats of four bits; others stay as they are."""
    floats, dtype = weight.operand, weight.dtype
    kind, blocks = GGML_TYPES["MXFP4"], mxfp4_of_floats(floats)
    if blocks is None:
        kind, blocks = GGML_TYPES["NVFP4"], nvfp4_blocks(floats)
    if blocks is None or not can_pack(kind, dtype):
        return weight
    scale = None
    if floats.whole is not None:
        whole = floats.whole.float()
        scale = whole.reciprocal() if floats.is_divided else whole
        scale = scale.unsqueeze(-1).expand(weight.shape[:-1]).contiguous()
    return _packed(GgufWeight(blocks, kind, dtype), scale)


def _zeros(inner: GgufWeight, scale: Tensor | None, shift: Tensor) -> Tensor | None:
    """The zero points of groups, (out, G) uint8, where the shift is due to them; else None."""
    if inner.kind.name != "Q4_0":
        return None
    step = inner.shape[1] // inner.kind.length // shift.shape[1]
    scales = _block_scales(inner)[:, ::step].contiguous().view(torch.float16).float().squeeze(-1)
    if scale is not None:
        scales = scales * scale[:, None]
    zeros = torch.where(scales == 0, _CENTER, (_CENTER - shift / scales).round())
    fits = bool(((zeros >= 0) & (zeros <= _LARGEST_ZERO)).all())
    return zeros.byte() if fits and torch.equal((_CENTER - zeros) * scales, shift) else None


def _packed(
    weight: GgufWeight, scale: Tensor | None = None, zeros: Tensor | None = None
) -> PackedWeight:
    rows = weight.shape[-2]
    blocks = weight.blocks.flatten(0, -2)
    name = _packing_of(weight, zeros)
    packing = PACKINGS[name]
    if name == "int8":
        own = _block_scales(weight)[..., 0, :].contiguous().view(torch.float16).squeeze(-1).float()
        scale = own if scale is None else own * scale
    if zeros is not None:
        zeros = zeros.repeat_interleave(weight.shape[-1] // packing.columns // zeros.shape[1], 1)
    stack = weight.shape[:-2]
    if rows % GROUP == 0 or stack.numel() == 1:
        packed = pack_blocks(name, blocks, zeros)
        packed = packed.view(*stack, -1, *packed.shape[1:])
    else:
        each = [pack_blocks(name, part) for part in blocks.split(rows)]
        packed = torch.stack(each).view(*stack, *each[0].shape)
    return PackedWeight(packing, packed, rows, weight.dtype, row_scales=scale)


def _packing_of(weight: GgufWeight, zeros: Tensor | None) -> str:
    """The packing that takes least memory: a scale that blocks share is stored once."""
    name, count = weight.kind.name, weight.shape[-1] // weight.kind.length
    if name == "Q8_0" and count > 1 and _share_scales(weight, count):
        return "int8"
    if name != "Q4_0":
        return name
    whole = count if zeros is None else count // zeros.shape[1]  # blocks with one zero point
    for run in _RUNS:
        if whole % run == 0 and _share_scales(weight, run):
            return f"int4 by {run * weight.kind.length}"
    return name if zeros is None else "int4 by 32"


def _block_scales(weight: GgufWeight) -> Tensor:
    """The bytes of the scales of Q8_0 or Q4_0, (..., out, blocks, 2)."""
    blocks: Tensor = weight.blocks.unflatten(-1, (-1, weight.kind.nbytes))
    return blocks[..., :2]


def _share_scales(weight: GgufWeight, run: int) -> bool:
    """Whether all runs of so many blocks have one scale each."""
    scales = _block_scales(weight).flatten(0, -3)
    # the first row alone tells most weights whose scales differ
    parts = (part.unflatten(1, (-1, run)) for part in (scales[:1], scales))
    return all(bool((part == part[:, :, :1]).all()) for part in parts)


def pack_blocks(name: str, blocks: Tensor, zeros: Tensor | None = None) -> Tensor:
    """Pack a matrix of blocks.

    Args:
        name: A name of PACKINGS. int8 is packed from blocks of Q8_0 and without their scales, int4
            from blocks of Q4_0, of which those of a superblock have the same scale.
        blocks: (out, bytes of a row), uint8.
        zeros: (out, superblocks), uint8: the zero points of int4; None for 8.

    Returns:
        (out / 16 rounded up, superblocks, bytes), uint8.
    """
    source = GGML_TYPES[_SOURCES.get(name, name)]
    supers = blocks.shape[1] // source.row_bytes(PACKINGS[name].columns)
    with torch.no_grad():
        return pack(blocks, name, supers, zeros)


@op
def pack(blocks: Tensor, name: str, supers: int, zeros: Tensor | None) -> Tensor:
    """Rows of blocks in the order that kernels read them; see ``pack_blocks``.

    Args:
        blocks: (out, bytes of a row), uint8.
        name: A name of PACKINGS.
        supers: Superblocks of a row.
        zeros: (out, superblocks), uint8: the zero points; None for 8.

    Returns:
        (out / 16 rounded up, superblocks, bytes), uint8.
    """
    rows = len(blocks)
    packing = PACKINGS[name]
    out = torch.empty(-(-rows // GROUP), supers, packing.nbytes, dtype=torch.uint8)
    if zeros is None:
        zeros = blocks.new_tensor(8).expand(rows, supers)
    step = max(1, TILE // (GROUP * max(1, supers * packing.columns)))
    for low in range(0, len(out), step):  # a tile of rows at a time
        part = slice(low * GROUP, (low + step) * GROUP)
        tile = blocks[part]
        codes, scales = _split(name, tile.reshape(len(tile) * supers, -1))
        if packing.scales == "half, zero":
            scales.append(zeros[part].reshape(-1, 1, 1))
        each = [before.unflatten(0, (-1, supers)) for before in scales]
        out[low : low + step] = interleave(packing, codes.view(len(tile), -1), each)
    return out


def _split(name: str, blocks: Tensor) -> CodesAndScales:
    """Codes and scales of blocks, (N, bytes) uint8, as the packing of that name has them."""
    if name in {"Q8_0", "int8"}:
        return blocks[:, 2:] ^ 0x80, [blocks[:, None, :2]] if name == "Q8_0" else []
    decoder = GGML_TYPES[_SOURCES.get(name, name)].decoder
    assert isinstance(decoder, SplitBlocks)
    if name not in _SOURCES:
        return decoder.split(blocks)
    codes, scales = decoder.split(blocks.reshape(-1, GGML_TYPES["Q4_0"].nbytes))
    # of blocks that have the same scale, the first one's
    return codes.view(len(blocks), -1), [scales[0].view(len(blocks), -1, 2)[:, :1]]
