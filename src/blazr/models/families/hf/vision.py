"""Models that also see images, or hear: their language models.

Such a model's config.json holds its language model's in ``text_config``, often only as far as it
differs from what transformers takes where a config is silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blazr.core.errors import ConfigError, UnknownFamilyError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families import FAMILIES
from blazr.models.families.base import ConfigReader, Derivation, Family
from blazr.models.families.hf.derive import model_type
from blazr.models.families.hf.rope import rope_parameters
from blazr.models.families.rules import RuleBook

# What the names of tensors begin with that are about images or sounds.
IMAGE_PREFIXES = tuple(
    before + part
    for before in ("", "model.")
    for part in (
        "vision_tower.",
        "multi_modal_projector.",
        "mm_projector.",
        "vision_model.",
        "vision_encoder.",
        "visual.",
        "connector.",
        "image_newline",
        "audio_tower.",
        "vision_embedder.",
        "embed_vision.",
        "embed_audio.",
    )
)
# What models take, as vectors in the place of tokens, one behind the other.
_IMAGES = frozenset({"image"})
_VIDEOS = frozenset({"image", "video"})  # as several images
_SOUNDS = frozenset({"audio"})
# Types that differ from another only where there are images.
_SAME: Mapping[str, str] = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "glm4v_moe_text": "glm4_moe",
    "kimi_k2": "deepseek_v3",
}


_LLAMA: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
_GEMMA4: Mapping[str, object] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "max_position_embeddings": 131_072,
}
# What transformers takes where a config is silent; most write whole configs.
_SILENT: Mapping[str, Mapping[str, object]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14_336, "num_key_value_heads": 8},
    "qwen2": {**_LLAMA, "intermediate_size": 22_016},
    "gemma": {"max_position_embeddings": 8192},
    "gemma2": {"max_position_embeddings": 8192},
    "gemma3_text": {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "gemma3n_text": {
        "hidden_size": 2048,
        "num_hidden_layers": 35,
        "max_position_embeddings": 32_768,
    },
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": {**_GEMMA4, "max_position_embeddings": 262_144},
}


def multimodal_family(
    name: str,
    text_type: str,
    takes: frozenset[str] = frozenset(),
    *,
    has_grids: bool = False,
    has_bidirectional_prompts: bool = False,
) -> Family:
    """A family for models that also see images.

    Args:
        name: Their ``model_type``.
        text_type: That of their language model, where ``text_config`` does not say it.
        takes: What is read beside text.
        has_grids: Whether images' tokens turn by rows and columns.
        has_bidirectional_prompts: See `Family`.
    """

    def derive(checkpoint: Checkpoint) -> Derivation:
        own = checkpoint.config
        section = ConfigReader(own).section("text_config")
        # the first ones had one config for all
        text = section.raw if section else {k: v for k, v in own.items() if k != "vision_config"}
        said = text.get("model_type")
        kind = said if isinstance(said, str) and said != name else text_type
        family = _family_of(kind)
        if has_grids and not rope_parameters(ConfigReader(text)).raw.get("mrope_section"):
            raise ConfigError(
                "config.json: which channels turn with the rows and columns of images is missing.",
                expected="mrope_section, three numbers, in rope_parameters or rope_scaling",
                hint="take it from the config.json of the model that this one was made from",
            )
        config = {**_SILENT.get(family.name, {}), **text, "model_type": kind}
        if has_bidirectional_prompts:  # as the engine has it for prompts with images
            config.pop("use_bidirectional_attention", None)
        found = family.derive(replace(checkpoint, config=config))
        unused = (*found.unused, *IMAGE_PREFIXES)
        if takes:
            return replace(found, unused=unused)
        warning = "the parts of the model that see images are left out: it reads text alone."
        return replace(found, warnings=(warning, *found.warnings), unused=unused)

    return Family(
        name=name,
        matches=lambda checkpoint: model_type(checkpoint) == name,
        derive=derive,
        rules=RuleBook([]),
        ignored=(".rotary_emb.inv_freq",),
        takes=takes,
        has_bidirectional_prompts=has_bidirectional_prompts,
    )


def _family_of(text_type: str) -> Family:
    """The family of a language model.

    Raises:
        UnknownFamilyError: There is none for this type.
    """
    name = _SAME.get(text_type, text_type)
    # those that read no config.json of their own, such as these wrappers, have no keys
    if name not in FAMILIES or not FAMILIES[name].keys:
        raise UnknownFamilyError(
            "config.json: text_config: language models of this type are not supported here.",
            found=repr(text_type)[:100],
            expected=", ".join(FAMILIES),
        )
    return FAMILIES[name]


AUDIOFLAMINGO3 = multimodal_family("audioflamingo3", "qwen2", _SOUNDS)
GEMMA3 = multimodal_family("gemma3", "gemma3_text", _IMAGES)
GEMMA3N = multimodal_family("gemma3n", "gemma3n_text")
GEMMA4 = multimodal_family("gemma4", "gemma4_text")
GEMMA4_UNIFIED = multimodal_family("gemma4_unified", "gemma4_unified_text")
GLM4V = multimodal_family("glm4v", "glm4v_text", _VIDEOS, has_grids=True)
GLM4V_MOE = multimodal_family("glm4v_moe", "glm4v_moe_text", _VIDEOS, has_grids=True)
IDEFICS3 = multimodal_family("idefics3", "llama", _IMAGES)
INTERNVL = multimodal_family("internvl", "qwen2", _IMAGES)
KIMI_K25 = multimodal_family("kimi_k25", "deepseek_v3")
LFM2_VL = multimodal_family("lfm2_vl", "lfm2", _IMAGES)
LLAMA4 = multimodal_family("llama4", "llama4_text")
LLAVA = multimodal_family("llava", "llama", _IMAGES)
LLAVA_NEXT = multimodal_family("llava_next", "llama", _IMAGES)
LLAVA_ONEVISION = multimodal_family("llava_onevision", "qwen2", _VIDEOS)
MISTRAL3 = multimodal_family("mistral3", "mistral", _IMAGES)
PALIGEMMA = multimodal_family("paligemma", "gemma", _IMAGES, has_bidirectional_prompts=True)
QWEN2_AUDIO = multimodal_family("qwen2_audio", "qwen2", _SOUNDS)
QWEN2_VL = multimodal_family("qwen2_vl", "qwen2_vl_text", _VIDEOS, has_grids=True)
QWEN2_5_VL = multimodal_family("qwen2_5_vl", "qwen2_5_vl_text", _VIDEOS, has_grids=True)
QWEN3_5 = multimodal_family("qwen3_5", "qwen3_5_text", _VIDEOS, has_grids=True)
QWEN3_5_MOE = multimodal_family("qwen3_5_moe", "qwen3_5_moe_text", _VIDEOS, has_grids=True)
QWEN3_VL = multimodal_family("qwen3_vl", "qwen3_vl_text", _VIDEOS, has_grids=True)
QWEN3_VL_MOE = multimodal_family("qwen3_vl_moe", "qwen3_vl_moe_text", _VIDEOS, has_grids=True)
SMOLVLM = multimodal_family("smolvlm", "llama", _IMAGES)
VOXTRAL = multimodal_family("voxtral", "llama", _SOUNDS)
