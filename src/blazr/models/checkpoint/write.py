"""Writing safetensors files, one tensor after the other, so that none has to wait in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from blazr.models.checkpoint.base import ELEMENT_TYPES

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = 8
_NAMES = {torch_name: name for name, (_, torch_name) in ELEMENT_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written.

    Args:
        dtype: A name of ELEMENT_TYPES.
        shape: Its dimensions.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * ELEMENT_TYPES[self.dtype][0]


class SafetensorsWriter:
    """A file whose header is written first, and whose tensors then follow in that order.

    It is complete when every tensor has been written; until it is closed without an error it goes
    by another name, so that nobody takes a part for the whole.

    Args:
        path: The file.
        entries: What will be written, in order.
    """

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._waiting = list(entries.items())
        header, position = dict[str, object](), 0
        for name, entry in self._waiting:
            end = position + entry.nbytes
            header[name] = {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [position, end],
            }
            position = end
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._file = self._partial.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, name: str, tensor: Tensor) -> None:
        """Append a tensor, which must be the next, whole or a run of its rows."""
        import torch  # headers are made without it

        expected, entry = self._waiting[0]
        assert name == expected, (name, expected)
        assert _NAMES[str(tensor.dtype).removeprefix("torch.")] == entry.dtype, (name, tensor.dtype)
        left = entry.nbytes - tensor.nbytes
        assert left >= 0, name
        self._file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        shape = (left // ELEMENT_TYPES[entry.dtype][0],)
        self._waiting[0] = (name, Entry(entry.dtype, shape))
        if left == 0:
            self._waiting.pop(0)

    def __enter__(self) -> SafetensorsWriter:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the file its name, or take it away after an error."""
        self._file.close()
        if kind is None:
            assert not self._waiting, self._waiting[:3]
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)
