"""The header of a GGUF file, read without trusting it: metadata and the table of tensors.

A file is the magic, a version, two counts, that many key/value pairs, that many tensor entries,
and from the next multiple of the alignment on the data. Every count is compared with the bytes that
are left before anything is made of it, so a forged one costs neither time nor memory.

Source: the GGUF specification of the ggml project, versions 2 and 3.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from blazr.core.errors import CheckpointError

Value = int | float | bool | str | Sequence[int] | Sequence[float] | Sequence[str]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
ARCHITECTURE_KEY = "general.architecture"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65_535
MAX_HEADER_BYTES = 2**28
MAX_TENSORS = 1_000_000
# All strings of all arrays together: a vocabulary and its merges are half a million.
MAX_STRINGS = 2**21

_STRING = 8
_ARRAY = 9
_BOOL = 7
_FLOAT32 = 6
# Value types by number: how struct and memoryview spell them.
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as the table lists it.

    Args:
        name: Its name.
        shape: Its dimensions, the slowest first (the file has the fastest first).
        type_number: How its numbers are stored.
        offset: From the beginning of the data, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What comes before the data.

    Args:
        metadata: Values by key; arrays of numbers are read-only views.
        places: Where the numbers of these arrays, and float32 numbers, begin in the file, by key.
        tensors: The table, in order.
        data_start: Offset of the data in the file.
        alignment: Of the data, and of every tensor in it.
        size: Of the file, in bytes.
    """

    metadata: Mapping[str, Value]
    places: Mapping[str, int]
    tensors: tuple[TensorEntry, ...]
    data_start: int
    alignment: int
    size: int


def read_gguf_header(file: BinaryIO) -> GgufHeader:
    """Read everything before the data.

    Args:
        file: An open regular file.

    Raises:
        CheckpointError: It is not a GGUF file, or not a sound one.
    """
    with _cursor_over(file) as cursor:
        num_tensors, num_pairs = _read_beginning(cursor)
        metadata: dict[str, Value] = {}
        for _ in range(num_pairs):
            _read_pair(cursor, metadata)
        alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment not in [2**power for power in range(3, 17)]:
            raise _damaged(f"alignment {alignment!r}"[:100], "a power of two from 8 to 65,536")
        tensors = tuple(_read_tensor(cursor) for _ in range(num_tensors))
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors):
        raise _damaged(f"{len(tensors) - len(names)} names that come twice", "unique tensor names")
    data_start = -(-cursor.position // alignment) * alignment
    size = os.fstat(file.fileno()).st_size
    return GgufHeader(metadata, cursor.places, tensors, data_start, alignment, size)


def read_architecture(file: BinaryIO) -> str | None:
    """The kind of model in a file, ``general.architecture``; None where it does not say.

    Writers put it first, so hardly anything is read.

    Args:
        file: An open regular file.

    Raises:
        CheckpointError: It is not a GGUF file, or not a sound one.
    """
    metadata: dict[str, Value] = {}
    with _cursor_over(file) as cursor:
        _, num_pairs = _read_beginning(cursor)
        for _ in range(num_pairs):
            _read_pair(cursor, metadata)
            if ARCHITECTURE_KEY in metadata:
                break
    found = metadata.get(ARCHITECTURE_KEY)
    return found if isinstance(found, str) else None


@contextmanager
def _cursor_over(file: BinaryIO) -> Iterator[_Cursor]:
    """A cursor at the beginning of a file.

    Raises:
        CheckpointError: It is too short for a GGUF file.
    """
    size = os.fstat(file.fileno()).st_size
    if size < len(MAGIC):
        raise _damaged(f"{size} bytes", 'a file that begins with "GGUF"')
    with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as buffer:
        yield _Cursor(buffer, min(size, MAX_HEADER_BYTES))


class _Cursor:
    """Reads forward through the header, never past its end."""

    def __init__(self, buffer: mmap.mmap, end: int) -> None:
        self.buffer = buffer
        self.position = 0
        self.end = end
        self.num_strings = 0
        self.places: dict[str, int] = {}

    def advance(self, count: int) -> int:
        """Step over bytes; where they began.

        Raises:
            CheckpointError: There are not so many.
        """
        start = self.position
        if count > self.end - start:
            raise _damaged(
                f"{count:,} bytes wanted at byte {start:,}, {self.end - start:,} left",
                f"a header that ends inside the file, of at most {MAX_HEADER_BYTES:,} bytes",
            )
        self.position = start + count
        return start

    def number(self, letter: str) -> int:
        """A whole number, as struct spells its type."""
        layout = "<" + letter
        start = self.advance(struct.calcsize(layout))
        found: int = struct.unpack_from(layout, self.buffer, start)[0]
        return found

    def string(self, what: str, limit: int = MAX_HEADER_BYTES) -> str:
        """A length and that many bytes of UTF-8.

        Raises:
            CheckpointError: It is too long, or no UTF-8.
        """
        length = self.number("Q")
        if length > limit:
            raise _damaged(f"{what} of {length:,} bytes", f"at most {limit:,}")
        start = self.advance(length)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError:
            raise _damaged(f"{what} at byte {start:,} that is no UTF-8", "UTF-8") from None

    def count(self, what: str, smallest: int) -> int:
        """A count of items that take at least ``smallest`` bytes each.

        Raises:
            CheckpointError: The rest of the file cannot hold them.
        """
        found = self.number("Q")
        left = self.end - self.position
        if found > left // smallest:
            raise _damaged(f"{found:,} {what} in {left:,} bytes", f"at most {left // smallest:,}")
        return found


def _read_beginning(cursor: _Cursor) -> tuple[int, int]:
    """The numbers of tensors and of pairs."""
    start = cursor.advance(len(MAGIC))
    magic = cursor.buffer[start : start + len(MAGIC)]
    if magic != MAGIC:
        raise _damaged(f"a file that begins with {magic!r}", 'one that begins with "GGUF"')
    version = cursor.number("I")
    if version not in VERSIONS:
        is_swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        raise CheckpointError(
            "this version of GGUF is not supported.",
            found="a big-endian file" if is_swapped else f"version {version}",
            expected="version 2 or 3, little-endian",
            hint="convert the model again with a current llama.cpp, or download a newer file",
        )
    num_tensors = cursor.count("tensors", _SMALLEST_TENSOR)
    if num_tensors > MAX_TENSORS:
        raise _damaged(f"{num_tensors:,} tensors", f"at most {MAX_TENSORS:,}")
    return num_tensors, cursor.count("metadata pairs", _SMALLEST_PAIR)


def _read_pair(cursor: _Cursor, metadata: dict[str, Value]) -> None:
    key = cursor.string("a key", MAX_NAME_BYTES)
    if not key or key in metadata:
        raise _damaged(f"the key {key[:80]!r} twice" if key else "an empty key", "unique keys")
    kind = cursor.number("I")
    if kind == _STRING:
        metadata[key] = cursor.string("a string")
    elif kind == _ARRAY:
        metadata[key] = _read_array(cursor, key)
    elif kind in SCALARS:
        if kind == _FLOAT32:
            cursor.places[key] = cursor.position
        value = cursor.number(SCALARS[kind])
        metadata[key] = bool(value) if kind == _BOOL else value
    else:
        raise _damaged(f"value type {kind} for {key[:80]!r}", "a type from 0 to 12")


def _read_array(cursor: _Cursor, key: str) -> Value:
    kind = cursor.number("I")
    if kind == _STRING:
        return _read_strings(cursor, cursor.count("strings", 8))
    if kind not in SCALARS:
        what = "an array of arrays" if kind == _ARRAY else f"an array of type {kind}"
        raise _damaged(f"{what} for {key[:80]!r}", "an array of numbers or strings")
    letter = SCALARS[kind]
    width = struct.calcsize("<" + letter)
    length = cursor.count("array elements", width) * width
    start = cursor.places[key] = cursor.advance(length)
    view: memoryview[int] | memoryview[float] = memoryview(cursor.buffer[start : start + length])
    return view.cast(letter)  # type: ignore[call-overload]  # a letter of SCALARS


def _read_strings(cursor: _Cursor, count: int) -> list[str]:
    """Many short strings; written out, because a vocabulary has hundreds of thousands."""
    cursor.num_strings += count
    if cursor.num_strings > MAX_STRINGS:
        raise _damaged(f"{cursor.num_strings:,} strings", f"at most {MAX_STRINGS:,}")
    buffer = cursor.buffer
    position = cursor.position
    end = cursor.end
    unpack: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
    found = []
    try:
        for _ in range(count):
            start = position + 8
            position = start + unpack(buffer, position)[0]
            if position > end:
                break
            found.append(buffer[start:position].decode())
    except UnicodeDecodeError:
        raise _damaged(f"string {len(found)} of an array that is no UTF-8", "UTF-8") from None
    except struct.error:  # a length that the file does not hold whole
        position = end + 1
    if position > end:
        raise _damaged(f"an array that ends after {len(found):,} of {count:,} strings", "all")
    cursor.position = position
    return found


def _read_tensor(cursor: _Cursor) -> TensorEntry:
    name = cursor.string("a tensor's name", MAX_NAME_BYTES)
    num_dims = cursor.number("I")
    if num_dims > MAX_DIMENSIONS:
        raise _damaged(f"tensor {name[:80]!r} of {num_dims:,} dimensions", "at most 4")
    shape = tuple(cursor.number("Q") for _ in range(num_dims))[::-1]
    if any(not 1 <= size < 2**63 for size in shape):
        raise _damaged(f"tensor {name[:80]!r} of shape {list(shape)}"[:100], "sizes from 1")
    return TensorEntry(name, shape, cursor.number("I"), cursor.number("Q"))


def _damaged(found: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "the GGUF file is damaged or cut short.",
        found=found,
        expected=expected,
        hint="copy or download the file again",
    )
