"""A second, plain implementation that shares nothing with the network: what verify judges by.

float64, a token or a layer at a time, from the file's bytes and the raw config. One file a kind of
mixer or feed-forward; REFERENCES says who builds a model of a Hugging Face type from them.
"""

from __future__ import annotations

_AT = "blazr.bench.reference."
_DECODERS = (
    "llama mistral ministral3 qwen2 qwen3 phi3 gemma gemma2 gemma3_text olmo2 olmo3 smollm3 "
    "starcoder2 glm glm4 granite mixtral qwen2_moe qwen3_moe olmoe granitemoe glm4_moe gpt_oss "
    "deepseek_v2 deepseek_v3 arcee seed_oss ernie4_5 ernie4_5_moe exaone4 nemotron phi cohere "
    "cohere2 stablelm dots1 minimax_m2 olmo helium hunyuan_v1_dense hunyuan_v1_moe "
    "granitemoeshared flex_olmo solar_open exaone_moe afmoe glm4_moe_lite minicpm3 "
    "cwm internlm3 iquestcoder jais2 ministral granite_swa granitemoe_swa vaultgemma hyperclovax "
    "mellum hy_v3 sarvam_mla youtu apertus nanochat llama4_text "
    "bitnet cohere2_moe laguna mimo_v2_flash phimoe"
)
_HYBRIDS = (
    "bamba granitemoehybrid falcon_h1 jamba lfm2 lfm2_moe lfm3 qwen3_next qwen3_5_text "
    "qwen3_5_moe_text kimi_linear olmo_hybrid"
)
_LINGS = "bailing_moe bailing_moe_v2 bailing_moe_linear bailing_hybrid sarvam_moe"
REFERENCES: dict[str, str] = {
    **dict.fromkeys(_DECODERS.split(), _AT + "decoders:decoder"),
    **dict.fromkeys(_HYBRIDS.split(), _AT + "hybrids:hybrid"),
    **dict.fromkeys(["mamba", "mamba2", "falcon_mamba", "nemotron_h"], _AT + "backbones:backbone"),
    **dict.fromkeys(["minimax", "minimax_text_01", "minimax_m1"], _AT + "minimax:minimax"),
    **dict.fromkeys(_LINGS.split(), _AT + "ling:ling"),
    "recurrent_gemma": _AT + "griffin:recurrent_gemma",
    "zamba": _AT + "zamba:zamba",
    "zamba2": _AT + "zamba:zamba",
    "gpt2": _AT + "gpt2:gpt2",
    **dict.fromkeys(["gptj", "codegen"], _AT + "neox:gptj"),
    "gpt_bigcode": _AT + "gpt2:gpt_bigcode",
    "gpt_neo": _AT + "gpt2:gpt_neo",
    "opt": _AT + "opt:opt",
    "gpt_neox": _AT + "neox:gpt_neox",
    "falcon": _AT + "neox:falcon",
    "gemma3n_text": _AT + "gemma:gemma3n",
    **dict.fromkeys(["gemma4_text", "gemma4_unified_text"], _AT + "gemma:gemma4"),
}
# Types of models that see images, by the type of what they speak with, where it does not say it.
SECTIONS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm4v_moe": "glm4_moe",
    "idefics3": "llama",
    "internvl": "qwen2",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "ministral3",
    "paligemma": "gemma",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
    "smolvlm": "llama",
    "voxtral": "llama",
}
