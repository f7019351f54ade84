"""GGUF files: the header by ``core.gguf_header``, and where each tensor's bytes are."""

from __future__ import annotations

from math import prod
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.core.gguf_header import GgufHeader, TensorEntry, read_gguf_header
from blazr.models.checkpoint.base import (
    ELEMENT_TYPES,
    Format,
    Header,
    RelaidInfo,
    TensorInfo,
    check_ranges,
)
from blazr.models.checkpoint.disk import open_regular
from blazr.models.checkpoint.ollama import as_llama_cpp
from blazr.nn.quant.gguf import GGML_TYPES

_HINT = "copy or download the file again"
# Types that are not blocks: llama.cpp's numbers for ELEMENT_TYPES.
_PLAIN = {0: "F32", 1: "F16", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16"}
_PACKED = {row.number: row for row in GGML_TYPES.values() if row.is_packed}
# Ollama's first files with MXFP4 (fs/ggml/type.go): as Hugging Face has it, neighbours in a byte.
_MXFP4_IN_PAIRS = 4
_PACKED[_MXFP4_IN_PAIRS] = GGML_TYPES["MXFP4"]


def type_numbers() -> dict[str, int]:
    """What types are called in files, by their names."""
    packed = {row.name: row.number for row in _PACKED.values()}
    return {name: number for number, name in _PLAIN.items()} | packed


def read_header(path: Path) -> Header:
    """The tensors and the metadata of a file, in the words of llama.cpp.

    Raises:
        CheckpointError: The file cannot be read or is not sound.
    """
    with open_regular(path) as file:
        try:
            header = read_gguf_header(file)
        except CheckpointError as error:
            raise CheckpointError(
                f"{path}: {error.message}",
                found=error.found,
                expected=error.expected,
                hint=error.hint,
            ) from None
    tensors = {entry.name: _tensor_info(path, entry, header) for entry in header.tensors}
    check_ranges(path, tensors, header.size)
    return as_llama_cpp(Header(tensors, header.metadata))


GGUF = Format(suffix=".gguf", read_header=read_header)


def _tensor_info(path: Path, entry: TensorEntry, header: GgufHeader) -> TensorInfo:
    """One entry of the header, checked on its own."""
    label = f"{path}: tensor {entry.name[:100]!r}"
    if entry.offset % header.alignment:
        raise CheckpointError(
            f"{label} is not aligned.",
            found=f"offset {entry.offset:,}",
            expected=f"a multiple of {header.alignment}",
            hint=_HINT,
        )
    row = _PACKED.get(entry.type_number)
    if entry.type_number in _PLAIN:
        name = _PLAIN[entry.type_number]
        nbytes = prod(entry.shape) * ELEMENT_TYPES[name][0]
    elif row is None:
        raise CheckpointError(
            f"{label} is of a type that blazr does not know.",
            found=f"GGML type {entry.type_number}",
            expected=", ".join(GGML_TYPES),
            hint="take the same model in another quantization",
        )
    elif (entry.shape[-1] if entry.shape else 1) % row.length:
        raise CheckpointError(
            f"{label} does not consist of whole blocks.",
            found=f"rows of {entry.shape[-1] if entry.shape else 1:,}",
            expected=f"a multiple of {row.length} for {row.name}",
            hint=_HINT,
        )
    else:
        name, nbytes = row.name, prod(entry.shape) // row.length * row.nbytes
    start = header.data_start + entry.offset
    info = TensorInfo(entry.name, name, entry.shape, path, start, start + nbytes)
    if entry.type_number != _MXFP4_IN_PAIRS:
        return info
    return RelaidInfo(entry.name, name, entry.shape, path, start, info.end, info, in_pairs=True)
