"""A second reader of safetensors files: eight bytes of length, a JSON header, the numbers."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from blazr.bench.reference.weights import Rows

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "U32": torch.int32,  # their bits
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class _Entry(NamedTuple):
    """Where a tensor lies, and what it is."""

    data: mmap.mmap
    start: int
    nbytes: int
    dtype: torch.dtype
    shape: list[int]


class SafetensorsFiles:
    """The tensors of one or many files.

    Args:
        files: The files.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._entries: dict[str, _Entry] = {}
        for path in files:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            (length,) = struct.unpack("<Q", data[:8])
            header = json.loads(data[8 : 8 + length])
            header.pop("__metadata__", None)
            for name, entry in header.items():
                first, last = entry["data_offsets"]
                start, dtype = 8 + length + first, _DTYPES[entry["dtype"]]
                self._entries[name] = _Entry(data, start, last - first, dtype, entry["shape"])

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        return self._entries.keys()

    def read(self, name: str, rows: Rows = None) -> Tensor:
        """A tensor, or some of its rows, as they are stored."""
        data, start, nbytes, dtype, shape = self._entries[name]
        if not nbytes:
            return torch.empty(shape, dtype=dtype)
        found = torch.frombuffer(data, dtype=torch.uint8, count=nbytes, offset=start)
        if start % dtype.itemsize:
            found = found.clone()
        whole = found.view(dtype).view(shape)
        return whole if rows is None else whole[rows]

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return tuple(self._entries[name].shape)
