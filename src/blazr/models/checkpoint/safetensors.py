"""The safetensors header, read without trusting it.

A file is 8 bytes of header length, a JSON object of names to dtype, shape and byte range, then the
data. Checked here, before anything is allocated or mapped: the lengths, the JSON, unique names,
known dtypes, shapes that match their ranges, and ranges that cover the data without gap or overlap.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.core.files import open_regular
from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    Header,
    TensorInfo,
    check_ranges,
    unsound,
)

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 16  # models have at most 5; to multiply thousands of sizes takes minutes
_LENGTH_BYTES = 8


def read_header(path: Path) -> Header:
    """The tensors of a file.

    Raises:
        CheckpointError: The file cannot be read or is not sound.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.read(_LENGTH_BYTES)
        length = int.from_bytes(raw, "little")
        if len(raw) < _LENGTH_BYTES or length > min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
            raise unsound(
                f"{path}: not a safetensors file, or cut short.",
                found=f"{size:,} bytes, of which the header claims {length:,}",
                expected="8 bytes of header length, a header of at most 100 MB, the data",
            )
        header = file.read(length)
    try:
        entries = json.loads(header, object_pairs_hook=_unique_names)
    except (ValueError, RecursionError) as error:
        raise unsound(
            f"{path}: the header cannot be parsed.",
            found=str(error)[:100],
            expected="JSON with unique names",
        ) from error
    if not isinstance(entries, dict):
        raise unsound(f"{path}: the header is not a JSON object.", found=type(entries).__name__)
    notes = entries.pop("__metadata__", None)
    if notes is not None and not (
        isinstance(notes, dict) and all(isinstance(value, str) for value in notes.values())
    ):
        raise unsound(f"{path}: __metadata__ is not an object of strings.")
    base = _LENGTH_BYTES + length
    tensors = {name: _tensor_info(path, name, entry, base) for name, entry in entries.items()}
    check_ranges(path, tensors, size, filled_from=base)
    return Header(tensors)


def _unique_names(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        double = Counter(name for name, _ in pairs).most_common(1)[0][0]
        message = f"two entries called {double[:80]!r}"
        raise ValueError(message)
    return found


def _tensor_info(path: Path, name: str, entry: object, base: int) -> TensorInfo:
    """One entry of the header, checked on its own."""
    label = f"{path}: tensor {name[:100]!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise unsound(f"{label} is not described by dtype, shape and data_offsets.")
    dtype = entry["dtype"]
    shape = entry["shape"]
    offsets = entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENT_TYPES:
        raise CheckpointError(
            f"{label} has an unknown dtype.",
            found=repr(dtype)[:100],
            expected=", ".join(ELEMENT_TYPES),
            hint="save it in one of these, or download the file again",
        )
    if (
        not (_are_sizes(shape) and _are_sizes(offsets))
        or len(shape) > MAX_DIMENSIONS
        or len(offsets) != 2
    ):
        raise unsound(
            f"{label} has a malformed shape or range.",
            found=f"shape {shape}, data_offsets {offsets}"[:100],
            expected=f"whole numbers from 0, at most {MAX_DIMENSIONS} sizes, two offsets",
        )
    start, end = offsets
    needed = prod(shape) * ELEMENT_TYPES[dtype][0]
    if end - start != needed:
        raise unsound(
            f"{label} does not fill its byte range.",
            found=f"{end - start:,} bytes from {start:,} to {end:,}",
            expected=f"{needed:,} bytes for {dtype} {shape}"[:100],
        )
    return TensorInfo(name, dtype, tuple(shape), path, base + start, base + end)


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )
