"""Which reference judges a model, and opening its files without the engine's readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import torch

from blazr.bench.reference import REFERENCES, SECTIONS
from blazr.bench.reference.gguf import GgufFiles
from blazr.bench.reference.gguf_models import gguf_model
from blazr.bench.reference.hf_config import Config
from blazr.bench.reference.mlx import with_released_tensors
from blazr.bench.reference.model import ReferenceModel
from blazr.bench.reference.ollama import as_llama_cpp
from blazr.bench.reference.oxidizr import oxidizr_model
from blazr.bench.reference.quantized import with_plain_matrices
from blazr.bench.reference.refusal import NoReferenceError
from blazr.bench.reference.safetensors import SafetensorsFiles
from blazr.bench.reference.settings import Settings, section
from blazr.bench.reference.weights import Renamed, Source, Weights


def open_reference(
    files: Sequence[Path],
    config_path: Path | None,
    *,
    dtype: torch.dtype = torch.float64,
) -> ReferenceModel:
    """The reference of a model.

    Args:
        files: Those that hold its tensors.
        config_path: Its config.json, or None.
        dtype: What is computed in: float64, or float32 to see what that loses.

    Raises:
        NoReferenceError: Nobody has written one for it.
    """
    if files[0].suffix == ".gguf":
        tensors, metadata = as_llama_cpp(GgufFiles(files))
        return gguf_model(Weights(tensors, dtype), metadata)
    own: Settings = json.loads(config_path.read_text()) if config_path else {}
    kind = own.get("model_type")
    source: Source = with_plain_matrices(SafetensorsFiles(files), own)
    source = with_released_tensors(source, str(kind))
    written = {"architectures", "transformers_version"} & own.keys()  # by transformers
    if kind and written and any(name.startswith("layers.") for name in source.names):
        source = _as_whole(source, "backbone." if "norm_f.weight" in source.names else "model.")
    w = Weights(source, dtype)
    if kind is None and any(name.startswith("backbone.") for name in w.names):
        kind = "mamba"
    if kind is None or any(name.startswith("embed_tokens.") for name in w.names):
        # the trainer may have noted more of the model beside its weights
        path = files[0].parent / "training_config.json"
        noted = json.loads(path.read_text()) if path.exists() else {}
        training: Settings = (noted.get("config") or {}).get("model") or {}
        return oxidizr_model(w, own, training)
    if kind in SECTIONS:  # models that see: the language model has a part of the config
        own = section(own["text_config"], "text_config") if "text_config" in own else own
        said = own.get("model_type")
        kind = said if said in REFERENCES else SECTIONS[kind]
    if kind not in REFERENCES:
        raise NoReferenceError(f"models of type {str(kind)[:60]!r}")
    module = import_module(REFERENCES[kind].partition(":")[0])
    build: Callable[[Weights, str, Config], ReferenceModel]
    build = getattr(module, REFERENCES[kind].partition(":")[2])
    defaults = {**module.DEFAULTS.get(kind, {})}
    return build(w, kind, Config({**own, "model_type": kind}, defaults))


def _as_whole(source: Source, prefix: str) -> Renamed:
    """The tensors of a model that was saved without its head, by their names in the whole."""
    beside = ("lm_head.", "mtp.")
    names = source.names
    return Renamed(source, {n if n.startswith(beside) else prefix + n: n for n in names})
