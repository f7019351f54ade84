"""A model's own defaults: generation_config.json, or a GGUF file's metadata."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from blazr.core.gguf_header import ARCHITECTURE_KEY, read_gguf_header
from blazr.engine.request import Pooling
from blazr.engine.sampling_params import MODEL_DEFAULTS, RANGES
from blazr.text.sidecars import read_json

_log = logging.getLogger(__name__)

_FILE = "generation_config.json"
# Source: gguf-py/gguf/constants.py of llama.cpp, Keys.General.SAMPLING_*.
_GGUF_NAMES = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
# llama.cpp's numbers; what ranks looks at the last token, too.
_NONE = 0
_POOLINGS: Mapping[int, Pooling] = {1: "mean", 3: "last", 4: "last"}


def sampling_defaults(
    directory: Path | None, metadata: Mapping[str, object] | None = None
) -> dict[str, float]:
    """The sampling parameters that a model comes with, by the names of `SamplingParams`.

    A value that no request could ask for is left out, with a warning.

    Args:
        directory: Where generation_config.json lies, if it does; None is nowhere.
        metadata: Of a GGUF file.

    Raises:
        CheckpointError: The file holds no JSON object.
    """
    declared: Mapping[str, object] = {} if directory is None else read_json(directory / _FILE)
    if metadata:
        declared = {ours: metadata.get(name) for ours, name in _GGUF_NAMES.items()}
    found: dict[str, float] = {}
    for name in MODEL_DEFAULTS:
        value = declared.get(name)
        if value is None:
            continue
        if name == "top_k" and value == -1:
            value = 0
        if not _is_in_range(name, value):
            _log.warning("the model's own %s is ignored: %s", name, repr(value)[:50])
        elif isinstance(value, int | float):
            found[name] = int(value) if name == "top_k" else float(value)
    return found


def sampling_defaults_at(path: Path) -> dict[str, float]:
    """The same of a model on disk.

    Args:
        path: Its directory or its file.

    Raises:
        CheckpointError: Its metadata cannot be read.
    """
    if path.suffix == ".gguf":
        with path.open("rb") as stream:
            return sampling_defaults(None, read_gguf_header(stream).metadata)
    return sampling_defaults(path if path.is_dir() else path.parent)


def own_pooling(metadata: Mapping[str, object]) -> tuple[Pooling, bool]:
    """How a GGUF model makes vectors, and whether the end-of-text token stands behind a text then.

    The mean where the file does not say.

    Args:
        metadata: The file's; empty for other files.
    """
    number = metadata.get(f"{metadata.get(ARCHITECTURE_KEY)}.pooling_type", _NONE)
    if number == _NONE:
        return "mean", False
    found = _POOLINGS.get(number) if type(number) is int else None
    if found is None:
        _log.warning("the model's own pooling_type is ignored: %s", repr(number)[:50])
    return found or "mean", metadata.get("tokenizer.ggml.add_eos_token") is True


def _is_in_range(name: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = RANGES[name]
    # before anything is computed of it: JSON has ints that no float can be; NaN is in no range
    if not low <= value <= high:
        return False
    return name != "top_k" or value == int(value)
