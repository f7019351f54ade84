"""A second reader of GGUF files: metadata, and tensors as the numbers that they stand for."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blazr.bench.reference.blocks import NVFP4, TYPES, numbers
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.settings import Setting, as_like
from blazr.bench.reference.weights import Rows

# By the number of a metadata type: struct's letter.
_LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"}
_LETTERS |= {10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9


class GgufFiles:
    """A model in one file or several: the first says what there is to say of it.

    Args:
        paths: The files, in order.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        files = [_GgufFile(path) for path in paths]
        self.metadata = files[0].metadata
        self._files = {name: file for file in files for name in file.tensors}

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        return self._files.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self._files[name].tensors[name][0]

    def read(self, name: str, rows: Rows = None) -> Tensor:
        """A tensor, or some of its rows, as float64.

        Raises:
            NoReferenceError: Its blocks are of a kind that nothing here can read.
        """
        found = self._files[name].read(name, rows)
        # what an NVFP4 matrix, or each of a stack, is multiplied with
        factor = name.removesuffix("weight") + "scale"
        is_nvfp4 = self._files[name].tensors[name][1] == NVFP4
        if not is_nvfp4 or not name.endswith(".weight") or factor not in self._files:
            return found
        scales = self._files[factor].read(factor, None).flatten()
        if len(scales) > 1 and rows is not None:
            scales = scales[rows]
        return found * scales.view(-1, *[1] * (found.dim() - 1))


class _GgufFile:
    """A file's metadata and tensors.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._at = 8  # behind the magic number and the version
        count = self._take("Q")
        pairs = self._take("Q")
        self.metadata: dict[str, Setting] = {
            self._string(): self._value(self._take("I")) for _ in range(pairs)
        }
        # name: shape, number of the type, offset
        self.tensors: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self._string()
            shape = tuple(self._take("Q") for _ in range(self._take("I")))[::-1]
            self.tensors[name] = shape, self._take("I"), self._take("Q")
        alignment = as_like(self.metadata.get("general.alignment", 32), 32, "general.alignment")
        self._start = -(-self._at // alignment) * alignment

    def read(self, name: str, rows: Rows) -> Tensor:
        shape, number, offset = self.tensors[name]
        if number not in TYPES:
            raise NoReferenceError(f"tensors of GGML type {number}")
        _, length, nbytes, _ = TYPES[number]
        size = math.prod(shape) // length * nbytes
        raw = np.frombuffer(self._data, np.uint8, size, self._start + offset)
        table = raw.reshape(*shape[:-1], shape[-1] // length * nbytes)
        if rows is not None:
            table = table[rows.numpy() if isinstance(rows, Tensor) else rows]
        found = numbers(number, table.reshape(-1, nbytes))
        return torch.from_numpy(found).view(*table.shape[:-1], shape[-1])

    def _take(self, letter: str) -> int:
        form = struct.Struct("<" + letter)
        (found,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def _string(self) -> str:
        length = self._take("Q")
        self._at += length
        return self._data[self._at - length : self._at].decode(errors="replace")

    def _value(self, kind: int) -> Setting:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._take(_LETTERS[kind])
        inner = self._take("I")
        count = self._take("Q")
        return [self._value(inner) for _ in range(count)]
