"""Tiny random models with a module for multi-token prediction."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.hybrids import HYBRIDS
from tests.support.references import CASES, save_reference

# By kind of reference: where the module is, and a layer of attention like its own.
KINDS = {
    "qwen3_next": ("mtp.", "model.layers.1."),
    "qwen3_5_text": ("mtp.", "model.layers.1."),
    "qwen3_5_moe_text": ("mtp.", "model.layers.1."),
    "deepseek_v3": ("model.layers.2.", "model.layers.1."),
    "glm4_moe": ("model.layers.2.", "model.layers.1."),
}
_BESIDE = {
    "projection": "fc",
    "embedding": "pre_fc_norm_embedding",
    "hidden": "pre_fc_norm_hidden",
    "last": "norm",
    "layer": "layers.0.",
}
_BEHIND = {
    "projection": "eh_proj",
    "embedding": "enorm",
    "hidden": "hnorm",
    "last": "shared_head.norm",
    "layer": "",
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
    begin, like = KINDS[kind]
    is_behind = begin != "mtp."
    if is_behind:
        changes["num_nextn_predict_layers"] = 1
    model_type, own = {**CASES, **HYBRIDS}[kind]
    save_reference(model_type, path, changes={**own, **changes})
    file = path / "model.safetensors"
    tensors = load_file(file)
    names = _BEHIND if is_behind else _BESIDE
    generator = torch.Generator().manual_seed(7)

    def noise(tensor: Tensor) -> Tensor:
        spread = tensor.float().std() if tensor.numel() > 1 else tensor.float().abs()
        drawn = torch.randn(tensor.shape, generator=generator) * spread
        return (drawn + tensor.float().mean()).to(tensor.dtype)

    more = {
        begin + names["layer"] + name.removeprefix(like): noise(tensor)
        for name, tensor in tensors.items()
        if name.startswith(like)
    }
    norm = tensors["model.norm.weight"]
    for part in ("embedding", "hidden", "last"):
        more[f"{begin}{names[part]}.weight"] = noise(norm)
    size = len(norm)
    drawn = torch.randn(size, 2 * size, generator=generator) / size**0.5
    more[f"{begin}{names['projection']}.weight"] = drawn.to(norm.dtype)
    if is_behind:  # the same again, as the releases have it
        more[f"{begin}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
        more[f"{begin}shared_head.head.weight"] = head.clone()
    save_file({**tensors, **more}, file)
    return path
