"""The headers of released models under tests/golden/headers: see the SOURCE.md there."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blazr.models.checkpoint.base import ELEMENT_TYPES, Checkpoint, TensorInfo

HEADERS = Path(__file__).parent / "golden" / "headers"
MADE = sorted(path.stem for path in HEADERS.glob("*.json"))

Shapes = dict[str, tuple[int, ...]]


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


def made(model: str) -> tuple[Shapes, dict[str, Any]]:
    """The shapes that transformers' class makes of a published config, and that config."""
    header = json.loads((HEADERS / f"{model}.json").read_text())
    rows = header["tensors"]
    shapes = {n: tuple(shape) for pattern, shape, *at in rows for n in names(pattern, *at)}
    return shapes, header["config"]


@dataclass(frozen=True)
class Recorded:
    """What was read of a published file.

    Args:
        tensors: dtype and shape by name; no shape where only names were read.
        config: Its config.json.
        header: The made header of the same model, or "".
        says: Its own number of tensors, sum of parameters, or sum of bytes.
        metadata: Of GGUF files.
        is_whole: Whether these are all its tensors.
    """

    tensors: Mapping[str, tuple[str, tuple[int, ...] | None]]
    config: dict[str, Any]
    header: str
    says: Mapping[str, int]
    metadata: Mapping[str, Any]
    is_whole: bool

    @property
    def sums(self) -> dict[str, int]:
        """What it should say of itself, by its names and shapes."""
        shapes = [(dtype, math.prod(shape)) for dtype, shape in self.tensors.values() if shape is not None]
        return {
            "tensors": len(self.tensors),
            "parameters": sum(count for _, count in shapes),
            "bytes": sum(count * ELEMENT_TYPES[dtype][0] for dtype, count in shapes),
        }


def recorded(model: str) -> Recorded:
    """A file of ``recorded/``; shapes that were not read are those of the made header."""
    file = json.loads((HEADERS / "recorded" / f"{model}.json").read_text())
    header = file.get("header", "")
    config = made(header)[1] if header else {}
    tensors = {
        name: (dtype, None if shape is None else tuple(shape))
        for pattern, dtype, shape, *places in file["tensors"]
        for name in names(pattern, *places)
    }
    return Recorded(
        tensors=tensors,
        config=config | file.get("config", {}),
        header="" if "config" in file and "quantization_config" not in file["config"] else header,
        says=file["says"],
        metadata=file.get("metadata", {}),
        is_whole=file.get("whole", True),
    )


def checkpoint(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], config: dict[str, Any], **rest: Any
) -> Checkpoint:
    """Headers alone."""
    file, position, found = Path("model.safetensors"), 0, {}
    for name, (dtype, shape) in tensors.items():
        end = position + ELEMENT_TYPES[dtype][0] * math.prod(shape)
        found[name] = TensorInfo(name, dtype, shape, file, position, end)
        position = end
    return Checkpoint(path=file, files={file: position}, tensors=found, config=config, **rest)
