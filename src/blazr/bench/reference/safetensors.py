"""A second reader of safetensors files: eight bytes of length, a JSON header, the numbers."""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from blazr.bench.reference.weights import Rows, Setting

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class SafetensorsFiles:
    """The tensors of one or many files.

    Args:
        files: The files.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.places: dict[str, tuple[mmap.mmap, int, Mapping[str, Setting]]] = {}
        for path in files:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            (length,) = struct.unpack("<Q", data[:8])
            header = json.loads(data[8 : 8 + length])
            for name, entry in header.items():
                if name != "__metadata__":
                    self.places[name] = data, 8 + length, entry

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        return self.places.keys()

    def read(self, name: str, rows: Rows = None) -> Tensor:
        """A tensor, or some of its rows, as they are stored."""
        data, start, entry = self.places[name]
        first, last = entry["data_offsets"]
        shape = entry["shape"]
        dtype = _DTYPES[entry["dtype"]]
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype)
        found = torch.frombuffer(data, dtype=torch.uint8, count=last - first, offset=start + first)
        if (start + first) % dtype.itemsize:
            found = found.clone()
        whole = found.view(dtype).view(shape)
        return whole if rows is None else whole[rows]

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return tuple(self.places[name][2]["shape"])
