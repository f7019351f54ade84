"""Tiny random models of the transformers library: what ours must agree with."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from networks import VOCAB

SIZES: dict[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Whatever a library remembers outside the file must not tell the classes apart.
_KEPT = ("inv_freq", "embed_scale")


def save_reference(
    model_type: str, directory: Path, *, seed: int = 0, changes: dict[str, object] | None = None
) -> nn.Module:
    """Make a random model, write it as users find it, and return it.

    Args:
        model_type: As transformers calls it.
        directory: Where to.
        seed: Of the weights.
        changes: Settings of its config beside or in place of SIZES.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    config = transformers.CONFIG_MAPPING[model_type](**SIZES | deepcopy(changes or {}))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval().requires_grad_(requires_grad=False)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not any(word in name for word in _KEPT):
            _fill(name, tensor, is_offset="gemma" in model_type)
    model.save_pretrained(directory)
    return model


def _fill(name: str, tensor: Tensor, *, is_offset: bool) -> None:
    if tensor.dim() > 1:
        tensor.normal_(0, 0.3)
        return
    tensor.normal_(0, 0.2)
    if "norm" in name and name.endswith("weight") and not is_offset:
        tensor.add_(1)


def reference_logits(model: nn.Module, token_ids: list[int]) -> Tensor:
    """Scores at every position, (T, V)."""
    for part in model.modules():
        if hasattr(part, "max_seq_len_cached") and hasattr(
            part, "inv_freq"
        ):  # dynamic rotation remembers longer sequences
            part.max_seq_len_cached = part.original_max_seq_len
            part.inv_freq = part.original_inv_freq
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def rewrite_config(directory: Path, **changes: object) -> None:
    """Set keys of config.json; None as a value takes the key away."""
    path = directory / "config.json"
    written = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in written.items() if v is not None}))
