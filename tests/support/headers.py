"""The headers of released models under tests/golden/headers: see the SOURCE.md there."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blazr.core.gguf_header import Value
from blazr.models.checkpoint.base import ELEMENT_TYPES, Checkpoint, TensorInfo
from blazr.nn.quant.gguf import GGML_TYPES

HEADERS = Path(__file__).resolve().parents[1] / "golden" / "headers"
MADE = sorted(path.stem for path in HEADERS.glob("*.json"))
_RECORDED = HEADERS / "recorded"
RECORDED = sorted({path.stem for path in _RECORDED.glob("*.json")} - {"names", "totals"})

NAMES: dict[str, set[str]] = {
    model: set(row["names"])
    for model, row in json.loads((_RECORDED / "names.json").read_text()).items()
}

Shapes = dict[str, tuple[int, ...]]
Tensors = dict[str, tuple[str, tuple[int, ...]]]


def names(pattern: str, *places: str) -> Iterator[str]:
    """``("layers.#.w", "0-1,3")`` to layers.0.w, layers.1.w, layers.3.w."""
    choices = []
    for place in places:
        ends = [part.split("-") for part in place.split(",")]
        choices.append([n for part in ends for n in range(int(part[0]), int(part[-1]) + 1)])
    for numbers in itertools.product(*choices):
        name = pattern
        for number in numbers:
            name = name.replace("#", str(number), 1)
        yield name


def made(model: str) -> tuple[Shapes, dict[str, object]]:
    """The shapes that transformers' class makes of a published config, and that config."""
    header = json.loads((HEADERS / f"{model}.json").read_text())
    rows = header["tensors"]
    shapes = {n: tuple(shape) for pattern, shape, *at in rows for n in names(pattern, *at)}
    return shapes, header["config"]


@dataclass(frozen=True)
class Totals:
    """What was read of a published file as a whole.

    Args:
        says: Its number of tensors, sum of parameters, or sum of bytes.
        billions: Its bytes by two, rounded to a thousandth; 0 where they were not read.
        beyond: Parameters in it that are not in the made header.
        wide: Ends of names of tensors that are float32 in it.
    """

    says: dict[str, int]
    billions: float = 0.0
    beyond: int = 0
    wide: tuple[str, ...] = ()


def _totals(row: dict[str, object]) -> Totals:
    said = {key: row.pop(key) for key in ("tensors", "parameters", "bytes") if key in row}
    del row["source"]
    return Totals(said, **{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})  # type: ignore[arg-type]


TOTALS = {
    model: _totals(row)
    for model, row in json.loads((_RECORDED / "totals.json").read_text()).items()
}


@dataclass(frozen=True)
class Recorded:
    """What was read of a published file.

    Args:
        tensors: dtype and shape by name.
        config: Its config.json.
        made: The shapes of the made header of the same model, where there is one.
        says: Its own number of tensors, sum of parameters, or sum of bytes, which logs round.
        index: How many files an index lists, and how large the index is.
        is_whole: Whether these are all its tensors.
        is_gguf: Whether names are those of GGUF files.
        metadata: What a GGUF file says of the model, where that was read.
        layers: How many layers were read from the first on; 0 where all or others were.
    """

    tensors: Tensors
    config: dict[str, object]
    made: Shapes
    says: Mapping[str, float]
    index: Mapping[str, float]
    is_whole: bool
    is_gguf: bool
    metadata: Mapping[str, Value]
    layers: int


def recorded(model: str) -> Recorded:
    """A file of ``recorded/``; shapes that were not read are those of the made header."""
    file = json.loads((_RECORDED / f"{model}.json").read_text())
    shapes, config = made(file["header"]) if "header" in file else ({}, {})
    config |= file.get("config", {})
    return Recorded(
        tensors={
            name: (dtype, tuple(shapes[name] if shape is None else shape))
            for pattern, dtype, shape, *places in file["tensors"]
            for name in names(pattern, *places)
        },
        config={key: config[key] for key in config.keys() - set(file.get("without", ()))},
        made=shapes,
        says=file["says"],
        index=file.get("index", {}),
        is_whole=file.get("whole", True),
        is_gguf=file.get("gguf", False),
        metadata=file.get("metadata", {}),
        layers=file.get("layers", 0),
    )


def size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    if dtype in ELEMENT_TYPES:
        return ELEMENT_TYPES[dtype][0] * math.prod(shape)
    kind = GGML_TYPES[dtype]
    return math.prod(shape) // kind.length * kind.nbytes


def sums(tensors: Tensors) -> dict[str, float]:
    """What a file of these tensors says of itself."""
    nbytes = sum(size(dtype, shape) for dtype, shape in tensors.values())
    return {
        "tensors": len(tensors),
        "parameters": sum(math.prod(shape) for _, shape in tensors.values()),
        "bytes": nbytes,
        "MiB": round(nbytes / 2**20, 2),
        "GB": round(nbytes / 1e9, 1),
    }


def index(tensors: Tensors, files: float) -> dict[str, float]:
    """What an index of these tensors says of itself, as transformers writes it.

    The names of files are all as long as each other, so it tells how long those of tensors are.
    """
    file = f"model-00001-of-{int(files):05d}.safetensors"
    total = {"total_size": sums(tensors)["bytes"]}
    written = json.dumps({"metadata": total, "weight_map": dict.fromkeys(tensors, file)}, indent=2)
    nbytes = len(written) + 1
    return {"files": files, "bytes": nbytes, "kB": round(nbytes / 1000, 1)}


def checkpoint(
    tensors: Tensors, config: dict[str, object] | None, metadata: Mapping[str, Value] | None = None
) -> Checkpoint:
    """Headers alone."""
    file, position, found = Path("model.safetensors"), 0, {}
    for name, (dtype, shape) in tensors.items():
        end = position + size(dtype, shape)
        found[name] = TensorInfo(name, dtype, shape, file, position, end)
        position = end
    return Checkpoint(
        path=file,
        files={file: position},
        tensors=found,
        config=config or {},
        metadata=metadata or {},
    )
