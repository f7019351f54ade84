"""Quantized checkpoints: the tensors that stand for a matrix become one, under its plain name.

So that families never see them: ``q_proj.qweight``, ``q_proj.scales`` and the rest are
``q_proj.weight`` of the matrix's own shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint, QuantizedInfo, TensorInfo, read_json
from blazr.models.checkpoint.mlx import SETTINGS
from blazr.nn.quant.hf import SCHEMES
from blazr.nn.quant.hf.scheme import QuantizationConfig

if TYPE_CHECKING:
    from torch import Tensor

# Of config.json, or of its text_config.
CONFIG_KEYS = ("quantization_config", "compression_config")
# Files in which older writers keep the settings, and the method that each stands for.
_SETTINGS_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
# The settings of NVIDIA's Model Optimizer, whose tensors go by the names of plain ones.
_MODELOPT_FILE = "hf_quant_config.json"
# Methods that the rules of the family with such models read.
_READ_BY_FAMILIES = {"mxfp4"}


def join_quantized(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with one tensor for each quantized matrix; itself where nothing is quantized.

    Raises:
        CheckpointError: Tensors are missing or do not fit each other.
        ConfigError: The method or one of its settings is not supported.
    """
    settings = _settings(checkpoint)
    if settings is None:
        return checkpoint
    method = settings.text("quant_method", "").lower()
    if method in _READ_BY_FAMILIES:
        return checkpoint
    if method not in SCHEMES:
        raise settings.wrong("quant_method", ", ".join((*SCHEMES, *_READ_BY_FAMILIES)))
    scheme = SCHEMES[method]
    tensors = checkpoint.tensors
    found = dict[str, TensorInfo]()
    used = set[str]()
    ends = tuple(f".{end}" for end in scheme.mains)
    for name, info in tensors.items():
        main = next((end for end in ends if name.endswith(end)), None)
        if main is None:
            continue
        base = name.removesuffix(main)
        others = ((end, tensors.get(f"{base}.{end}")) for end in scheme.others)
        parts = {main[1:]: info, **{end: other for end, other in others if other}}
        layout = scheme.layout(settings, parts, _reader(checkpoint, parts))
        if layout is None:
            continue
        used.update(part.name for part in parts.values())
        whole = f"{base}.weight"
        found[name] = QuantizedInfo(
            whole, layout.name, layout.shape, info.file, info.start, info.end, parts, layout
        )
    ignored = tuple(f".{end}" for end in scheme.ignored)
    kept = (
        found.get(name, info)
        for name, info in tensors.items()
        if name in found or (name not in used and not name.endswith(ignored))
    )
    return replace(checkpoint, tensors={info.name: info for info in kept})


def _settings(checkpoint: Checkpoint) -> QuantizationConfig | None:
    """What config.json, or a file of its own, says about the quantization."""
    config = checkpoint.config
    text = config.get("text_config")  # where models that also see have it: Kimi K2.5
    inner = text if isinstance(text, Mapping) else {}
    keys = (SETTINGS, *CONFIG_KEYS) if _guess(checkpoint) == "mlx" else CONFIG_KEYS
    for section, key in itertools.product((config, inner), keys):
        raw = section.get(key)
        if raw is None:
            continue
        if not isinstance(raw, Mapping):
            raise ConfigError(
                f"config.json: {key!r} has a wrong value.",
                found=repr(raw)[:100],
                expected="an object",
            )
        return QuantizationConfig({"quant_method": _guess(checkpoint), **raw})
    path = checkpoint.directory / _MODELOPT_FILE
    if path.exists():
        quantization = QuantizationConfig(read_json(path), _MODELOPT_FILE).section("quantization")
        return QuantizationConfig({**quantization.raw, "quant_method": "modelopt"}, _MODELOPT_FILE)
    if "qweight" not in {name.rpartition(".")[2] for name in checkpoint.tensors}:
        return None
    for name, method in _SETTINGS_FILES.items():
        path = checkpoint.directory / name
        if path.exists():
            return QuantizationConfig({**read_json(path), "quant_method": method}, name)
    return QuantizationConfig({"quant_method": _guess(checkpoint)})


def _guess(checkpoint: Checkpoint) -> str:
    """The method by the names of tensors, for files that do not say it."""
    ends = {name.rpartition(".")[2] for name in checkpoint.tensors}
    if "qweight" in ends:
        return "gptq" if "g_idx" in ends else "awq"
    if any(n.endswith(".weight") and each.dtype == "U32" for n, each in checkpoint.tensors.items()):
        return "mlx"
    return "fp8" if "weight_scale_inv" in ends else "compressed-tensors"


def _reader(checkpoint: Checkpoint, parts: Mapping[str, TensorInfo]) -> Callable[[str], Tensor]:
    return lambda key: checkpoint.view(parts[key])
