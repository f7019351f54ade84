"""Whose models `golden/gguf/converted` was made of: `golden/gguf/record.py` made it."""

from __future__ import annotations

import math

from tests.support.networks import VOCAB

Changes = dict[str, object]
_FALCON: Changes = {"head_dim": 6}
_NEMOTRON: Changes = {"mamba_num_heads": 4, "mamba_head_dim": 16}
_DELTA: Changes = {
    "head_dim": 16,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_MAMBA: Changes = {"intermediate_size": 48}
_LLAMA4: Changes = {  # what every release has, and files do not say
    "num_hidden_layers": 5,
    "no_rope_layers": None,
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}
# The converter takes the usual factor of a context that is twice as long, not Phi-3.5-MoE's own.
_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 5.0],
    "original_max_position_embeddings": 512,
    **dict.fromkeys(("short_mscale", "long_mscale"), math.sqrt(1 + math.log(2) / math.log(512))),
}
_MISTRAL4: Changes = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 14,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,  # more than is read: then nothing grows
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
}
_LAGUNA: Changes = {
    "moe_router_logit_softcapping": 0.0,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
}
# By the architecture: whose model it is, and what GGUF cannot say or the converter cannot take.
MODELS: dict[str, tuple[str, Changes]] = {
    "llama": ("llama biases", {}),
    "llama-rope": ("llama rope", {}),
    "llama-yarn": ("llama yarn", {}),
    "llama-internlm3": ("internlm3", {}),
    "llama-iquest": ("iquestcoder", {}),
    "llama-experts": ("mixtral", {"num_local_experts": 3}),
    "mistral3": ("mistral", {"sliding_window": None}),
    "mistral3-temperature": ("ministral3", {}),
    "qwen2": ("qwen2", {}),
    "qwen2moe": ("qwen2_moe", {}),
    "qwen3": ("qwen3", {}),
    "qwen3moe": ("qwen3_moe", {}),
    "phi3": ("phi3 long", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 10}),
    "gemma3": (
        "gemma3_text",
        {"query_pre_attn_scalar": 10, "num_hidden_layers": 6, "layer_types": None},
    ),
    "gemma3n": (
        "gemma3n_text",
        # the converter knows four streams, and fills up the table of vectors
        {"altup_num_inputs": 4, "altup_active_idx": 0, "vocab_size_per_layer_input": VOCAB},
    ),
    "gemma4": ("gemma4_text", {}),
    "gemma4-experts": ("gemma4_text experts", {}),
    "olmo2": ("olmo2", {}),
    "olmo2-windows": ("olmo3", {}),
    "olmoe": ("olmoe", {"num_experts": 4}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}),
    "starcoder2": ("starcoder2", {}),
    "chatglm": ("glm", {"head_dim": 6, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5}),
    "glm4": ("glm4", {"head_dim": 12}),
    "glm4moe": ("glm4_moe", {}),
    "glm4moe-solar": ("solar_open", {"n_routed_experts": 4, "n_group": 2, "topk_group": 1}),
    "granite": ("granite", {}),
    "granitemoe": ("granitemoe", {"num_local_experts": 3}),
    "gpt-oss": ("gpt_oss", {}),
    "deepseek2": ("deepseek_v2", {"mlp_bias": False, "norm_topk_prob": False}),
    "deepseek2-lite": (
        "deepseek_v2 lite",
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 0.7,
                "mscale_all_dim": 0.7,
            }
        },
    ),
    "deepseek2-v3": ("deepseek_v3", {}),
    "deepseek2-dense": ("youtu", {}),
    "deepseek2-sarvam": (
        "sarvam_mla",
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
    ),
    "mamba": ("mamba", _MAMBA),
    "mamba-norms": ("falcon_mamba", {**_MAMBA, "mixer_rms_eps": 1e-5}),
    "mamba2": ("mamba2", _MAMBA),
    "jamba": ("jamba", {"num_experts": 3}),
    "granitehybrid": ("granitemoehybrid", {"num_local_experts": 3}),
    "granitehybrid-bamba": ("bamba", {"hidden_size": 32, "mamba_n_heads": 4}),
    "nemotron_h": ("nemotron_h", {**_NEMOTRON, "mlp_bias": False, "use_bias": False}),
    "nemotron_h_moe": ("nemotron_h experts", _NEMOTRON),
    "falcon-h1": ("falcon_h1", _FALCON),
    "lfm2": ("lfm2", {}),
    "lfm2moe": ("lfm2_moe", {"routed_scaling_factor": 1.0}),
    "qwen3next": ("qwen3_next", {**_DELTA, "num_experts": 3}),
    "qwen35": ("qwen3_5_text", _DELTA),
    "qwen35moe": ("qwen3_5_moe_text", {**_DELTA, "num_experts": 3}),
    "kimi-linear": ("kimi_linear", {"linear_num_heads": 4}),
    "llama4": ("llama4_text", _LLAMA4),
    "apertus": ("apertus", {}),
    "jais2": ("jais2", {}),
    "phimoe": (
        "phimoe short",
        {
            "num_local_experts": 3,
            "router_jitter_noise": 0.01,
            "rope_scaling": _LONG,
            "attention_bias": True,
            "lm_head_bias": True,
        },
    ),
    "falcon": ("falcon", {"num_kv_heads": 1}),
    "falcon-groups": ("falcon groups", {"bias": False}),
    "granite_swa": ("granite_swa", {"layer_rope_theta": None}),
    "mellum": ("mellum", {"mlp_layer_types": None, "num_experts": 3}),
    "hy_v3": ("hy_v3", {"num_experts": 4}),
    "cohere2moe": ("cohere2_moe", {"num_experts": 4}),
    "laguna": ("laguna", {**_LAGUNA, "num_experts": 4}),
    "mimo2": ("mimo_v2_flash", {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0}),
}
# The same of architectures, or kinds of models, that are read and not written; Mistral 4 by the
# library's name, as blazr reads no other files of it.
READ: dict[str, tuple[str, Changes]] = {
    "granite_swa-experts": ("granitemoe_swa", {"num_local_experts": 3, "layer_rope_theta": None}),
    "granite_swa-still": ("granite_swa", {"layer_rope_theta": [0, 10_000, 10_000]}),
    "mistral4": ("mistral4", _MISTRAL4),
    "glm4moe-sarvam": ("sarvam_moe", {"n_routed_experts": 4, "n_group": 2, "topk_group": 1}),
    "minicpm3": ("minicpm3", {"scale_emb": 12, "dim_model_base": 256}),
}
