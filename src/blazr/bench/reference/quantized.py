"""Quantized safetensors checkpoints: matrices that several tensors stand for, in plain formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.safetensors import SafetensorsFiles
from blazr.bench.reference.weights import Source


def with_plain_matrices(files: SafetensorsFiles, config: Mapping[str, Any]) -> Source:
    """The files as if nothing were quantized.

    Args:
        files: The files.
        config: The contents of config.json.

    Raises:
        NoReferenceError: They are quantized in a way that nobody has written here.
    """
    said = config.get("quantization_config") or (config.get("text_config") or {}).get(
        "quantization_config"
    )
    if said is None:
        return files
    raise NoReferenceError(f"checkpoints quantized by {said.get('quant_method')!r}")
