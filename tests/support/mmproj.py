"""A model of transformers that sees, as two GGUF files with the names of llama.cpp's converter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from blazr.models.checkpoint.open import open_checkpoint
from blazr.models.loading.convert import convert
from blazr.text.tokenizers.to_gguf import gguf_vocabulary
from tests.support import ggufs

_WORDS = (
    ("encoder.layers.", "v.blk."),
    ("embeddings.patch_embedding", "v.patch_embd"),
    ("embeddings.position_embedding", "v.position_embd"),
    ("post_layernorm", "v.post_ln"),
    ("layer_norm", "ln"),
    ("self_attn.out_proj", "attn_out"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
    ("mm_input_projection_weight", "mm.input_projection.weight"),
    ("mm_soft_emb_norm", "mm.soft_emb_norm"),
    ("modality_projection.proj", "mm.model.fc"),
    # Qwen's
    ("blocks.", "v.blk."),
    ("patch_embed.proj", "v.patch_embd"),
    ("merger.ln_q", "v.post_ln"),
    ("merger.mlp.", "mm."),
    ("attn.proj", "attn_out"),
    ("attn.qkv", "attn_qkv"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    (".norm", ".ln"),
)
_BEFORE = ("vision_tower.", "vision_model.", "multi_modal_projector.", "connector.", "visual.")
_KINDS = {"qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger"}
_TEXTS = {"idefics3": "model.text_model.", "qwen2_vl": "model.language_model."}
_TEXTS["qwen2_5_vl"] = _TEXTS["qwen2_vl"]
Encode = Callable[[Tensor], "Tensor | ggufs.Blocks"]


def write(
    theirs: nn.Module,
    directory: Path,
    target: Path,
    *,
    encode: Encode = lambda tensor: tensor,
    swaps: bool = False,
) -> None:
    """Write ``model.gguf`` and ``mmproj.gguf``.

    Args:
        theirs: The model.
        directory: Where `tests.support.seeing.save` has written it.
        target: Where to.
        encode: How matrices of the tower are stored.
        swaps: Whether the tower's ``ffn_up`` and ``ffn_down`` have each other's names.
    """
    config: Any = theirs.config
    text = target.with_name(f"{target.name} text")
    shutil.copytree(directory, text)
    sections: Sequence[int] = ()
    before = _TEXTS.get(config.model_type)
    if before is not None:
        tensors = {
            name.replace(before, "model."): each.clone()
            for name, each in theirs.state_dict().items()
            if name.startswith((before, "lm_head."))
        }
        save_file(tensors, text / "model.safetensors")
        own = config.text_config.to_dict()
        own["model_type"] = "llama" if config.model_type == "idefics3" else "qwen2"
        sections = own["rope_parameters"].pop("mrope_section", ())
        (text / "config.json").write_text(json.dumps(own))
    target.mkdir(exist_ok=True)
    convert(str(text), target / "model.gguf", dtype="float32", text=gguf_vocabulary)
    if "qwen2" in config.model_type:
        _as_qwen2vl(target / "model.gguf", sections)
    found: dict[str, Tensor | ggufs.Blocks] = {}
    for name, tensor in theirs.state_dict().items():
        inner = name.removeprefix("model.")
        if not inner.startswith(_BEFORE) or ".head." in inner:
            continue
        inner = inner.partition(".")[2]
        for old, new in _WORDS:
            inner = inner.replace(old, new)
        if swaps and "ffn_" in inner:
            inner = inner.replace(*(("up", "down") if "ffn_up" in inner else ("down", "up")))
        values = tensor.float() + (inner == "mm.soft_emb_norm.weight")
        parts = {inner: values}
        if "attn_qkv" in inner:
            names = [inner.replace("qkv", each) for each in "qkv"]
            parts = dict(zip(names, values.chunk(3), strict=True))
        elif values.ndim == 5:
            parts = {inner: values[:, :, 0], f"{inner}.1": values[:, :, 1]}
        for part, numbers in parts.items():
            is_matrix = numbers.ndim == 2 and "blk" in part
            found[part] = encode(numbers) if is_matrix else numbers
    ggufs.write(target / "mmproj.gguf", found, metadata(theirs))


def _as_qwen2vl(path: Path, sections: Sequence[int]) -> None:
    """Say of a Qwen2 that its channels turn by rows and columns."""
    checkpoint = open_checkpoint(path)
    found: dict[str, object] = {}
    for key, item in checkpoint.metadata.items():
        plain = [*item] if isinstance(item, memoryview) else item
        if plain != []:
            found[key.replace("qwen2.", "qwen2vl.")] = plain
    found["general.architecture"] = "qwen2vl"
    found["qwen2vl.rope.dimension_sections"] = [*sections, 0]
    tensors = {name: checkpoint.own(info) for name, info in checkpoint.tensors.items()}
    ggufs.write(path, tensors, found)


def metadata(theirs: nn.Module) -> dict[str, object]:
    config: Any = theirs.config
    tower = config.vision_config
    found = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": _KINDS.get(config.model_type, config.model_type),
        "clip.vision.projection_dim": config.text_config.hidden_size,
        "clip.vision.patch_size": tower.patch_size,
    }
    if "qwen" in config.model_type:
        found |= {
            "clip.vision.block_count": tower.depth,
            "clip.vision.attention.head_count": tower.num_heads,
            "clip.vision.attention.layer_norm_epsilon": 1e-6,
            "clip.vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
            "clip.vision.image_std": [0.26862954, 0.26130258, 0.27577711],
            "clip.vision.image_min_pixels": 28 * 28,
            "clip.vision.image_max_pixels": 84 * 84,
        }
        if config.model_type == "qwen2_5_vl":
            found["clip.vision.n_wa_pattern"] = tower.fullatt_block_indexes[0] + 1
            found["clip.vision.window_size"] = tower.window_size
        return found
    scale = getattr(config, "scale_factor", None)
    if scale is None:
        per_side = int(config.mm_tokens_per_image**0.5)
        scale = tower.image_size // tower.patch_size // per_side
    return found | {
        "clip.use_gelu": True,
        "clip.vision.image_size": tower.image_size,
        "clip.vision.embedding_length": tower.hidden_size,
        "clip.vision.feed_forward_length": tower.intermediate_size,
        "clip.vision.block_count": tower.num_hidden_layers,
        "clip.vision.attention.head_count": tower.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": tower.layer_norm_eps,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        "clip.vision.projector.scale_factor": scale,
        "clip.vision.preproc_image_size": 56,
    }


def q8_0(matrix: Tensor) -> ggufs.Blocks:
    """A matrix in blocks of 32 numbers of a byte and a scale of two."""
    blocks = matrix.reshape(-1, 32)
    scales = (blocks.abs().amax(1, keepdim=True) / 127).half()
    codes = (blocks / scales.float().clamp_min(1e-12)).round().clamp(-127, 127).to(torch.int8)
    data = torch.cat([scales.view(torch.uint8), codes.view(torch.uint8)], 1)
    return 8, tuple(matrix.shape), data.flatten()
