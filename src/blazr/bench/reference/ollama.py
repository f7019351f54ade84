"""GGUF files of Ollama's own converter, under the names and keys of llama.cpp's.

Written from GitHub ollama/ollama, ``convert/convert_*.go``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from blazr.bench.reference.gguf import GgufFiles
from blazr.bench.reference.settings import Settings
from blazr.bench.reference.weights import Rows, Source

_ARCHITECTURES = {
    "gptoss": "gpt-oss",
    "olmo3": "olmo2",
    "glm4moelite": "deepseek2",
    "nemotron_h_omni": "nemotron_h_moe",
}
# Parts of layers: up to the dot before "weight" or "bias", and where there is none.
_PARTS = {
    "attn_out": "attn_output",
    "ffn_latent_in": "ffn_latent_down",
    "ffn_latent_out": "ffn_latent_up",
}
_ENDLESS = {
    "attn_sinks": "attn_sinks.weight",
    "exp_probs_b": "exp_probs_b.bias",
    "ssm_dt": "ssm_dt.bias",
}
_KEYS = {
    "norm_top_k_prob": "expert_weights_norm",
    "rope.global.freq_base": "rope.freq_base",
    "rope.local.freq_base": "rope.freq_base_swa",
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "rope.scaling_beta": "attention.temperature_scale",
}


@dataclass(frozen=True)
class _Place:
    """Where a tensor is: all of a stored one, or every second of its rows."""

    name: str
    first_row: int | None = None


class _Renamed:
    """Tensors under other names."""

    def __init__(self, source: Source, places: Mapping[str, _Place]) -> None:
        self._source = source
        self._places = places

    @property
    def names(self) -> Collection[str]:
        return self._places.keys()

    def read(self, name: str, rows: Rows = None) -> Tensor:
        place = self._places[name]
        found = self._source.read(place.name, rows)
        return found if place.first_row is None else found[:, place.first_row :: 2]

    def shape(self, name: str) -> tuple[int, ...]:
        place = self._places[name]
        shape = self._source.shape(place.name)
        return shape if place.first_row is None else (shape[0], shape[1] // 2, *shape[2:])


def as_llama_cpp(files: GgufFiles) -> tuple[Source, Settings]:
    """Tensors and metadata as llama.cpp's converter calls them; its own stay as they are."""
    kind = str(files.metadata.get("general.architecture"))
    places: dict[str, _Place] = {}
    for name in files.names:
        found = re.fullmatch(r"(blk\.\d+\.)(\w+)(.*)", name)
        layer, part, end = found.groups() if found else ("", name, "")
        if kind == "gptoss" and part == "ffn_gate_up_exps":  # rows of the two in turns
            for row, half in enumerate(("gate", "up")):
                places[f"{layer}ffn_{half}_exps{end}"] = _Place(name, row)
            continue
        if kind == "gptoss" and part == "ffn_norm":
            part = "post_attention_norm"
        part = _ENDLESS.get(part, part) if not end else _PARTS.get(part, part)
        places[layer + part + end] = _Place(name)
    return _Renamed(files, places), _metadata(files.metadata, kind)


def _metadata(found: Settings, kind: str) -> Settings:
    architecture = _ARCHITECTURES.get(kind, kind)
    own = {
        key.removeprefix(f"{kind}."): value
        for key, value in found.items()
        if key.startswith(f"{kind}.")
    }
    if kind == "gptoss":
        own.setdefault("rope.scaling.type", "yarn")
    for old, new in _KEYS.items():
        if own.get(old) or own.get(old) is False:  # 0 says that there is none
            own.setdefault(new, own[old])
    if kind == "glm4moelite":  # the lengths of a head and of the latent, changed over
        for each in ("attention.key_length", "attention.value_length"):
            own[f"{each}_mla"] = own.get(each)
    renamed = {f"{architecture}.{key}": value for key, value in own.items()}
    return {**found, **renamed, "general.architecture": architecture}
