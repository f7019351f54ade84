"""Layouts of packed weights: as GGUF files store them, and as kernels read them.

``csrc/packings.hpp`` draws the latter. Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

# Elements decoded at a time: what a product needs besides the weight is a few times this.
TILE = 2**18
BLOCK, GROUP = 32, 16  # columns of a block of activations, rows of a group

Scales = Literal[
    "half", "half, minimum", "half, zero", "halves", "exponent", "none", "signed", "minimum"
]


@dataclass(frozen=True, slots=True)
class BlockType:
    """A GGML type.

    Args:
        name: As llama.cpp spells it, for example ``"Q4_K"``.
        number: Its number in GGUF files.
        length: Elements in a block.
        nbytes: Bytes of a block.
        target: ``"module:function"`` of its decoder.
    """

    name: str
    number: int
    length: int
    nbytes: int
    target: str

    @property
    def is_packed(self) -> bool:
        """Whether several numbers share a block."""
        return self.length > 1

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of so many elements, a multiple of ``length``."""
        return columns // self.length * self.nbytes

    @property
    def decoder(self) -> Callable[[Tensor], Tensor]:
        """From (N, nbytes) uint8 to (N, length) float32."""
        module, _, name = self.target.partition(":")
        decoder: Callable[[Tensor], Tensor] = getattr(import_module(module), name)
        return decoder

    def decode(self, data: Tensor) -> Tensor:
        """The numbers in rows of blocks.

        Args:
            data: (..., B * nbytes), uint8.

        Returns:
            (..., B * length), float32.
        """
        rows = data.shape[:-1]
        return self.decoder(data.reshape(-1, self.nbytes)).reshape(*rows, -1)


class Blocks(NamedTuple):
    """A matrix as GGUF files store it, or a stack of them.

    Args:
        kind: What the blocks are.
        blocks: (..., out, bytes of a row), uint8.
    """

    kind: BlockType
    blocks: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., out, in)."""
        *stack, nbytes = self.blocks.shape
        return (*stack, nbytes // self.kind.nbytes * self.kind.length)

    def select(self, index: int) -> Blocks:
        """One matrix of a stack."""
        return Blocks(self.kind, self.blocks[index])

    def decode(self, rows: slice) -> Tensor:
        """Some rows of a matrix as plain numbers: (R, in), float32."""
        return self.kind.decode(self.blocks[rows])


class ShiftedBlocks(NamedTuple):
    """Blocks whose rows are scaled, and whose numbers are then shifted by group; or a stack.

    Args:
        inner: (..., out, in).
        scale: (..., out), float32; None for 1.
        shift: (..., out, G), float32, of equal runs of the inner columns; None for nothing.
        order: (..., in), int64: which of the columns each of the inner ones is; None for the same.
    """

    inner: Blocks
    scale: Tensor | None
    shift: Tensor | None
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., out, in)."""
        return self.inner.shape

    def select(self, index: int) -> ShiftedBlocks:
        """One matrix of a stack."""
        scale, shift, order = (None if each is None else each[index] for each in self[1:])
        return ShiftedBlocks(self.inner.select(index), scale, shift, order)

    def decode(self, rows: slice) -> Tensor:
        """Some rows of a matrix as plain numbers: (R, in), float32."""
        scale, shift = (None if each is None else each[rows] for each in (self.scale, self.shift))
        found = scale_and_shift(self.inner.decode(rows), scale, shift)
        if self.order is None:
            return found
        return found.new_empty(found.shape).index_copy_(-1, self.order, found)


def scale_and_shift(inner: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    """Rows, (..., in), times ``scale`` (...), plus ``shift`` (..., G) for each run of columns."""
    if scale is not None:
        inner = inner * scale.unsqueeze(-1)
    if shift is not None:
        inner = inner + shift.repeat_interleave(inner.shape[-1] // shift.shape[-1], -1)
    return inner


@dataclass(frozen=True, slots=True)
class Packing:
    """A layout.

    Args:
        number: As ``kernels.hpp`` has it.
        blocks: Blocks of 32 columns in a superblock.
        scales: What is before the codes.
        bits: Of a code.
        offset: Taken off each code; of a table's values where there is one.
        parts: Scales of a block, where there are several in a superblock.
        table: What codes stand for, for kinds that are no whole numbers.
        unit: What scales are multiplied with.
    """

    number: int
    blocks: int
    scales: Scales
    bits: int
    offset: int = 0
    parts: int = 1
    table: tuple[int, ...] = ()
    unit: float = 1.0

    @property
    def columns(self) -> int:
        """Of a superblock."""
        return BLOCK * self.blocks

    @property
    def fields(self) -> tuple[int, ...]:
        """The bits of a code as they lie apart, the lowest first."""
        low = 1 << (self.bits.bit_length() - 1)
        return (low, self.bits - low) if low < self.bits else (low,)

    @property
    def rounded_together(self) -> int:
        """Columns of activations that become int8 with one scale.

        Where scales of parts are whole numbers, those of a superblock, whose products are then
        summed as integers; else those of a block.
        """
        return self.columns if self.scales in ("signed", "minimum") else BLOCK

    @property
    def before(self) -> tuple[tuple[int, int], ...]:
        """What a row of a superblock has before its codes: how many of so many bytes each."""
        half, many = (1, 2), (self.blocks * self.parts, 1)
        return {
            "half": (half,),
            "half, minimum": (half, half),
            "half, zero": (half, (1, 1)),
            "halves": ((self.blocks * self.parts, 2),),
            "exponent": ((1, 1),),
            "none": (),
            "signed": (half, many),
            "minimum": (half, half, many, many),
        }[self.scales]

    @property
    def scale_bytes(self) -> int:
        """Bytes of a superblock before its codes."""
        return GROUP * sum(many * size for many, size in self.before)

    @property
    def nbytes(self) -> int:
        """Of a superblock of 16 rows."""
        return self.scale_bytes + self.columns * GROUP * self.bits // 8


class Packed(NamedTuple):
    """A packed matrix, (rows, columns), or a stack of them.

    Args:
        packing: Its layout.
        blocks: (..., groups, superblocks, bytes), uint8.
        rows: Fewer than are in ``blocks`` where some were added.
        row_scales: (..., rows), float32: what rows are multiplied with in the end; or None.
    """

    packing: Packing
    blocks: Tensor
    rows: int
    row_scales: Tensor | None = None

    @property
    def columns(self) -> int:
        """``in``."""
        return self.blocks.shape[-2] * self.packing.columns

    def select(self, index: int) -> Packed:
        """One matrix of a stack."""
        scales = None if self.row_scales is None else self.row_scales[index]
        return Packed(self.packing, self.blocks[index], self.rows, scales)


# What the four-bit codes of IQ4_NL and IQ4_XS stand for.
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Four-bit floats (sign, two bits of exponent, one of mantissa), doubled to be whole.
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
# What digits of codebooks stand for, then the same with a bit above them: the sign, or in the IQ1
# types, whose values are -1, 0 and 1 in eighths, whether one is taken off rather than added.
IQ1_VALUES = (-7, 1, 9, 0, -9, -1, 7, 0)
IQ2_VALUES = (8, 25, 43, 0, -8, -25, -43, 0)
IQ3_XXS_VALUES = (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62)
IQ3_S_VALUES = (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15)

# By GGML type, or for what safetensors files hold.
PACKINGS = {
    "Q8_0": Packing(0, 1, "half", 8, 128),
    "Q4_0": Packing(1, 1, "half", 4, 8),
    "Q4_1": Packing(2, 1, "half, minimum", 4),
    "Q5_0": Packing(3, 1, "half", 5, 16),
    "Q5_1": Packing(4, 1, "half, minimum", 5),
    "IQ4_NL": Packing(5, 1, "half", 4, table=IQ4_VALUES),
    "MXFP4": Packing(6, 1, "exponent", 4, table=E2M1),
    "IQ4_XS": Packing(7, 8, "signed", 4, table=IQ4_VALUES),
    "Q2_K": Packing(8, 8, "minimum", 2, parts=2),
    "Q3_K": Packing(9, 8, "signed", 3, 4, parts=2),
    "Q4_K": Packing(10, 8, "minimum", 4),
    "Q5_K": Packing(11, 8, "minimum", 5),
    "Q6_K": Packing(12, 8, "signed", 6, 32, parts=2),
    "int8": Packing(13, 1, "none", 8, 128),
    "int4 by 32": Packing(14, 1, "half, zero", 4),
    "int4 by 64": Packing(15, 2, "half, zero", 4),
    "int4 by 128": Packing(16, 4, "half, zero", 4),
    "IQ2_XXS": Packing(17, 8, "signed", 3, table=IQ2_VALUES, unit=1 / 8),
    "IQ2_XS": Packing(18, 8, "signed", 3, parts=2, table=IQ2_VALUES, unit=1 / 8),
    "IQ2_S": Packing(19, 8, "signed", 3, parts=2, table=IQ2_VALUES, unit=1 / 8),
    "IQ3_XXS": Packing(20, 8, "signed", 4, table=IQ3_XXS_VALUES, unit=1 / 4),
    "IQ3_S": Packing(21, 8, "signed", 4, table=IQ3_S_VALUES),
    "IQ1_S": Packing(22, 8, "signed", 3, table=IQ1_VALUES, unit=1 / 8),
    "IQ1_M": Packing(23, 8, "signed", 3, parts=2, table=IQ1_VALUES, unit=1 / 8),
    "TQ1_0": Packing(24, 8, "half", 2, 1),
    "TQ2_0": Packing(25, 8, "half", 2, 1),
    "NVFP4": Packing(26, 2, "halves", 4, parts=2, table=E2M1),
    "Q1_0": Packing(27, 4, "half", 1, table=(-1, 1)),
    "Q2_0": Packing(28, 2, "half", 2, 1),
}
