"""GGUF files written byte by byte, from the format's description and not from the reader."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}
ALIGNMENT = 32

# A tensor of blocks: its type's number, its shape in elements, its bytes.
Blocks = tuple[int, tuple[int, ...], Tensor]


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(item: object) -> bytes:
    """A value behind the number of its type."""
    if isinstance(item, list):
        return struct.pack("<I", 9) + _items(item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    for kind, number, letter in ((bool, 7, "B"), (int, 5, "i"), (float, 6, "f")):
        if isinstance(item, kind):
            return struct.pack(f"<I{letter}", number, item)
    raise TypeError(item)


def _items(items: list[object]) -> bytes:
    if not items or isinstance(items[0], str):
        return struct.pack("<IQ", 8, len(items)) + b"".join(string(str(each)) for each in items)
    number, letter = (6, "f") if isinstance(items[0], float) else (5, "i")
    return struct.pack(f"<IQ{len(items)}{letter}", number, len(items), *items)


def pair(key: str, item: object) -> bytes:
    return string(key) + value(item)


def entry(name: str, shape: Sequence[int], number: int, offset: int) -> bytes:
    sizes = list(reversed(shape))
    return (
        string(name)
        + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        + struct.pack("<IQ", number, offset)
    )


def header(num_tensors: int, num_pairs: int, *, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs)


def padded(data: bytes, alignment: int = ALIGNMENT) -> bytes:
    return data + bytes(-len(data) % alignment)


def encode(
    tensors: Mapping[str, Tensor | Blocks], metadata: Mapping[str, object] | None = None
) -> bytes:
    """A whole file, the last tensor without padding behind it."""
    pairs = [pair(key, item) for key, item in (metadata or {}).items()]
    alignment = int(str((metadata or {}).get("general.alignment", ALIGNMENT)))
    entries, data = [], b""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            number, shape = NUMBERS[tensor.dtype], tuple(tensor.shape)
            raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        else:
            number, shape, blocks = tensor
            raw = blocks.contiguous().numpy().tobytes()
        data = padded(data, alignment)
        entries.append(entry(name, shape, number, len(data)))
        data += raw
    start = header(len(entries), len(pairs)) + b"".join(pairs) + b"".join(entries)
    return padded(start, alignment) + data


def write(
    path: Path, tensors: Mapping[str, Tensor | Blocks], metadata: Mapping[str, object] | None = None
) -> Path:
    path.write_bytes(encode(tensors, metadata))
    return path
