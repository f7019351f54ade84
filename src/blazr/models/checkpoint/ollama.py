"""GGUF files of Ollama's own converter, in the words of llama.cpp's: nothing behind knows two.

Source: GitHub ollama/ollama, ``convert/convert_*.go`` (what is written; rows name their file),
``model/models/*/model.go`` and ``ml/backend/ggml/ggml.go`` (what that means).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from blazr.core.gguf_header import Value
from blazr.models.checkpoint.base import Header, RelaidInfo, TensorInfo

_PART = re.compile(r"(blk\.\d+\.)(\w+\.?)(.*)", re.ASCII)
_SPLITS = "tokenizer.ggml.pre"
# What is written where a way to split text is not recognised, or like Llama 3's.
_ANY_SPLITS = ("", "default", "llama-bpe")


class Dialect(NamedTuple):
    """How Ollama's files of one architecture differ.

    Args:
        architecture: What llama.cpp calls it.
        splits: How its tokenizer splits text, where the file says nothing particular.
        defaults: What is left out.
        keys: Keys that mean what another one does there.
    """

    architecture: str
    splits: str = ""
    defaults: Mapping[str, Value] = {}
    keys: Mapping[str, str] = {}


# sizes of one head, where llama.cpp has those of the latent vector
_HEAD = {f"attention.{each}_length": f"attention.{each}_length_mla" for each in ("key", "value")}
DIALECTS: Mapping[str, Dialect] = {
    "gptoss": Dialect("gpt-oss", "gpt-4o", {"rope.scaling.type": "yarn"}),  # convert_gptoss.go
    "olmo3": Dialect("olmo2", "dbrx"),  # convert_olmo.go
    "glm4moelite": Dialect("deepseek2", "glm4", keys=_HEAD),  # convert_glm4moelite.go
    "nemotron_h_omni": Dialect("nemotron_h_moe"),  # convert_nemotron_h.go: it sees and hears
    "mistral3": Dialect("mistral3", "tekken"),  # convert_mistral.go
    "lfm2": Dialect("lfm2", "lfm2"),  # convert_lfm2.go
    "lfm2moe": Dialect("lfm2moe", "lfm2"),
}
# convert_gptoss.go, convert_nemotron_h.go, convert_qwen3next.go: whole names, or up to the dot
_PARTS = {
    "gptoss ffn_norm.": "post_attention_norm.",
    "attn_out.": "attn_output.",
    "attn_sinks": "attn_sinks.weight",
    "exp_probs_b": "exp_probs_b.bias",
    "ffn_latent_in.": "ffn_latent_down.",
    "ffn_latent_out.": "ffn_latent_up.",
    "ssm_dt": "ssm_dt.bias",
}
# convert_gemma3.go, convert_mistral_causal.go, convert_qwen3.go
_KEYS = {
    "norm_top_k_prob": "expert_weights_norm",
    "rope.global.freq_base": "rope.freq_base",
    "rope.local.freq_base": "rope.freq_base_swa",
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "rope.scaling_beta": "attention.temperature_scale",
}


def as_llama_cpp(header: Header) -> Header:
    """A header in the words of llama.cpp's converter; its own come back as they are."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        return header
    dialect = DIALECTS.get(name, Dialect(name))
    tensors = {
        info.name: info
        for stored in header.tensors.values()
        for info in _renamed_tensors(stored, name, header.tensors)
    }
    begin, ours = f"{name}.", dialect.architecture
    own = {
        key.removeprefix(begin): value
        for key, value in header.metadata.items()
        if key.startswith(begin)
    }
    metadata = {k: value for k, value in header.metadata.items() if not k.startswith(begin)}
    metadata["general.architecture"] = ours
    if dialect.splits and metadata.get(_SPLITS, "") in _ANY_SPLITS:
        metadata[_SPLITS] = dialect.splits
    keys = {**dialect.defaults, **_renamed_keys(own, _KEYS), **own}
    keys |= _renamed_keys(own, dialect.keys)
    return Header(tensors, metadata | {f"{ours}.{key}": value for key, value in keys.items()})


def _renamed_tensors(
    stored: TensorInfo, name: str, present: Mapping[str, TensorInfo]
) -> list[TensorInfo]:
    """What a tensor is there; itself where that is there as well, for the plan to complain of."""
    found = _PART.fullmatch(stored.name)
    at, part, end = found.groups() if found else ("", "", stored.name)
    part = _PARTS.get(f"{name} {part}", _PARTS.get(part, part))
    made: list[TensorInfo] = [replace(stored, name=at + part + end)]
    can_split = len(stored.shape) > 1 + stored.is_packed and stored.shape[1] % 2 == 0
    if name == "gptoss" and part == "ffn_gate_up_exps." and can_split:
        # the first releases have rows of gate and up in turns
        size, rows, *more = stored.shape
        base = stored.stored if isinstance(stored, RelaidInfo) else stored
        shape, half = (size, rows // 2, *more), stored.nbytes // 2
        made = [
            RelaidInfo(
                name=f"{at}ffn_{each}_exps.{end}",
                dtype=stored.dtype,
                shape=shape,
                file=stored.file,
                start=stored.start + first * half,
                end=stored.start + (first + 1) * half,
                stored=base,
                first=first,
                step=2,
                in_pairs=base is not stored,
            )
            for first, each in enumerate(("gate", "up"))
        ]
    return [stored] if any(each.name in present for each in made) else made


def _renamed_keys(own: Mapping[str, Value], keys: Mapping[str, str]) -> dict[str, Value]:
    """A zero says that there is none, unless it is a truth."""
    return {keys[key]: own[key] for key in keys if own.get(key) or own.get(key) is False}
