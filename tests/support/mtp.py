"""Tiny random models with a module for multi-token prediction."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.hybrids import HYBRIDS
from tests.support.references import CASES, save_reference


@dataclass(frozen=True)
class Stored:
    """How a kind of model has such a module.

    Args:
        case: The reference, one of those of `CASES` and `HYBRIDS`.
        like: By what the names of its layer's tensors begin with, those of a layer of the model
            that is like it; of two where a layer is in two halves.
        names: Of the projection, and of the norms of the embedded token, of the hidden state and
            before the head.
        model_type: What the config calls it, where that is not the reference's.
        hidden_first: Whether the hidden state is before the embedded token.
        repeats: Whether it has embedding and head of the model again.
        renamed: Parts of the names of its layer's tensors, by those of the model's layer.
        changes: Settings of the reference's config.
    """

    case: str
    like: dict[str, str]
    names: tuple[str, str, str, str]
    model_type: str | None = None
    hidden_first: bool = False
    repeats: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    changes: dict[str, object] = field(default_factory=dict)

    def own_name(self, name: str, begin: str) -> str:
        """What a tensor of a layer is called in the module.

        Args:
            name: Of the model's layer.
            begin: What names of the module's layer begin with.
        """
        own = begin + name.removeprefix(self.like[begin])
        for theirs, ours in self.renamed.items():
            own = own.replace(theirs, ours)
        return own

    @property
    def begin(self) -> str:
        """What all names of the module begin with."""
        return "mtp." if next(iter(self.like)).startswith("mtp.") else next(iter(self.like))


def _qwen(case: str) -> Stored:
    names = "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"
    return Stored(case, {"mtp.layers.0.": "model.layers.1."}, names)


def _behind(case: str) -> Stored:
    begin = "model.layers.2."
    names = tuple(begin + each for each in ("eh_proj", "enorm", "hnorm", "shared_head.norm"))
    changes = {"num_nextn_predict_layers": 1}
    return Stored(case, {begin: "model.layers.1."}, names, repeats=True, changes=changes)


_MIMO = "model.mtp_layers.0."
_MIMO_V2 = "model.mtp.layers.0."
KINDS = {
    "qwen3_next": _qwen("qwen3_next"),
    "qwen3_5_text": _qwen("qwen3_5_text"),
    "qwen3_5_moe_text": _qwen("qwen3_5_moe_text"),
    "deepseek_v3": _behind("deepseek_v3"),
    "glm4_moe": _behind("glm4_moe"),
    "glm4_moe_lite": _behind("glm4_moe_lite"),
    "hy_v3": Stored(
        "hy_v3",
        {"model.layers.2.": "model.layers.1."},
        tuple(
            f"model.layers.2.{each}" for each in ("eh_proj", "enorm", "hnorm", "final_layernorm")
        ),
        repeats=True,
        changes={"num_nextn_predict_layers": 1},
    ),
    "mimo_v2_flash": Stored(
        "mimo_v2_flash",
        {_MIMO_V2: "model.layers.1."},
        tuple(_MIMO_V2 + each for each in ("eh_proj", "enorm", "hnorm", "final_layernorm")),
        renamed={"post_attention_layernorm": "pre_mlp_layernorm"},
        changes={"mlp_layer_types": ["sparse", "dense", "sparse"]},
    ),
    "mimo": Stored(
        "qwen2",
        {_MIMO: "model.layers.1."},
        (
            _MIMO + "input_proj",
            _MIMO + "token_layernorm",
            _MIMO + "hidden_layernorm",
            _MIMO + "final_layernorm",
        ),
        model_type="mimo",
        hidden_first=True,
    ),
    "nemotron_h": Stored(
        "nemotron_h experts",
        {"mtp.layers.0.": "backbone.layers.2.", "mtp.layers.1.": "backbone.layers.3."},
        (
            "mtp.layers.0.eh_proj",
            "mtp.layers.0.enorm",
            "mtp.layers.0.hnorm",
            "mtp.layers.1.final_layernorm",
        ),
        changes={"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
    ),
}


def save_with_mtp(kind: str, path: Path, **changes: object) -> Path:
    """Write a reference of this kind, and a random module beside or behind its layers.

    Args:
        kind: One of KINDS.
        path: The directory.
        changes: Settings of its config.

    Returns:
        The directory.
    """
    stored = KINDS[kind]
    model_type, own = {**CASES, **HYBRIDS}[stored.case]
    save_reference(model_type, path, changes={**own, **stored.changes, **changes})
    file = path / "model.safetensors"
    tensors = load_file(file)
    generator = torch.Generator().manual_seed(7)

    def noise(tensor: Tensor) -> Tensor:
        spread = tensor.float().std() if tensor.numel() > 1 else tensor.float().abs()
        drawn = torch.randn(tensor.shape, generator=generator) * spread
        return (drawn + tensor.float().mean()).to(tensor.dtype)

    more = {
        stored.own_name(name, begin): noise(tensor)
        for begin, like in stored.like.items()
        for name, tensor in tensors.items()
        if name.startswith(like)
    }
    head = tensors.get("model.norm.weight", tensors.get("backbone.norm_f.weight"))
    projection, *norms = stored.names
    for name in norms:
        more[f"{name}.weight"] = noise(head)
    size = len(head)
    drawn = torch.randn(size, 2 * size, generator=generator) / size**0.5
    more[f"{projection}.weight"] = drawn.to(head.dtype)
    if stored.repeats:  # as the releases have it
        embedding = tensors["model.embed_tokens.weight"]
        more[f"{stored.begin}embed_tokens.weight"] = embedding.clone()
        scores = tensors.get("lm_head.weight", embedding)
        more[f"{stored.begin}shared_head.head.weight"] = scores.clone()
    save_file({**tensors, **more}, file)
    if stored.model_type is not None:
        config = path / "config.json"
        values = json.loads(config.read_text("utf-8")) | {"model_type": stored.model_type}
        config.write_text(json.dumps(values), "utf-8")
    return path
