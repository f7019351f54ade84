"""Writing files of weights, one tensor after the other, so that none has to wait in memory."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from blazr.core.errors import CapacityError, ConfigError
from blazr.core.files import FULL, try_lock
from blazr.core.gguf_header import DEFAULT_ALIGNMENT, MAGIC, SCALARS, VERSIONS, Value
from blazr.models.checkpoint.base import ELEMENT_TYPES, element_type
from blazr.models.checkpoint.gguf import type_numbers
from blazr.nn.quant.gguf import GGML_TYPES

if TYPE_CHECKING:
    from torch import Tensor

_SAFETENSORS_ALIGNMENT = 8  # of the data
# GGUF's value types: their numbers, and of scalars the letters by which struct packs them.
_BOOL, _STRING, _ARRAY = 7, 8, 9
_UNSIGNED, _SIGNED, _UNSIGNED_LONG, _LONG = (4, "I"), (5, "i"), (10, "Q"), (11, "q")
_FLOAT, _DOUBLE = (6, "f"), (12, "d")
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written.

    Args:
        dtype: A name of ELEMENT_TYPES, or for packed blocks of GGML_TYPES.
        shape: Its dimensions.
    """

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Entry:
        """The entry of a tensor that is written in its own dtype."""
        return cls(element_type(tensor.dtype), tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        if self.dtype in ELEMENT_TYPES:
            return math.prod(self.shape) * ELEMENT_TYPES[self.dtype][0]
        kind = GGML_TYPES[self.dtype]
        return math.prod(self.shape) // kind.length * kind.nbytes


class TensorWriter:
    """The tensors of a file whose header is written.

    Args:
        file: The file.
        entries: What will be written, in order.
        alignment: Every tensor fills a multiple of so many bytes.
    """

    def __init__(self, file: BinaryIO, entries: Mapping[str, Entry], alignment: int) -> None:
        self._file = file
        self._alignment = alignment
        self.waiting = [(name, entry.nbytes) for name, entry in entries.items()]

    def write(self, name: str, tensor: Tensor) -> None:
        """Append a tensor, which must be the next, whole or a run of its rows."""
        import torch  # headers are made without it

        expected, left = self.waiting[0]
        assert name == expected, (name, expected)
        assert tensor.nbytes <= left, (name, tensor.shape, tensor.dtype, left)
        self._file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self.waiting[0] = (name, left - tensor.nbytes)
        if left == tensor.nbytes:
            self.waiting.pop(0)
            self._file.write(bytes(-self._file.tell() % self._alignment))


@contextmanager
def _tensor_writer(
    path: Path, header: bytes, entries: Mapping[str, Entry], *, alignment: int = 1
) -> Iterator[TensorWriter]:
    """A file whose header is written first, and whose tensors then follow in that order.

    It is complete when every tensor has been written; until it is closed without an error it goes
    by another name, so that nobody takes a part for the whole.

    Args:
        path: The file.
        header: What comes before the tensors.
        entries: What will be written, in order.
        alignment: Every tensor fills a multiple of so many bytes.

    Raises:
        ConfigError: Another process writes it.
    """
    partial = path.with_name(path.name + ".partial")
    file = _claim(partial)
    is_whole = False
    try:
        file.write(header)
        writer = TensorWriter(file, entries, alignment)
        yield writer
        assert not writer.waiting, writer.waiting[:3]
        file.flush()
        os.fsync(file.fileno())  # else the name may outlive a crash, and not the rest
        partial.replace(path)
        is_whole = True
    finally:
        if not is_whole:  # while it is locked: later, it could be another process's
            partial.unlink(missing_ok=True)
        with suppress(OSError):  # a full disk takes no more of what waits to be written
            file.close()


def _claim(path: Path) -> BinaryIO:
    """Open an empty file that no other process writes; what one that was killed left is replaced.

    Raises:
        ConfigError: Another process writes it.
    """
    while True:
        file = path.open("ab")
        if not try_lock(file.fileno()):
            file.close()
            raise ConfigError(
                f"another process writes {path.name.removesuffix('.partial')}.",
                found=f"{path}, which it has locked",
                hint="wait until it has ended, or take another name",
            )
        # whoever had it may have renamed or deleted it before letting go
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.seek(0)
                return file
        file.close()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what could not be written, and why.

    Raises:
        CapacityError: The disk is full, or the like.
    """
    try:
        yield
    except OSError as error:
        is_full = error.errno in FULL
        raise CapacityError(
            f"{path} cannot be written.",
            found=error.strerror or str(error)[:100],
            expected="a disk with room for it" if is_full else "a place where this user may write",
        ) from error


def safetensors_writer(
    path: Path, entries: Mapping[str, Entry]
) -> AbstractContextManager[TensorWriter]:
    """A safetensors file of these tensors."""
    header = dict[str, object]()
    position = 0
    for name, entry in entries.items():
        end = position + entry.nbytes
        header[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % _SAFETENSORS_ALIGNMENT)
    return _tensor_writer(path, len(text).to_bytes(8, "little") + text, entries)


def gguf_writer(
    path: Path, metadata: Mapping[str, Value], entries: Mapping[str, Entry]
) -> AbstractContextManager[TensorWriter]:
    """A GGUF file of these tensors; the arguments are those of `gguf_header`."""
    header = gguf_header(metadata, entries)
    return _tensor_writer(path, header, entries, alignment=DEFAULT_ALIGNMENT)


def gguf_header(metadata: Mapping[str, Value], entries: Mapping[str, Entry]) -> bytes:
    """What comes before the data in a GGUF file of version 3.

    Args:
        metadata: Values by key. Numbers become 32 bits wide where they are in the range of such,
            else 64; arrays that were read from a file keep their type.
        entries: The tensors, in order.
    """
    numbers = type_numbers()
    header = MAGIC + struct.pack("<IQQ", max(VERSIONS), len(entries), len(metadata))
    header += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    position = 0
    for name, entry in entries.items():
        sizes = entry.shape[::-1]
        layout = f"<I{len(sizes)}QIQ"
        header += _string(name)
        header += struct.pack(layout, len(sizes), *sizes, numbers[entry.dtype], position)
        position += -(-entry.nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    return header + bytes(-len(header) % DEFAULT_ALIGNMENT)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    """A value behind the number of its type; arrays have that of their elements, too."""
    match value:
        case bool():
            data = struct.pack("<I?", _BOOL, value)
        case str():
            data = struct.pack("<I", _STRING) + _string(value)
        case int() | float():
            number, letter = _scalar([value])
            data = struct.pack(f"<I{letter}", number, value)
        case memoryview():
            number = next(key for key, letter in SCALARS.items() if letter == value.format)
            data = struct.pack("<IIQ", _ARRAY, number, len(value)) + value.tobytes()
        case [str(), *_]:
            texts = b"".join(_string(str(each)) for each in value)
            data = struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + texts
        case [bool(), *_]:
            data = struct.pack(f"<IIQ{len(value)}?", _ARRAY, _BOOL, len(value), *value)
        case _:
            numbers = [each for each in value if not isinstance(each, str)]
            number, letter = _scalar(numbers)
            if letter == "I" and max(numbers, default=0) < 2**31:
                number, letter = _SIGNED  # as converters have it
            layout = f"<IIQ{len(numbers)}{letter}"
            data = struct.pack(layout, _ARRAY, number, len(numbers), *numbers)
    return data


def _scalar(values: Sequence[float]) -> tuple[int, str]:
    """The narrowest type, of 32 bits or more, whose range holds them all."""
    if any(isinstance(each, float) for each in values):
        is_wide = any(_LARGEST_FLOAT < abs(each) < math.inf for each in values)
        return _DOUBLE if is_wide else _FLOAT
    low, high = min(values, default=0), max(values, default=0)
    if high >= 2**63:
        return _UNSIGNED_LONG
    if low >= 0:
        return _UNSIGNED if high < 2**32 else _LONG
    return _SIGNED if low >= -(2**31) and high < 2**31 else _LONG
