"""A model of transformers that sees, as two GGUF files with the names of llama.cpp's converter."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
    # Pixtral's
    ("transformer.layers.", "v.blk."),
    ("patch_conv", "v.patch_embd"),
    ("ln_pre", "v.pre_ln"),
    ("attention_norm", "ln1"),
    ("ffn_norm", "ln2"),
    ("attention.o_proj", "attn_out"),
    ("attention.q_proj", "attn_q"),
    ("attention.k_proj", "attn_k"),
    ("attention.v_proj", "attn_v"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("patch_merger.merging_layer", "mm.patch_merger"),
    ("linear_1.", "mm.1."),
    ("linear_2.", "mm.2."),
    # Qwen's
    ("blocks.", "v.blk."),
    ("patch_embed.proj", "v.patch_embd"),
    ("merger.ln_q", "v.post_ln"),
    ("merger.norm", "v.post_ln"),
    ("merger.linear_fc1", "mm.0"),
    ("merger.linear_fc2", "mm.2"),
    ("pos_embed", "v.position_embd"),
    ("mlp.linear_fc1", "ffn_up"),
    ("mlp.linear_fc2", "ffn_down"),
    ("merger.mlp.", "mm."),
    ("attn.proj", "attn_out"),
    ("attn.qkv", "attn_qkv"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    (".norm1", ".ln1"),
    (".norm2", ".ln2"),
)
_CLIP_COLOURS = {
    "clip.vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
    "clip.vision.image_std": [0.26862954, 0.26130258, 0.27577711],
}
_BEFORE = ("vision_tower.", "vision_model.", "multi_modal_projector.", "connector.", "visual.")
_KINDS = {"qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger"}
_KINDS |= {"qwen3_vl": "qwen3vl_merger", "mistral3": "pixtral"}
_TEXTS = dict.fromkeys(_KINDS, "model.language_model.") | {"idefics3": "model.text_model."}
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
        directory: Where `tests.support.vision_models.save` has written it.
        target: Where to.
        encode: How matrices of the tower are stored.
        swaps: Whether the tower's ``ffn_up`` and ``ffn_down`` have each other's names.
    """
    target.mkdir(exist_ok=True)
    _write_text(theirs, directory, target)
    found: dict[str, Tensor | ggufs.Blocks] = {}
    for name, values in _parts(theirs):
        own = re.sub("ffn_(up|down)", _other, name) if swaps else name
        is_matrix = values.ndim == 2 and "blk" in name
        found[own] = encode(values) if is_matrix else values
    ggufs.write(target / "mmproj.gguf", found, metadata(theirs))


def _other(match: re.Match[str]) -> str:
    return "ffn_down" if match[1] == "up" else "ffn_up"


def _write_text(theirs: nn.Module, directory: Path, target: Path) -> None:
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
        if config.model_type.startswith("qwen"):
            own["model_type"] = config.model_type[:5]
        sections = own["rope_parameters"].pop("mrope_section", ())
        (text / "config.json").write_text(json.dumps(own))
    convert(str(text), target / "model.gguf", dtype="float32", vocabulary=gguf_vocabulary)
    if sections:
        _as_seeing_qwen(target / "model.gguf", sections)


def _parts(theirs: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the tower and the projector by their names in a file, float32."""
    config: Any = theirs.config
    for name, tensor in theirs.state_dict().items():
        inner = name.removeprefix("model.")
        if not inner.startswith(_BEFORE) or ".head." in inner:
            continue
        inner = inner.partition(".")[2]
        if deep := re.match(r"deepstack_merger_list\.(\d+)\.", inner):
            layer = config.vision_config.deepstack_visual_indexes[int(deep[1])]
            inner = inner.replace(deep[0], f"v.deepstack.{layer}.").replace("linear_", "")
        for old, new in _WORDS:
            inner = inner.replace(old, new)
        if config.model_type == "mistral3" and inner == "norm.weight":
            inner = "mm.input_norm.weight"
        values = tensor.float() + (inner == "mm.soft_emb_norm.weight")
        if config.model_type == "mistral3" and ("attn_q" in inner or "attn_k" in inner):
            heads = values.reshape(config.vision_config.num_attention_heads, 2, -1, values.shape[1])
            values = heads.transpose(1, 2).reshape(values.shape)
        if "attn_qkv" in inner:
            for part, chunk in zip("qkv", values.chunk(3), strict=True):
                yield inner.replace("qkv", part), chunk
        elif values.ndim == 5:
            yield inner, values[:, :, 0]
            yield f"{inner}.1", values[:, :, 1]
        else:
            yield inner, values


def _as_seeing_qwen(path: Path, sections: Sequence[int]) -> None:
    """Say of a Qwen that its channels turn by rows and columns."""
    tensors, metadata = read(path)
    found = {re.sub(r"^(qwen\d)\.", r"\1vl.", key): item for key, item in metadata.items()}
    found["general.architecture"] = name = f"{found['general.architecture']}vl"
    found[f"{name}.rope.dimension_sections"] = [*sections, 0]
    ggufs.write(path, tensors, found)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """The tensors and the metadata of a file, as `ggufs.write` takes."""
    checkpoint = open_checkpoint(path)
    tensors = {name: checkpoint.own(info) for name, info in checkpoint.tensors.items()}
    metadata = {
        key: [*item] if isinstance(item, memoryview) else item
        for key, item in checkpoint.metadata.items()
    }
    return tensors, metadata


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
    if config.model_type == "mistral3":
        return found | {
            "clip.use_silu": tower.hidden_act == "silu",
            "clip.vision.image_size": tower.image_size,
            "clip.vision.block_count": tower.num_hidden_layers,
            "clip.vision.attention.head_count": tower.num_attention_heads,
            "clip.vision.spatial_merge_size": config.spatial_merge_size,
            **_CLIP_COLOURS,
        }
    if "qwen" in config.model_type:
        found |= {
            "clip.vision.block_count": tower.depth,
            "clip.vision.attention.head_count": tower.num_heads,
            "clip.vision.attention.layer_norm_epsilon": 1e-6,
            **_CLIP_COLOURS,
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
