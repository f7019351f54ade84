"""Tiny random models of the transformers library: what ours must agree with."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from blazr.models.families.hf import vision
from tests.support.hybrids import HYBRIDS
from tests.support.networks import VOCAB
from tests.support.seeds import run_seed
from tests.support.tolerances import error

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
# Text models that the library makes as parts of models that see, and not by its auto classes.
_CLASSES = {"mistral4": "Mistral4ForCausalLM"}
# Norms of what attention has averaged away would blow up every rounding.
_SPREAD = {"zamba": 0.1, "zamba2": 0.1, "kimi_linear": 0.2, "bailing_hybrid": 0.2, "jamba": 0.15}
_SPREAD |= dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), 0.15)
# Those whose norms store their weights less one.
_OFFSET = ("gemma", "vaultgemma", "recurrent_gemma", "qwen3_next", "qwen3_5", "nemotron:")
# Whatever a library remembers outside the file must not tell the classes apart.
_KEPT = ("inv_freq", "embed_scale", "mup_vector", "normalizer", "slope_rate", "query_decay")
_KEPT += ("key_decay", "diagonal_decay", "router_input_scale")
_KEPT += ("per_layer_projection_scale", "per_layer_input_scale", "rotary_emb.embed_positions")

_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
_LATENT = {
    "kv_lora_rank": 12,
    "q_lora_rank": 14,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}
_DENSE_LATENT = {
    key: each for key, each in _LATENT.items() if "expert" not in key and not key.startswith("moe")
}
_LLAMA4 = {
    "head_dim": 12,
    "intermediate_size": 20,
    "intermediate_size_mlp": 36,
    "num_local_experts": 5,
    "attention_chunk_size": 64,
    "floor_scale": 16,
    "attn_scale": 0.7,
}
_GEMMA4 = {
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"],
}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_TEMPERED = {
    **YARN,
    "original_max_position_embeddings": 8,
    "rope_theta": 10_000.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.6,
}
_LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}


def _rope(kind: str, **rest: object) -> dict[str, object]:
    return {"rope_scaling": {"rope_type": kind, **rest}}


# What is odd about each case is in its name.
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    "llama tied": ("llama", {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    "llama rope": (
        "llama",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
    ),
    "llama linear": ("llama", _rope("linear", factor=3.0)),
    "llama dynamic": ("llama", _rope("dynamic", factor=3.0) | {"max_position_embeddings": 40}),
    "llama yarn": ("llama", {"rope_scaling": YARN, "head_dim": 14}),
    "mistral": ("mistral", {"sliding_window": 7, "head_dim": 6}),
    "ministral3": ("ministral3", {"head_dim": 14, "rope_parameters": _TEMPERED}),
    "ministral3 plain": (
        "ministral3",
        {
            "head_dim": 6,
            "sliding_window": 30,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "original_max_position_embeddings": 8,
                "llama_4_scaling_beta": 0.6,
            },
        },
    ),
    "ministral3 even": (
        "ministral3",
        {
            "head_dim": 6,
            "rope_parameters": {**_TEMPERED, "llama_4_scaling_beta": 0.0, "mscale_all_dim": 0.0},
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {}),
    "qwen2 window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {**_EXPERTS, "num_experts": 5, "shared_expert_intermediate_size": 28},
    ),
    "qwen2_moe dense layer": (
        "qwen2_moe",
        {
            **_EXPERTS,
            "num_experts": 5,
            "shared_expert_intermediate_size": 28,
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
            "qkv_bias": False,
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "qwen3_moe": (
        "qwen3_moe",
        {**_EXPERTS, "num_experts": 6, "head_dim": 12, "norm_topk_prob": True},
    ),
    "qwen3_moe dense layer": (
        "qwen3_moe",
        {**_EXPERTS, "num_experts": 6, "head_dim": 12, "decoder_sparse_step": 2},
    ),
    "phi3": ("phi3", {"partial_rotary_factor": 0.75, "sliding_window": 30}),
    "phi3 short": (
        "phi3",
        {
            "hidden_size": 16,
            "original_max_position_embeddings": 512,
            "rope_scaling": _LONG,
        },
    ),
    "phi3 long": (
        "phi3",
        {
            "hidden_size": 32,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 32,
            "rope_scaling": _LONG,
        },
    ),
    "gemma": ("gemma", {"head_dim": 10}),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 10,
            "sliding_window": 9,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            "head_dim": 10,
            "sliding_window": 9,
            "query_pre_attn_scalar": 20,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "gemma3n_text": (
        "gemma3n_text",
        {
            "head_dim": 8,
            "sliding_window": 9,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": VOCAB - 5,
            "intermediate_size": [44, 44, 36, 36],
            "activation_sparsity_pattern": [0.7, 0.0, 0.9, 0.0],
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "laurel_rank": 5,
        },
    ),
    "gemma4_text": (
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 5,
            "layer_types": [*("sliding_attention", "full_attention") * 2, "full_attention"],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": VOCAB,
        },
    ),
    "gemma4_text experts": (
        "gemma4_text",
        {
            **_GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 20,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma4_unified_text": (
        "gemma4_unified_text",
        {**_GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "olmo2": ("olmo2", {}),
    "olmo3": (
        "olmo3",
        {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size": 32,
            "rope_scaling": YARN,
        },
    ),
    "olmoe": ("olmoe", {"num_experts": 6, "num_experts_per_tok": 2}),
    "olmoe clipped": (
        "olmoe",
        {"num_experts": 6, "num_experts_per_tok": 2, "clip_qkv": 0.4, "norm_topk_prob": True},
    ),
    "bitnet": ("bitnet", {}),
    "bitnet biased": ("bitnet", {"attention_bias": True, "rms_norm_eps": 0.1}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "smollm3 window": (
        "smollm3",
        {
            "no_rope_layers": [1, 0],
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "starcoder2": ("starcoder2", {}),
    "starcoder2 bare": (
        "starcoder2",
        {"use_bias": False, "sliding_window": 8, "tie_word_embeddings": False},
    ),
    "glm": ("glm", {"head_dim": 12}),
    "glm4": ("glm4", {"head_dim": 10}),
    "glm4_moe": (
        "glm4_moe",
        {
            **_EXPERTS,
            "head_dim": 12,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "routed_scaling_factor": 1.5,
            "n_shared_experts": 2,
        },
    ),
    "granite": ("granite", _GRANITE),
    "granitemoe": (
        "granitemoe",
        {**_GRANITE, "num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "gpt_oss": (
        "gpt_oss",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "gpt_oss without windows": (
        "gpt_oss",
        {
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["full_attention", "full_attention"],
        },
    ),
    "deepseek_v2": (
        "deepseek_v2",
        {
            **_LATENT,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.0,
        },
    ),
    "deepseek_v2 biases": (
        "deepseek_v2",
        {
            **_LATENT,
            "first_k_dense_replace": 1,
            "mlp_bias": True,
            "norm_topk_prob": True,
            "num_experts_per_tok": 6,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "deepseek_v2 lite": (
        "deepseek_v2",
        {
            **_LATENT,
            "q_lora_rank": None,
            "rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9},
        },
    ),
    "deepseek_v3 dense": (
        "deepseek_v3",
        {
            **_LATENT,
            "attention_bias": True,
            "first_k_dense_replace": 5,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **_LATENT,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "arcee": ("arcee", {}),
    "arcee biases": ("arcee", {"attention_bias": True, "mlp_bias": True, "rope_scaling": YARN}),
    "seed_oss": ("seed_oss", {"head_dim": 12}),
    "seed_oss biases": ("seed_oss", {"head_dim": 8, "attention_out_bias": True, "mlp_bias": True}),
    "ernie4_5": ("ernie4_5", {"head_dim": 12}),
    "ernie4_5 biases": ("ernie4_5", {"head_dim": 8, "use_bias": True}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 20,
            "num_hidden_layers": 3,
            "moe_layer_interval": 2,
            "use_bias": True,
        },
    ),
    "exaone4": (
        "exaone4",
        {
            "head_dim": 12,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "nemotron": ("nemotron", {"hidden_size": 32}),
    "nemotron biases": ("nemotron", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "dots1": (
        "dots1",
        {
            **_EXPERTS,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.7,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    "minimax_m2": (
        "minimax_m2",
        {
            "head_dim": 12,
            "rotary_dim": 6,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
        },
    ),
    "gpt_neox": ("gpt_neox", {"hidden_size": 48}),
    "gpt_neox in turn": (
        "gpt_neox",
        {
            "hidden_size": 32,
            "use_parallel_residual": False,
            "attention_bias": False,
            "rotary_pct": 1.0,
            "rotary_emb_base": 500,
        },
    ),
    "falcon": ("falcon", {"ffn_hidden_size": 44}),
    "falcon groups": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon one norm": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon in turn": ("falcon", {"parallel_attn": False, "multi_query": False}),
    "phi": ("phi", {"hidden_size": 32}),
    "cohere": ("cohere", {"logit_scale": 0.3}),
    "cohere norms": ("cohere", {"use_qk_norm": True, "attention_bias": True, "head_dim": 8}),
    "cohere2": (
        "cohere2",
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "stablelm": ("stablelm", {"hidden_size": 32, "use_qkv_bias": True}),
    "stablelm parallel": (
        "stablelm",
        {
            "hidden_size": 32,
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "partial_rotary_factor": 0.5,
        },
    ),
    "gpt2": ("gpt2", {}),
    "gpt_bigcode": ("gpt_bigcode", {}),
    "gpt_bigcode heads": (
        "gpt_bigcode",
        {"multi_query": False, "n_inner": 44, "scale_attn_weights": False},
    ),
    "gpt_neo": (
        "gpt_neo",
        {
            "num_hidden_layers": 3,
            "attention_types": [[["global", "local"], 1], [["local"], 1]],
            "window_size": 7,
            "intermediate_size": None,
        },
    ),
    "gptj": ("gptj", {"hidden_size": 32, "rotary_dim": 6}),
    "codegen": ("codegen", {"hidden_size": 32, "rotary_dim": 4, "n_inner": 44}),
    "opt": ("opt", {"ffn_dim": 44}),
    "opt behind": (
        "opt",
        {
            "ffn_dim": 44,
            "num_hidden_layers": 3,
            "do_layer_norm_before": False,
            "word_embed_proj_dim": 14,
        },
    ),
    "opt bare": (
        "opt",
        {
            "ffn_dim": 36,
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
            "word_embed_proj_dim": 32,
            "tie_word_embeddings": False,
        },
    ),
    "gpt2 by layer": (
        "gpt2",
        {
            "scale_attn_by_inverse_layer_idx": True,
            "scale_attn_weights": False,
            "activation_function": "gelu",
            "n_inner": 44,
            "tie_word_embeddings": False,
        },
    ),
    "cwm": ("cwm", {"head_dim": 12, "sliding_window": 8, "num_hidden_layers": 3, "mlp_bias": True}),
    "internlm3": ("internlm3", {"head_dim": 12}),
    "internlm3 biases": (
        "internlm3",
        {"head_dim": 8, "attention_bias": True, "mlp_bias": True}
        | _rope("dynamic", factor=6.0)
        | {"max_position_embeddings": 40},
    ),
    "iquestcoder": ("iquestcoder", {"head_dim": 12}),
    "jais2": ("jais2", {}),
    "jais2 bare": ("jais2", {"attention_bias": False, "mlp_bias": False, "head_dim": 10}),
    "ministral": (
        "ministral",
        {
            "head_dim": 12,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "ministral silent": ("ministral", {"head_dim": 6, "sliding_window": 7}),
    "apertus": ("apertus", {"head_dim": 12}),
    "apertus plain": (
        "apertus",
        {
            "hidden_act": "relu2",
            "attention_bias": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        },
    ),
    "nanochat": ("nanochat", {}),
    "nanochat yarn": (
        "nanochat",
        {
            "hidden_size": 32,
            "attention_bias": True,
            "rms_norm_eps": 1e-2,
            "final_logit_softcapping": 4.0,
            "rope_scaling": YARN,
        },
    ),
    "llama4_text": (
        "llama4_text",
        {
            **_LLAMA4,
            "num_hidden_layers": 3,
            "no_rope_layers": [1, 0, 1],
            "interleave_moe_layer_step": 2,
        },
    ),
    "llama4_text several": (
        "llama4_text",
        {
            **_LLAMA4,
            "num_experts_per_tok": 3,
            "attention_bias": True,
            "attn_temperature_tuning": False,
            "no_rope_layers": [1, 0],
            "moe_layers": [1],
            "rms_norm_eps": 1e-2,
            "rope_scaling": {**YARN, "original_max_position_embeddings": 64},
        },
    ),
    "llama4_text step": (
        "llama4_text",
        {
            **_LLAMA4,
            **_rope(
                "llama3",
                factor=16.0,
                low_freq_factor=1.0,
                high_freq_factor=1.0,
                original_max_position_embeddings=16,
            ),
        },
    ),
    "llama4_text listed": (
        "llama4_text",
        {
            **_LLAMA4,
            "use_qk_norm": False,
            "no_rope_layers": [1, 0],
            "layer_types": ["full_attention", "chunked_attention"],
        },
    ),
    "cohere2_moe": (
        "cohere2_moe",
        {
            "head_dim": 8,
            "num_hidden_layers": 3,
            "num_experts": 5,
            "num_shared_experts": 2,
            "prefix_dense_intermediate_size": 36,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
    ),
    "cohere2_moe sigmoid": (
        "cohere2_moe",
        {
            "head_dim": 8,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1,
            "expert_selection_fn": "sigmoid",
            "shared_expert_combination_strategy": "sum",
            "norm_topk_prob": False,
            "rms_norm_eps": 1e-3,
            "attention_bias": True,
            "sliding_window": 8,
            "sliding_window_pattern": 2,
            "prefix_dense_sliding_window_pattern": 2,
            "mlp_layer_types": ["sparse", "dense"],
        },
    ),
    "laguna": (
        "laguna",
        {
            **_EXPERTS,
            "head_dim": 12,
            "num_hidden_layers": 3,
            "num_attention_heads_per_layer": [4, 2, 6],
            "num_experts": 6,
            "shared_expert_intermediate_size": 28,
            "moe_routed_scaling_factor": 1.7,
            "moe_router_logit_softcapping": 2.0,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "laguna channels": (
        "laguna",
        {
            **_EXPERTS,
            "head_dim": 8,
            "gating": "per-element",
            "attention_bias": True,
            "num_experts": 4,
            "shared_expert_intermediate_size": 20,
            "mlp_layer_types": ["sparse", "dense"],
            "rope_parameters": {
                "full_attention": {**YARN, "rope_theta": 500.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        {
            **_EXPERTS,
            "head_dim": 12,
            "v_head_dim": 10,
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "mimo_v2_flash biases": (
        "mimo_v2_flash",
        {
            **_EXPERTS,
            "head_dim": 12,
            "v_head_dim": 12,
            "attention_bias": True,
            "n_routed_experts": 4,
            "sliding_window": 7,
            "mlp_layer_types": ["sparse", "dense"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": 10_000.0,
                    "partial_rotary_factor": 0.5,
                },
            },
        },
    ),
    "phimoe": (
        "phimoe",
        {
            "num_local_experts": 5,
            "router_jitter_noise": 0.4,
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": 30,
        },
    ),
    "phimoe short": (
        "phimoe",
        {
            "hidden_size": 16,
            "num_local_experts": 4,
            "rope_scaling": {
                **_LONG,
                "short_mscale": 1.3,
                "long_mscale": 1.5,
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "granite_swa": (
        "granite_swa",
        {
            **_GRANITE,
            "sliding_window": 8,
            "num_hidden_layers": 3,
            "layer_rope_theta": [500.0, 0, 10_000.0],
            "tie_word_embeddings": False,
        },
    ),
    "granite_swa silent": ("granite_swa", {"sliding_window": 5, "attention_bias": True}),
    "granitemoe_swa": (
        "granitemoe_swa",
        {
            **_GRANITE,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 28,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "layer_rope_theta": [10_000.0, 0],
        },
    ),
    "granitemoe_swa silent": (
        "granitemoe_swa",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    ),
    "vaultgemma": (
        "vaultgemma",
        {
            "head_dim": 10,
            "sliding_window": 9,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "hyperclovax": ("hyperclovax", {**_GRANITE, "head_dim": 12, "attention_bias": True}),
    "hyperclovax bare": ("hyperclovax", {"use_post_norm": False, "mlp_bias": True}),
    "mellum": (
        "mellum",
        {
            **_EXPERTS,
            "head_dim": 12,
            "num_experts": 6,
            "num_hidden_layers": 3,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {**YARN, "rope_theta": 10_000.0},
            },
        },
    ),
    "mellum silent": (
        "mellum",
        {**_EXPERTS, "head_dim": 12, "num_experts": 4, "norm_topk_prob": False},
    ),
    "hy_v3": (
        "hy_v3",
        {
            **_EXPERTS,
            "head_dim": 12,
            "num_experts": 6,
            "num_shared_experts": 2,
            "router_scaling_factor": 1.7,
        },
    ),
    "hy_v3 biases": (
        "hy_v3",
        {
            **_EXPERTS,
            "head_dim": 8,
            "num_experts": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "mlp_layer_types": ["sparse", "dense"],
        },
    ),
    "sarvam_mla": (
        "sarvam_mla",
        {**_LATENT, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "q_lora_rank": None},
    ),
    "youtu": ("youtu", _DENSE_LATENT),
    "youtu biases": (
        "youtu",
        {
            **_DENSE_LATENT,
            "q_lora_rank": None,
            "attention_bias": True,
            "rope_interleave": False,
            "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
            "tie_word_embeddings": False,
        },
    ),
    "sarvam_moe": (
        "sarvam_moe",
        {
            **_EXPERTS,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "head_dim": 10,
            "n_shared_experts": 2,
        },
    ),
    "sarvam_moe bare": (
        "sarvam_moe",
        {
            **_EXPERTS,
            "n_routed_experts": 6,
            "head_dim": 6,
            "first_k_dense_replace": 0,
            "use_qk_norm": False,
            "attention_bias": True,
            "norm_topk_prob": False,
        },
    ),
    "olmo": ("olmo", {"clip_qkv": 0.5}),
    "helium": ("helium", {"head_dim": 6, "attention_bias": True, "mlp_bias": True}),
    "hunyuan_v1_dense": (
        "hunyuan_v1_dense",
        {"head_dim": 12, "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}},
    ),
    "hunyuan_v1_dense yarn": (
        "hunyuan_v1_dense",
        {"head_dim": 12, "attention_bias": True, "rms_norm_eps": 1e-2, "rope_scaling": YARN},
    ),
    "hunyuan_v1_moe": (
        "hunyuan_v1_moe",
        {"head_dim": 12, "num_experts": 5, "moe_topk": [2, 2]},
    ),
    "granitemoeshared": (
        "granitemoeshared",
        {
            **_GRANITE,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 28,
        },
    ),
    "flex_olmo": ("flex_olmo", {"num_experts": 6, "num_experts_per_tok": 2}),
    "solar_open": (
        "solar_open",
        {**_EXPERTS, "head_dim": 12, "n_routed_experts": 8, "n_group": 4, "topk_group": 2},
    ),
    "exaone_moe": (
        "exaone_moe",
        {
            **_EXPERTS,
            "num_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_shared_experts": 2,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "afmoe": (
        "afmoe",
        {
            **_EXPERTS,
            "head_dim": 12,
            "num_experts": 6,
            "num_shared_experts": 1,
            "route_scale": 1.7,
            "mup_enabled": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        {**_LATENT, "n_group": 4, "topk_group": 2, "n_shared_experts": 2},
    ),
    "minicpm3": (
        "minicpm3",
        {
            "kv_lora_rank": 12,
            "q_lora_rank": 14,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
            "scale_emb": 3,
            "dim_model_base": 12,
        },
    ),
    **HYBRIDS,
}


def is_vision(name: str) -> bool:
    """Whether a family is of models that also see, or of texts that are part of nothing else.

    `tests/conformance/test_vision_families.py` has these.
    """
    return name.upper() in vars(vision) or name in {"glm4v_text", "qwen3_vl_moe_text"}


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
    torch.manual_seed(run_seed(seed))
    config = transformers.CONFIG_MAPPING[model_type](**SIZES | deepcopy(changes or {}))
    if model_type in _CLASSES:
        make = getattr(transformers, _CLASSES[model_type])._from_config
    else:
        make = transformers.AutoModelForCausalLM.from_config
    model = make(config, attn_implementation="eager")
    model = model.float().eval().requires_grad_(requires_grad=False)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        is_kept = tensor.dtype == torch.bool  # a mask
        if not is_kept and not any(word in name for word in _KEPT):
            _fill(
                name,
                tensor,
                is_offset=f"{model_type}:".startswith(_OFFSET),
                spread=_SPREAD.get(model_type, 0.3),
            )
    model.save_pretrained(directory)
    if "experts" in repr(model):
        model.set_experts_implementation("eager")  # the others have no float64
    return model


def _fill(name: str, tensor: Tensor, *, is_offset: bool, spread: float) -> None:
    if tensor.dim() > 1:
        tensor.normal_(0, spread)
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
            part.inv_freq = part.original_inv_freq.clone()  # it is written in place
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    return logits


def reference_truth(
    model: nn.Module, token_ids: list[int], exact: nn.Module | None = None
) -> tuple[Tensor, float]:
    """The scores in float64, (T, V), and what the model loses in float32.

    Args:
        model: In float32.
        token_ids: What it reads.
        exact: A copy in float64, where the model is asked more than once.
    """
    truth = reference_logits(exact or deepcopy(model).double(), token_ids)
    return truth, error(reference_logits(model, token_ids), truth)


def rewrite_config(directory: Path, **changes: object) -> None:
    """Set keys of config.json; None as a value takes the key away."""
    path = directory / "config.json"
    written = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in written.items() if v is not None}))


# How Llama 4's experts are called where each has matrices of its own: (e, p) to a name.
LLAMA4_APART = {
    "llm-compressor": "experts.{e}.{p}_proj.weight",
    "axolotl": "experts.{p}_projs.{e}.weight",
}


def take_experts_apart(directory: Path, layout: str) -> None:
    """Write a Llama 4 of transformers again, a tensor for each matrix of an expert.

    Args:
        directory: Of its model.safetensors.
        layout: One of LLAMA4_APART.
    """
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith("experts.gate_up_proj")]:
        at = name.removesuffix("experts.gate_up_proj")
        stacks = [*tensors.pop(name).chunk(2, -1), tensors.pop(at + "experts.down_proj")]
        for p, stack in zip(("gate", "up", "down"), stacks, strict=True):
            for e, matrix in enumerate(stack):
                own = LLAMA4_APART[layout].format(e=e, p=p)
                tensors[at + own] = matrix.T.contiguous()
    save_file(tensors, path)


def known_to_transformers(model_type: str) -> bool:
    """Whether the library has a class of its own for a type of model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return model_type in CONFIG_MAPPING_NAMES
