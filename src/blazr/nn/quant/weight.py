"""A weight: one matrix, or a stack of them, plain or as a file stores it.

What is stored is kept as it is, perhaps in a mapped file, and decoded as it is used. The weights
that are made of these while loading are `PackedWeight` and `ShiftedWeight`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from blazr.nn.operands.floats import ScaledFloats, StoredMatrix
from blazr.nn.operands.lora import UNCHANGED, LoraDelta, LoraDeltas
from blazr.nn.operands.packing import TILE, Blocks, BlockType, Packed
from blazr.nn.ops.lora import lora_expand
from blazr.nn.ops.matmul import linear
from blazr.nn.ops.stored import decode_floats, stored_linear
from blazr.nn.quant.hf.scheme import Layout


class Weight(nn.Module, ABC):
    """A matrix (out, in) in storage of its own, or a stack of such matrices (experts).

    It takes the place of a parameter: layers ask it for products and rows and never see how it is
    stored. ``matmul(x)`` is ``x @ dequantize(dtype).T`` up to the order of the sums.

    Args:
        shape: (..., out, in).
        dtype: What products and rows come in.
    """

    # as operations take it, if they do
    operand: Packed | StoredMatrix | None = None

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = torch.Size(shape)
        self.dtype = dtype

    def tensors(self) -> Iterator[Tensor]:
        """What holds it in memory, all on one device."""
        return self.buffers()

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return sum(each.nbytes for each in self.tensors())

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return next(self.tensors()).device

    @abstractmethod
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x W.T + bias``: (..., in) to (..., out), in ``dtype``; for a matrix."""

    def adapted(self, x: Tensor, lora: LoraDelta, bias: Tensor | None = None) -> Tensor:
        """`matmul`, and what adapters change in it."""
        y = self.matmul(x, bias)
        return lora_expand(y.flatten(0, -2), lora, bias).view_as(y)

    def gated(
        self,
        x: Tensor,
        up: Weight,
        loras: LoraDeltas = UNCHANGED,
    ) -> Tensor:
        """``silu(x W.T) * (x up.T)``: the inner half of a gated MLP."""
        gates, ups = (
            weight.matmul(x) if lora is None else weight.adapted(x, lora)
            for weight, lora in zip((self, up), loras, strict=True)
        )
        return F.silu(gates) * ups

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """All of it as a plain tensor; of a stack, one matrix after the other."""
        return torch.stack([self.select(i).dequantize(dtype) for i in range(self.shape[0])])

    @abstractmethod
    def rows(self, ids: Tensor) -> Tensor:
        """Some rows of a matrix, as an embedding gives them: (...) int64 to (..., in)."""

    def select(self, index: int) -> Weight:
        """One matrix of a stack; shares its memory."""
        raise AssertionError(index)  # one matrix is no stack

    def numel(self) -> int:
        """How many numbers it stands for."""
        return self.shape.numel()


class TiledWeight(Weight):
    """A weight as a file stores it, decoded a tile of rows at a time."""

    def tiles(self) -> Iterator[slice]:
        """Runs of rows that are decoded one after the other.

        They are the same whatever the batch: the rows of an input do not see each other.
        """
        rows, step = self.shape[:-1].numel(), max(1, TILE // max(1, self.shape[-1]))
        return (slice(low, low + step) for low in range(0, rows, step))

    @abstractmethod
    def decode(self, tile: slice) -> Tensor:
        """These rows, of a stack those of all matrices end to end: (rows, in), float32."""

    @override
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        out = x.new_empty((*x.shape[:-1], self.shape[0]))
        for tile in self.tiles():
            rows = self.decode(tile).to(x.dtype)
            out[..., tile] = linear(x, rows, None if bias is None else bias[tile])
        return out

    @override
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        whole = torch.empty(self.shape, dtype=dtype, device=self.device)
        flat = whole.flatten(0, -2)
        for tile in self.tiles():
            flat[tile] = self.decode(tile).to(dtype)
        return whole


class GgufWeight(TiledWeight):
    """Rows of GGML blocks, which may lie in a mapped file.

    Args:
        blocks: (..., out, bytes of a row), uint8.
        kind: What the blocks are.
        dtype: What products and rows come in.
    """

    blocks: Tensor

    def __init__(self, blocks: Tensor, kind: BlockType, dtype: torch.dtype) -> None:
        columns = blocks.shape[-1] // kind.nbytes * kind.length
        super().__init__((*blocks.shape[:-1], columns), dtype)
        self.kind = kind
        self.register_buffer("blocks", blocks)

    @property
    @override
    def operand(self) -> Blocks:  # type: ignore[override]  # read only
        return Blocks(self.kind, self.blocks)

    @override
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return stored_linear(x, self.operand, bias)

    @override
    def decode(self, tile: slice) -> Tensor:
        return self.kind.decode(self.blocks.flatten(0, -2)[tile])

    @override
    def rows(self, ids: Tensor) -> Tensor:
        return self.kind.decode(self.blocks[ids]).to(self.dtype)

    @override
    def select(self, index: int) -> GgufWeight:
        return GgufWeight(self.blocks[index], self.kind, self.dtype)

    def extra_repr(self) -> str:
        """For people: the type and the shape."""
        return f"{self.kind.name}, {list(self.shape)}"


class StoredWeight(TiledWeight):
    """A matrix in the tensors of a quantized checkpoint.

    Args:
        layout: How they stand for its numbers.
        parts: The tensors, by their suffix.
        dtype: What products and rows come in.
    """

    def __init__(self, layout: Layout, parts: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__(layout.shape, dtype)
        self.layout = layout
        self.parts = dict(parts)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        device = _device_after(fn, self.device)
        self.parts = {key: part.to(device) for key, part in self.parts.items()}
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    @override
    def tensors(self) -> Iterator[Tensor]:
        return iter(self.parts.values())

    @override
    def tiles(self) -> Iterator[slice]:
        # whole words of whatever is packed along the rows
        step = max(32, TILE // max(1, self.shape[1]) // 32 * 32)
        return (slice(low, min(low + step, self.shape[0])) for low in range(0, self.shape[0], step))

    @override
    def decode(self, tile: slice) -> Tensor:
        return self.layout.decode(self.parts, tile)

    @override
    def rows(self, ids: Tensor) -> Tensor:
        wanted, place = ids.flatten().unique(return_inverse=True)
        each = [self.decode(slice(i, i + 1)) for i in wanted.tolist()]
        found = torch.cat(each) if each else torch.empty(0, self.shape[1], device=self.device)
        return found.to(self.dtype)[place].unflatten(0, ids.shape)

    def extra_repr(self) -> str:
        """For people: the layout and the shape."""
        return f"{self.layout.name}, {list(self.shape)}"


class FloatWeight(TiledWeight):
    """A matrix of floats of eight or four bits with scales, or a stack of them.

    Args:
        floats: The numbers.
        name: Method and width, for people.
        dtype: What products and rows come in.
    """

    operand: ScaledFloats

    def __init__(self, floats: ScaledFloats, name: str, dtype: torch.dtype) -> None:
        super().__init__(tuple(floats.shape), dtype)
        self.operand = floats  # no buffers: what casts a module would cast float8, too
        self.name = name

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        device = _device_after(fn, self.device)
        self.operand = self.operand.map(lambda each: each.to(device))
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    @override
    def tensors(self) -> Iterator[Tensor]:
        return self.operand.tensors()

    @override
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return stored_linear(x, self.operand, bias)

    @override
    def decode(self, tile: slice) -> Tensor:
        return self.operand.decode(tile)

    @override
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        if len(self.shape) > 2:
            return Weight.dequantize(self, dtype)
        whole = torch.empty(self.shape, dtype=dtype, device=self.device)
        for tile in self.tiles():
            decode_floats(whole[tile], self.operand, tile.start)
        return whole

    @override
    def rows(self, ids: Tensor) -> Tensor:
        return self.operand.decode(ids.flatten()).to(self.dtype).unflatten(0, ids.shape)

    @override
    def select(self, index: int) -> FloatWeight:
        return FloatWeight(self.operand.select(index), self.name, self.dtype)

    def extra_repr(self) -> str:
        """For people: the layout and the shape."""
        return f"{self.name}, {list(self.shape)}"


def _device_after(fn: Callable[[Tensor], Tensor], device: torch.device) -> torch.device:
    """Where a module's tensors go by what is done to each; they are not cast."""
    return fn(torch.empty(0, device=device)).device


class PlainWeight(Weight):
    """One matrix of plain numbers, in a stack of which others are packed.

    Args:
        numbers: (out, in).
    """

    numbers: Tensor

    def __init__(self, numbers: Tensor) -> None:
        super().__init__(tuple(numbers.shape), numbers.dtype)
        self.register_buffer("numbers", numbers)

    @override
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear(x, self.numbers, bias)

    @override
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        return self.numbers.to(dtype)

    @override
    def rows(self, ids: Tensor) -> Tensor:
        return self.numbers[ids]


class StoredStack(Weight):
    """Several matrices of one shape: experts.

    Args:
        matrices: One each.
    """

    def __init__(self, matrices: Sequence[Weight]) -> None:
        super().__init__((len(matrices), *matrices[0].shape), matrices[0].dtype)
        self.matrices = nn.ModuleList(matrices)

    @override
    def tensors(self) -> Iterator[Tensor]:
        for index in range(self.shape[0]):
            yield from self.select(index).tensors()

    @override
    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        raise AssertionError(x.shape, bias)  # products are of one matrix

    @override
    def rows(self, ids: Tensor) -> Tensor:
        raise AssertionError(ids.shape)  # rows are of one matrix

    @override
    def select(self, index: int) -> Weight:
        matrix = self.matrices[index]
        assert isinstance(matrix, Weight)
        return matrix


def named_weights(module: nn.Module) -> dict[str, Tensor | Weight]:
    """Every parameter of a network by its name, packed ones as the weights they are."""
    found: dict[str, Tensor | Weight] = dict(module.named_parameters())
    outermost = None
    for name, part in module.named_modules():  # a module comes before what it is made of
        is_inner = outermost is not None and name.startswith(f"{outermost}.")
        if isinstance(part, Weight) and not is_inner:
            found[name] = part
            outermost = name
    return found


def stored_weights(module: nn.Module) -> Iterator[Tensor | Weight]:
    """Every parameter of a network, packed ones as the weights they are."""
    yield from named_weights(module).values()
