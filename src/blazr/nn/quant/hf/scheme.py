"""What a quantization method is: which tensors stand for a matrix, and how they are decoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from typing_extensions import override

from blazr.core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from blazr.nn.operands.floats import ScaledFloats

MAX_SIZE = 2**31


class StoredPart(Protocol):
    """A stored tensor as its file's header describes it."""

    @property
    def name(self) -> str:
        """As the file spells it."""

    @property
    def dtype(self) -> str:
        """As safetensors spells it, for example ``"I32"``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""


Parts = Mapping[str, StoredPart]
Read: TypeAlias = "Callable[[str], Tensor]"


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of a matrix as whole numbers on a scale: ``(codes - zeros) * scales + offsets``.

    Args:
        codes: (R, in), whole numbers.
        scales: (R, G), float32.
        zeros: (R, G), whole numbers.
        size: Columns of a group, where groups are runs of columns; the last may be shorter.
        bits: Of a code.
        low: The smallest number that a code can be.
        groups: (in,) int64, the group of each column, where they are not runs.
        offsets: (R, G), float32; None for nothing.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    size: int
    bits: int
    low: int = 0
    groups: Tensor | None = None
    offsets: Tensor | None = None

    def decode(self) -> Tensor:
        """The numbers, (R, in) float32."""
        found = (self.codes - self._spread(self.zeros)).float() * self._spread(self.scales)
        return found if self.offsets is None else found + self._spread(self.offsets)

    def _spread(self, values: Tensor) -> Tensor:
        """(R, G) to (R, in)."""
        if self.groups is not None:
            return values[:, self.groups]
        return values.repeat_interleave(self.size, 1)[:, : self.codes.shape[1]]


class Layout(ABC):
    """How the tensors of one matrix stand for its numbers.

    Args:
        name: For people: method and width, for example ``"gptq-int4"``.
        shape: (out, in), of the matrix.
    """

    is_grid = False  # whether its numbers are whole numbers on a scale
    is_float = False  # whether they are small floats with scales
    packed_as = ""  # the GGML type that holds the same numbers but for a factor, where CPUs pack it

    def __init__(self, name: str, shape: tuple[int, int]) -> None:
        self.name = name
        self.shape = shape

    @abstractmethod
    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Tensor:
        """Some rows as plain numbers, what the method's own library makes of them.

        Args:
            parts: The stored tensors, by their suffix.
            rows: Which, without a step.

        Returns:
            (R, in), float32.
        """

    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid | None:
        """The same rows as whole numbers on a scale, or None where they are something else."""
        del parts, rows
        return None

    def floats(self, parts: Mapping[str, Tensor]) -> ScaledFloats | None:
        """The matrix as small floats with scales, in the same memory; None if it is none."""
        del parts
        return None


class GridLayout(Layout):
    """A layout whose numbers are whole numbers on a scale."""

    is_grid = True

    @override
    @abstractmethod
    def grid(self, parts: Mapping[str, Tensor], rows: slice) -> Grid:
        """The rows as whole numbers on a scale."""

    @override
    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Tensor:
        return self.grid(parts, rows).decode()


class FloatLayout(Layout):
    """A layout whose numbers are small floats with scales."""

    is_float = True

    @override
    @abstractmethod
    def floats(self, parts: Mapping[str, Tensor]) -> ScaledFloats:
        """The matrix as small floats with scales."""

    @override
    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Tensor:
        return self.floats(parts).decode(rows)


@dataclass(frozen=True, slots=True)
class Scheme:
    """A quantization method.

    Args:
        mains: What the name of a matrix's first tensor ends with; one of them stands for
            ``weight``.
        others: What the names of the tensors that may go with it end with.
        ignored: Ends of names of tensors that weights do not need, such as scales of activations.
        layout: From the settings, the tensors found (by their endings) and a reader of small ones:
            the layout, or None for a plain tensor.
    """

    mains: tuple[str, ...]
    others: tuple[str, ...]
    layout: Callable[[QuantizationConfig, Parts, Read], Layout | None]
    ignored: tuple[str, ...] = ()


class QuantizationConfig:
    """``quantization_config`` while it is read; nothing in it is trusted.

    Args:
        raw: Its contents.
        source: For messages.
    """

    def __init__(
        self, raw: Mapping[str, object], source: str = "config.json: quantization_config"
    ) -> None:
        self.raw = raw
        self.source = source

    def integer(self, key: str, default: int) -> int:
        """A whole number.

        Raises:
            ConfigError: It is something else.
        """
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_SIZE:
            raise self.wrong(key, "a whole number")
        return value

    def text(self, key: str, default: str) -> str:
        """A string.

        Raises:
            ConfigError: It is something else.
        """
        value = self.raw.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a string")
        return default if value is None else value

    def sizes(self, key: str, default: tuple[int, int]) -> tuple[int, int]:
        """Two sizes.

        Raises:
            ConfigError: It is something else.
        """
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, list) or len(value) != len(default):
            raise self.wrong(key, "two sizes")
        first, second = value
        for size in value:
            if not isinstance(size, int) or not 1 <= size <= MAX_SIZE:
                raise self.wrong(key, "two sizes")
        return first, second

    def section(self, key: str) -> QuantizationConfig:
        """A nested object; empty where it is missing.

        Raises:
            ConfigError: It is something else.
        """
        value = self.raw.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return QuantizationConfig(value or {}, f"{self.source}.{key[:40]}")

    def wrong(self, key: str, expected: str) -> ConfigError:
        """The error about a key."""
        return ConfigError(
            f"{self.source}: {key!r} is not supported.",
            found=repr(self.raw.get(key))[:100],
            expected=expected,
            hint="take the model unquantized, or quantized in another way",
        )


def need(
    parts: Parts, key: str, dtypes: Iterable[str], num_dims: int | None = None
) -> tuple[int, ...]:
    """The shape of a part that must be there, of so many dimensions or, with None, of any.

    Raises:
        CheckpointError: It is not, or is of another kind.
    """
    part = parts.get(key)
    beside = next(iter(parts.values())).name
    if part is None:
        raise CheckpointError(
            f"tensor {beside[:100]!r} has no {key!r} beside it.",
            hint="the file is incomplete: download it again",
        )
    if num_dims is None:
        num_dims = len(part.shape)
    if part.dtype not in set(dtypes) or len(part.shape) != num_dims:
        raise CheckpointError(
            f"tensor {part.name[:100]!r} is not what its quantization needs.",
            found=f"{part.dtype} {list(part.shape)}"[:100],
            expected=f"{' or '.join(dtypes)} of {num_dims} dimensions",
        )
    return part.shape


def group_size(parts: Parts, columns: int, groups: int, wanted: int) -> int:
    """Columns of a group: as many as the settings say where that fits, else equal shares.

    Args:
        parts: The tensors, for messages.
        columns: Of the matrix.
        groups: How many there are.
        wanted: What the settings say; none where it is not above 0.

    Raises:
        CheckpointError: The groups do not cover the columns.
    """
    if wanted > 0 and -(-columns // wanted) == groups:
        return wanted
    agree(parts, (columns % max(groups, 1),), (0,), "columns beside whole groups:")
    return max(columns // max(groups, 1), 1)


def check_groups(parts: Parts, key: str, read: Read, *, columns: int, groups: int) -> None:
    """Refuse an index that does not say for each column which group it belongs to.

    Args:
        parts: The tensors.
        key: Which of them is the index.
        read: Reads it.
        columns: Of the matrix.
        groups: How many there are.

    Raises:
        CheckpointError: It does not.
    """
    agree(parts, need(parts, key, ("I32", "I64"), 1), (columns,), "g_idx")
    index = read(key)
    within = not len(index) or (int(index.min()) >= 0 and int(index.max()) < groups)
    agree(parts, (within,), (True,), "columns are of groups there are:")


def agree(parts: Parts, found: tuple[int, ...], expected: tuple[int, ...], what: str) -> None:
    """Refuse parts whose shapes do not fit each other.

    Raises:
        CheckpointError: They do not.
    """
    if found != expected:
        first = next(iter(parts.values()))
        raise CheckpointError(
            f"the tensors of {first.name[:100]!r} do not fit each other.",
            found=f"{what} {list(found)}"[:100],
            expected=str(list(expected)),
            hint="the file is damaged, or quantized in a way that blazr does not know",
        )
