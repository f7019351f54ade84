"""A checkpoint: what tensors its files hold and where, and their bytes, read without trusting them.

Only regular files are opened, sizes are checked, and memory is bounded.
"""

from __future__ import annotations

import json
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from weakref import WeakValueDictionary

from blazr.core.errors import CheckpointError, ConfigError
from blazr.core.files import open_regular
from blazr.core.gguf_header import Value

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from blazr.nn.quant.hf.scheme import Layout

# A tensor's file, its first byte and the byte after its last.
Place = tuple[Path, int, int]
# Device, inode and time of the last change of a file.
Stamp = tuple[int, int, int]
MAX_CONFIG_BYTES = 16 * 2**20
# Python 3.11 does not name it: pages are not reserved, so a file larger than memory can be mapped.
_MAP_NORESERVE = 0x4000
# Bytes of one element, and torch's name for the type.
ELEMENT_TYPES: Mapping[str, tuple[int, str]] = {
    "BOOL": (1, "bool"),
    "U8": (1, "uint8"),
    "I8": (1, "int8"),
    "F8_E4M3": (1, "float8_e4m3fn"),
    "F8_E5M2": (1, "float8_e5m2"),
    "F8_E8M0": (1, "float8_e8m0fnu"),
    "U16": (2, "uint16"),
    "I16": (2, "int16"),
    "F16": (2, "float16"),
    "BF16": (2, "bfloat16"),
    "U32": (4, "uint32"),
    "I32": (4, "int32"),
    "F32": (4, "float32"),
    "U64": (8, "uint64"),
    "I64": (8, "int64"),
    "F64": (8, "float64"),
}


def unsound(message: str, *, found: str = "", expected: str = "") -> CheckpointError:
    """The error for a file whose bytes are not what its format has there."""
    hint = "copy or download the file again"
    return CheckpointError(message, found=found, expected=expected, hint=hint)


def read_json(path: Path) -> Mapping[str, object]:
    """Read a configuration file.

    Raises:
        CheckpointError: It cannot be opened.
        ConfigError: It is not a JSON object, or larger than 16 MiB.
    """
    with open_regular(path) as file:
        text = file.read(MAX_CONFIG_BYTES + 1)
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path} is too large.", expected=f"at most {MAX_CONFIG_BYTES:,} bytes")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not valid JSON.",
            found=str(error)[:100],
            hint="it may be cut short: copy it again from where the model came from",
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object.", found=type(value).__name__)
    return value


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of a name of ``ELEMENT_TYPES``."""
    import torch  # headers are read without it

    found: torch.dtype = getattr(torch, ELEMENT_TYPES[name][1])
    return found


def element_type(dtype: torch.dtype) -> str:
    """The name in ``ELEMENT_TYPES`` of a dtype."""
    return next(name for name in ELEMENT_TYPES if torch_dtype(name) == dtype)


def most_used_type(sizes: Iterable[tuple[str, int]]) -> str:
    """The type that most bytes are of, from types with the bytes of tensors.

    Raises:
        ValueError: There are no tensors.
    """
    totals = Counter[str]()
    for dtype, nbytes in sizes:
        totals[dtype] += nbytes
    return max(totals, key=totals.__getitem__)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor.

    Args:
        name: As the file spells it.
        dtype: A name of ``ELEMENT_TYPES``, or for packed blocks of GGML_TYPES.
        shape: Its dimensions.
        file: Where it lies.
        start: Offset of its first byte in the file.
        end: Offset after its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.end - self.start

    @property
    def is_packed(self) -> bool:
        """Whether it is stored in blocks of several numbers."""
        return self.dtype not in ELEMENT_TYPES

    @property
    def elements(self) -> tuple[str, tuple[int, ...]]:
        """What it is read as, type and shape: packed ones as bytes, rows of whole blocks."""
        if not self.is_packed:
            return self.dtype, self.shape
        rows = self.shape[:-1]
        return "U8", (*rows, self.nbytes // prod(rows))


@dataclass(frozen=True, slots=True)
class NumberInfo(TensorInfo):
    """A parameter of a layer that lies among the metadata of a GGUF file.

    Args:
        key: Of the array that has one of each layer.
    """

    key: str


@dataclass(frozen=True, slots=True)
class QuantizedInfo(TensorInfo):
    """A matrix that several tensors of a quantized checkpoint stand for.

    Its name, shape and place are those of the matrix; its ``dtype`` names the layout, for messages.

    Args:
        parts: The tensors by their suffix, the first of them where the matrix lies.
        layout: How they stand for it.
        share: How much of the parts belongs to this matrix; the rest belongs to others.
    """

    parts: Mapping[str, TensorInfo]
    layout: Layout
    share: float = 1.0

    @property
    def nbytes(self) -> int:
        """Size in bytes of all parts."""
        return round(sum(part.nbytes for part in self.parts.values()) * self.share)


@dataclass(frozen=True, slots=True)
class RelaidInfo(TensorInfo):
    """A tensor whose rows or blocks lie in another order in the file.

    Args:
        stored: What lies there.
        first: Its first row, in the second dimension.
        step: From one row to the next; others belong to another tensor.
        in_pairs: Whether neighbours share a byte in its blocks of MXFP4.
    """

    stored: TensorInfo
    first: int = 0
    step: int = 1
    in_pairs: bool = False


@dataclass(frozen=True, slots=True)
class ScaledInfo(TensorInfo):
    """Packed blocks whose numbers are multiplied with those of another tensor.

    Args:
        scales: That tensor: one number, or one for each matrix of a stack.
    """

    scales: TensorInfo


@dataclass(frozen=True, slots=True)
class RowsInfo(TensorInfo):
    """Some rows of a tensor, which are not one run of bytes.

    Args:
        stored: The tensor.
        rows: Which, in their order.
        dim: The dimension that counts them.
    """

    stored: TensorInfo
    rows: tuple[range, ...]
    dim: int

    @property
    def is_view(self) -> bool:
        """Whether nothing has to be copied to read them."""
        return len(self.rows) == 1 and not isinstance(self.stored, RelaidInfo | JoinedInfo)


@dataclass(frozen=True, slots=True)
class JoinedInfo(TensorInfo):
    """The rows of several tensors, one tensor's behind the other's.

    Args:
        parts: These, plain ones of one type; the first is where the whole counts as lying.
    """

    parts: tuple[TensorInfo, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes of all parts."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class LessOneInfo(TensorInfo):
    """A tensor whose numbers are those in the file less one, in float32.

    Args:
        stored: What lies there.
    """

    stored: TensorInfo


def join_rows(name: str, parts: tuple[TensorInfo, ...]) -> JoinedInfo | None:
    """Several tensors as one; nothing is read.

    Args:
        name: What to call it.
        parts: The tensors, in the order of their rows.

    Returns:
        None where they are not plain tensors of one type whose rows are alike.
    """
    first = parts[0]
    is_plain = all(type(part) is TensorInfo and not part.is_packed for part in parts)
    forms = {(part.dtype, part.shape[1:]) for part in parts if part.shape}
    if not is_plain or len(forms) > 1 or not all(part.shape for part in parts):
        return None
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return JoinedInfo(name, first.dtype, shape, first.file, first.start, first.end, parts=parts)


def take_rows(info: TensorInfo, rows: tuple[range, ...], dim: int = 0) -> TensorInfo:
    """Some rows of a stored tensor as a tensor of their own; nothing is read.

    Args:
        info: The tensor.
        rows: Which, in their order.
        dim: The dimension that counts them.
    """
    count = sum(map(len, rows))
    shape = (*info.shape[:dim], count, *info.shape[dim + 1 :])
    share = count / (info.shape[dim] or 1)
    if isinstance(info, QuantizedInfo):
        from blazr.nn.quant.hf.rows import RowsLayout  # headers are read without torch

        layout = RowsLayout(info.layout, rows)
        return replace(info, shape=shape, layout=layout, share=info.share * share)
    size = round(info.nbytes * share)
    is_run = dim == 0 and len(rows) == 1 and rows[0].step == 1
    is_made = isinstance(info, RelaidInfo | ScaledInfo | RowsInfo | JoinedInfo | LessOneInfo)
    if is_run and not is_made:
        start = info.start + info.nbytes // (info.shape[0] or 1) * rows[0].start
        return replace(info, shape=shape, start=start, end=start + size)
    end = info.start + size
    place = (info.name, info.dtype, shape, info.file, info.start, end)
    return RowsInfo(*place, stored=info, rows=rows, dim=dim)


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says before its data.

    Args:
        tensors: By name.
        metadata: What else it says; empty for formats that keep that in other files.
    """

    tensors: dict[str, TensorInfo]
    metadata: Mapping[str, Value] = field(default_factory=dict)


def check_ranges(
    path: Path, tensors: Mapping[str, TensorInfo], size: int, *, filled_from: int | None = None
) -> None:
    """Refuse tensors whose bytes lie outside of the file or in each other.

    Args:
        path: The file.
        tensors: Its tensors.
        size: Its size in bytes.
        filled_from: Where the data begin, in formats that allow no byte between tensors.

    Raises:
        CheckpointError: A tensor lies so, or, with ``filled_from``, bytes belong to none.
    """
    position = filled_from or 0
    for info in sorted(tensors.values(), key=lambda info: (info.start, info.end)):
        if info.end > size:
            raise unsound(
                f"{path}: cut short; tensor {info.name[:100]!r} ends after the file.",
                found=f"{size:,} bytes",
                expected=f"at least {info.end:,}"[:100],
            )
        has_hole = filled_from is not None and info.start > position
        if info.start < position or has_hole:
            what = "follows a hole" if has_hole else "overlaps the one before it"
            raise unsound(
                f"{path}: tensor {info.name[:100]!r} {what}.",
                found=f"byte {info.start:,}",
                expected=f"byte {position:,}" + ("" if filled_from is not None else " or later"),
            )
        position = info.end
    if filled_from is not None and position != size:
        raise unsound(
            f"{path}: bytes after the last tensor.",
            found=f"{size:,} bytes",
            expected=f"{position:,} bytes",
        )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The tensors of one model, in one file or many.

    Files are mapped while they are read. What stays is to be read with `own`: a file that is cut
    while it is mapped ends the process (SIGBUS), and one that is overwritten changes its tensors.

    Args:
        path: The directory or file that was opened.
        files: The files that hold tensors, with their sizes in bytes.
        tensors: Every tensor by name.
        config: The contents of config.json; empty where there is none.
        config_path: Where that was, or None.
        metadata: What the first file itself says about the model (GGUF).
    """

    path: Path
    files: Mapping[Path, int]
    tensors: Mapping[str, TensorInfo]
    config: Mapping[str, object] = field(default_factory=dict)
    config_path: Path | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    _mapped: dict[Path, mmap.mmap] = field(default_factory=dict, repr=False)
    _stamps: dict[Path, Stamp] = field(default_factory=dict, repr=False)
    _owned: WeakValueDictionary[Place, Tensor] = field(
        default_factory=WeakValueDictionary, repr=False
    )

    @property
    def directory(self) -> Path:
        """Where the files lie, tokenizer and all."""
        return self.path if self.path.is_dir() else self.path.parent

    def read(self, name: str) -> Tensor:
        """One tensor as a view of its file; a copy where the file does not align it.

        A packed one comes as the bytes of its blocks, uint8. The view keeps the file mapped.
        Writing to it does not change the file.

        Raises:
            CheckpointError: The file has gone or changed.
        """
        return self.view(self.tensors[name])

    def view(self, info: TensorInfo) -> Tensor:
        """A tensor as `read` gives it, by its info and not its name.

        Parts of a quantized matrix and some rows of a tensor have no name in `tensors`.

        Raises:
            CheckpointError: The file has gone or changed.
        """
        import torch  # headers are read without it

        if isinstance(info, RelaidInfo):
            from blazr.nn.quant.exact import mxfp4_from_pairs

            rows = self.view(info.stored)
            rows = rows[:, info.first :: info.step] if info.step > 1 else rows
            return mxfp4_from_pairs(rows) if info.in_pairs else rows.contiguous()
        if isinstance(info, JoinedInfo):
            return torch.cat([self.view(part) for part in info.parts])
        if isinstance(info, LessOneInfo):
            return self.view(info.stored).float() - 1
        name, shape = info.elements
        if isinstance(info, RowsInfo):
            stored = self.view(info.stored).movedim(info.dim, 0)
            found = [stored[each.start : each.stop : each.step] for each in info.rows]
            whole = found[0] if len(found) == 1 else torch.cat(found)
            return whole.movedim(0, info.dim).reshape(shape)
        dtype = torch_dtype(name)
        if info.nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        buffer = self._map(info.file)
        raw = torch.frombuffer(buffer, dtype=torch.uint8, count=info.nbytes, offset=info.start)
        if info.start % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).view(shape)

    def row_scales(self, info: TensorInfo) -> Tensor | None:
        """What the rows of a tensor's blocks are multiplied with, all rows in one dimension.

        Returns:
            (rows,), float32; None for 1.

        Raises:
            CheckpointError: The file has gone or changed.
        """
        found = self._scales(info)
        return None if found is None else found.flatten()

    def _scales(self, info: TensorInfo) -> Tensor | None:
        """The same in the shape of the tensor's rows."""
        if isinstance(info, RowsInfo):
            scales = self._scales(info.stored)
            if scales is None:
                return None
            import torch  # headers are read without it

            each = scales.movedim(info.dim, 0)
            found = torch.cat([each[run.start : run.stop : run.step] for run in info.rows])
            return found.movedim(0, info.dim)
        if not isinstance(info, ScaledInfo):
            return None
        scales = self.view(info.scales).float().view(-1, *[1] * (len(info.shape) - 2))
        return scales.expand(info.shape[:-1])

    def own(self, info: TensorInfo) -> Tensor:
        """A tensor as `view` gives it, in memory that does not depend on the file any more.

        Reading takes no longer than mapping and touching. A tensor that was read before and is
        still in use is not read again: several quantized matrices may share one.

        Raises:
            CheckpointError: The file has gone or changed.
        """
        import torch  # headers are read without it

        from blazr.nn.device import zero_bytes

        if type(info) is not TensorInfo or info.nbytes == 0:
            found = self.view(info)
            memory = zero_bytes(torch.Size((found.nbytes,))).view(found.dtype).view(found.shape)
            return memory.copy_(found)
        place = (info.file, info.start, info.end)
        owned = self._owned.get(place)
        if owned is not None:
            return owned
        raw = zero_bytes(torch.Size((info.nbytes,)))
        self._read_into(memoryview(raw.numpy().data), info)
        name, shape = info.elements
        self._owned[place] = tensor = raw.view(torch_dtype(name)).view(shape)
        return tensor

    def check_unchanged(self) -> None:
        """Refuse files that were written to since the first tensor was read.

        Raises:
            CheckpointError: A file was: what was read may be of two models.
        """
        for path in self._stamps:
            with open_regular(path) as file:
                self._check_stamp(path, file)

    def drop(self, info: TensorInfo) -> None:
        """Give back the memory behind a tensor that was read and copied.

        These are the whole pages that it fills; reading them again reads the file.
        """
        info = info.stored if isinstance(info, RowsInfo) else info
        parts: Iterable[TensorInfo] = (info,)
        if isinstance(info, QuantizedInfo):
            parts = info.parts.values()
        elif isinstance(info, JoinedInfo):
            parts = info.parts
        for part in parts:
            first = -(-part.start // mmap.PAGESIZE) * mmap.PAGESIZE
            length = part.end // mmap.PAGESIZE * mmap.PAGESIZE - first
            if length > 0:
                self._map(part.file).madvise(mmap.MADV_DONTNEED, first, length)

    def _map(self, path: Path) -> mmap.mmap:
        """A file in memory, page by page as it is touched.

        Writing to the mapping changes private copies of its pages, never the file.

        Raises:
            CheckpointError: It cannot be opened, or has changed since its header was read.
        """
        with open_regular(path) as file:
            self._check_stamp(path, file)
            if path not in self._mapped:
                self._mapped[path] = mmap.mmap(
                    file.fileno(),
                    self.files[path],
                    flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
        return self._mapped[path]

    def _read_into(self, memory: memoryview, info: TensorInfo) -> None:
        """Fill memory with the bytes of a tensor."""
        with open_regular(info.file) as file:
            self._check_stamp(info.file, file)
            done = 0
            while done < len(memory):
                count = os.preadv(file.fileno(), [memory[done:]], info.start + done)
                if not count:  # the file ends here
                    self._check_stamp(info.file, file)
                done += count

    def _check_stamp(self, path: Path, file: BinaryIO) -> None:
        """Refuse a file that is not the one that was opened before, as it was then."""
        found = os.fstat(file.fileno())
        stamp = (found.st_dev, found.st_ino, found.st_mtime_ns)
        size = self.files[path]
        if found.st_size != size or self._stamps.setdefault(path, stamp) != stamp:
            raise CheckpointError(
                f"{path} has changed while it was being read.",
                found=f"{found.st_size:,} bytes, written at {found.st_mtime:.3f}",
                expected=f"{size:,} bytes, as it was",
                hint="load it again when nobody writes to it any more",
            )
