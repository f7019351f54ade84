"""Families: each translates one kind of checkpoint's config and tensor names into ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blazr.core.table import Table

if TYPE_CHECKING:
    from blazr.models.families.base import Family

# Each recognises its own names of tensors or models, so their order does not matter. GGUF files say
# what they are without a look at their tensors, so that row stands first.
FAMILIES: Table[Family] = Table(
    "model family",
    {},
    lazy={
        "gguf": "blazr.models.families.gguf.family:GGUF",
        "oxidizr": "blazr.models.families.oxidizr:OXIDIZR",
        "llama": "blazr.models.families.llama:LLAMA",
        "mistral": "blazr.models.families.hf.dense:MISTRAL",
        "ministral3": "blazr.models.families.hf.dense:MINISTRAL3",
        "qwen2": "blazr.models.families.hf.dense:QWEN2",
        "qwen3": "blazr.models.families.hf.dense:QWEN3",
        "phi3": "blazr.models.families.hf.dense:PHI3",
        "gemma": "blazr.models.families.hf.dense:GEMMA",
        "gemma2": "blazr.models.families.hf.dense:GEMMA2",
        "gemma3_text": "blazr.models.families.hf.dense:GEMMA3",
        "olmo2": "blazr.models.families.hf.dense:OLMO2",
        "olmo3": "blazr.models.families.hf.dense:OLMO3",
        "smollm3": "blazr.models.families.hf.dense:SMOLLM3",
        "starcoder2": "blazr.models.families.hf.dense:STARCODER2",
        "glm": "blazr.models.families.hf.dense:GLM",
        "glm4": "blazr.models.families.hf.dense:GLM4",
        "glm4v_text": "blazr.models.families.hf.dense:GLM4V_TEXT",
        "granite": "blazr.models.families.hf.dense:GRANITE",
        "mixtral": "blazr.models.families.hf.sparse:MIXTRAL",
        "qwen2_moe": "blazr.models.families.hf.sparse:QWEN2_MOE",
        "qwen3_moe": "blazr.models.families.hf.sparse:QWEN3_MOE",
        "qwen3_vl_moe_text": "blazr.models.families.hf.sparse:QWEN3_VL_MOE_TEXT",
        "olmoe": "blazr.models.families.hf.sparse:OLMOE",
        "granitemoe": "blazr.models.families.hf.sparse:GRANITE_MOE",
        "glm4_moe": "blazr.models.families.hf.sparse:GLM4_MOE",
        "gpt_oss": "blazr.models.families.hf.sparse:GPT_OSS",
        "deepseek_v2": "blazr.models.families.hf.deepseek:DEEPSEEK_V2",
        "deepseek_v3": "blazr.models.families.hf.deepseek:DEEPSEEK_V3",
        "mamba": "blazr.models.families.mamba:MAMBA",
        "mamba2": "blazr.models.families.hf.mamba:MAMBA2",
        "falcon_mamba": "blazr.models.families.hf.mamba:FALCON_MAMBA",
        "nemotron_h": "blazr.models.families.hf.mamba:NEMOTRON_H",
        "bamba": "blazr.models.families.hf.hybrid:BAMBA",
        "granitemoehybrid": "blazr.models.families.hf.hybrid:GRANITE_HYBRID",
        "falcon_h1": "blazr.models.families.hf.hybrid:FALCON_H1",
        "jamba": "blazr.models.families.hf.hybrid:JAMBA",
        "zamba2": "blazr.models.families.hf.zamba:ZAMBA2",
        "lfm2": "blazr.models.families.hf.lfm:LFM2",
        "lfm2_moe": "blazr.models.families.hf.lfm:LFM2_MOE",
        "qwen3_next": "blazr.models.families.hf.delta:QWEN3_NEXT",
        "qwen3_5_text": "blazr.models.families.hf.delta:QWEN3_5_TEXT",
        "qwen3_5_moe_text": "blazr.models.families.hf.delta:QWEN3_5_MOE_TEXT",
        "kimi_linear": "blazr.models.families.hf.delta:KIMI_LINEAR",
        "audioflamingo3": "blazr.models.families.hf.vision:AUDIOFLAMINGO3",
        "gemma3": "blazr.models.families.hf.vision:GEMMA3",
        "glm4v": "blazr.models.families.hf.vision:GLM4V",
        "glm4v_moe": "blazr.models.families.hf.vision:GLM4V_MOE",
        "idefics3": "blazr.models.families.hf.vision:IDEFICS3",
        "internvl": "blazr.models.families.hf.vision:INTERNVL",
        "kimi_k25": "blazr.models.families.hf.vision:KIMI_K25",
        "lfm2_vl": "blazr.models.families.hf.vision:LFM2_VL",
        "llava": "blazr.models.families.hf.vision:LLAVA",
        "llava_next": "blazr.models.families.hf.vision:LLAVA_NEXT",
        "llava_onevision": "blazr.models.families.hf.vision:LLAVA_ONEVISION",
        "mistral3": "blazr.models.families.hf.vision:MISTRAL3",
        "paligemma": "blazr.models.families.hf.vision:PALIGEMMA",
        "qwen2_audio": "blazr.models.families.hf.vision:QWEN2_AUDIO",
        "qwen2_vl": "blazr.models.families.hf.vision:QWEN2_VL",
        "qwen2_5_vl": "blazr.models.families.hf.vision:QWEN2_5_VL",
        "qwen3_5": "blazr.models.families.hf.vision:QWEN3_5",
        "qwen3_5_moe": "blazr.models.families.hf.vision:QWEN3_5_MOE",
        "qwen3_vl": "blazr.models.families.hf.vision:QWEN3_VL",
        "qwen3_vl_moe": "blazr.models.families.hf.vision:QWEN3_VL_MOE",
        "smolvlm": "blazr.models.families.hf.vision:SMOLVLM",
    },
)
