"""Tiny hybrids of the transformers library, by what is odd about them."""

from __future__ import annotations

Case = tuple[str, dict[str, object]]

_MAMBA2 = {"num_heads": 6, "head_dim": 8, "state_size": 7, "n_groups": 2, "chunk_size": 16}
_NEMOTRON = {
    "mamba_num_heads": 6,
    "mamba_head_dim": 7,
    "ssm_state_size": 5,
    "n_groups": 2,
    "chunk_size": 16,
    "head_dim": 10,
    "n_routed_experts": 6,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 28,
}
_SSM = {"mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 7, "mamba_chunk_size": 16}
_GRANITE = {
    **_SSM,
    "embedding_multiplier": 3.0,
    "logits_scaling": 0.5,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.2,
    "shared_intermediate_size": 28,
}
_JAMBA = {"mamba_d_state": 5, "attn_layer_period": 3, "attn_layer_offset": 1}
_ZAMBA = {
    "n_mamba_heads": 6,
    "mamba_ngroups": 2,
    "mamba_d_state": 5,
    "adapter_rank": 3,
    "chunk_size": 16,
    "num_key_value_heads": 4,
}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "linear_conv_kernel_dim": 3,
    "head_dim": 12,
}
_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
_OLMO = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "linear_conv_kernel_dim": 3,
}
_KIMI = {
    "linear_head_dim": 6,
    "linear_num_heads": 3,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}

_LING = {
    "head_dim": 5,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "n_group": 1,
    "topk_group": 1,
}

HYBRIDS: dict[str, Case] = {
    "mamba": ("mamba", {"state_size": 5, "conv_kernel": 3}),
    "mamba biases": ("mamba", {"state_size": 5, "use_bias": True, "use_conv_bias": False}),
    "mamba2": ("mamba2", _MAMBA2),
    "mamba2 limits": (
        "mamba2",
        {
            **_MAMBA2,
            "n_groups": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "conv_kernel": 3,
            "time_step_limit": [0.5, 0.8],
            "tie_word_embeddings": True,
        },
    ),
    "falcon_mamba": (
        "falcon_mamba",
        {"state_size": 5, "time_step_rank": 4, "use_bias": True, "mixer_rms_eps": 0.01},
    ),
    "nemotron_h": (
        "nemotron_h",
        {**_NEMOTRON, "hybrid_override_pattern": "M-*-M", "mlp_bias": True, "use_bias": True},
    ),
    "nemotron_h experts": (
        "nemotron_h",
        {
            **_NEMOTRON,
            "hybrid_override_pattern": "ME*EM",
            "moe_latent_size": 16,
            "routed_scaling_factor": 1.5,
            "n_group": 3,
            "topk_group": 2,
            "use_conv_bias": False,
        },
    ),
    "bamba": ("bamba", {**_SSM, "attn_layer_indices": [1]}),
    "bamba biases": (
        "bamba",
        {
            **_SSM,
            "attn_layer_indices": [0],
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "time_step_limit": [0.1, 0.9],
            "head_dim": 10,
        },
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            **_GRANITE,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
        },
    ),
    "granitemoehybrid mamba": (
        "granitemoehybrid",
        {**_GRANITE, "layer_types": ["mamba", "mamba"], "num_local_experts": 0},
    ),
    "granitemoehybrid dense": (
        "granitemoehybrid",
        {
            **_GRANITE,
            "layer_types": ["attention", "mamba"],
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "falcon_h1": (
        "falcon_h1",
        {
            **_SSM,
            "mamba_d_ssm": 42,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "embedding_multiplier": 2.5,
            "lm_head_multiplier": 0.3,
            "mlp_multipliers": [1.4, 0.6],
            "ssm_multipliers": [0.5, 1.5, 0.7, 1.2, 2.0],
            "ssm_in_multiplier": 1.3,
            "ssm_out_multiplier": 0.7,
            "attention_in_multiplier": 0.9,
            "attention_out_multiplier": 1.1,
            "key_multiplier": 0.4,
        },
    ),
    "falcon_h1 norm first": (
        "falcon_h1",
        {**_SSM, "mamba_d_ssm": 36, "mamba_rms_norm": True, "head_dim": 10},
    ),
    "falcon_h1 bare": (
        "falcon_h1",
        {
            **_SSM,
            "mamba_d_ssm": None,
            "projectors_bias": True,
            "mamba_proj_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_conv_bias": False,
        },
    ),
    "jamba": ("jamba", {**_JAMBA, "num_hidden_layers": 3, "num_experts": 5}),
    "jamba dense": (
        "jamba",
        {
            **_JAMBA,
            "num_experts": 1,
            "mamba_dt_rank": 3,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
        },
    ),
    "zamba": (
        "zamba",
        {
            "num_hidden_layers": 5,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid"],
            "num_key_value_heads": 2,
            "mamba_d_state": 5,
            "mamba_dt_rank": 3,
            "rms_norm_eps": 0.01,
        },
    ),
    "zamba untied": (
        "zamba",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["hybrid", "mamba", "hybrid", "mamba"],
            "num_key_value_heads": 4,
            "n_mamba_heads": 3,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "tie_word_embeddings": False,
        },
    ),
    "zamba silent": ("zamba", {"num_hidden_layers": 8, "num_key_value_heads": 4}),
    "zamba2": (
        "zamba2",
        {
            **_ZAMBA,
            "num_hidden_layers": 6,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "time_step_min": 0.3,
            "add_bias_linear": True,
            "rms_norm_eps": 0.01,
        },
    ),
    "zamba2 adapters": (
        "zamba2",
        {
            **_ZAMBA,
            "num_hidden_layers": 3,
            "layers_block_type": ["hybrid", "mamba", "hybrid"],
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
        },
    ),
    "zamba2 untied": (
        "zamba2",
        {
            **_ZAMBA,
            "num_hidden_layers": 4,
            "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2": ("lfm2", {"full_attn_idxs": [1], "block_multiple_of": 7}),
    "lfm2 biases": (
        "lfm2",
        {
            "layer_types": ["full_attention", "conv"],
            "conv_bias": True,
            "conv_L_cache": 5,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            "layer_types": ["conv", "full_attention"],
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.7,
        },
    ),
    "lfm2_moe unbiased": (
        "lfm2_moe",
        {
            "layer_types": ["conv", "full_attention"],
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "num_dense_layers": 0,
            "use_expert_bias": False,
            "norm_topk_prob": False,
        },
    ),
    "lfm3": (
        "lfm3",
        {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "conv", "full_attention"],
            "sliding_window": 9,
            "head_dim": 12,
        },
    ),
    "lfm3 bare": (
        "lfm3",
        {
            "layer_types": ["full_attention", "conv"],
            "head_dim": 10,
            "conv_L_cache": 3,
            "conv_bias": True,
            "attention_bias": True,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "tie_word_embeddings": False,
        },
    ),
    "lfm3 silent": ("lfm3", {"num_hidden_layers": 5, "head_dim": 8}),
    "qwen3_next": ("qwen3_next", {**_DELTA, **_EXPERTS}),
    "qwen3_next dense layer": (
        "qwen3_next",
        {
            **_DELTA,
            **_EXPERTS,
            "linear_num_value_heads": 2,
            "mlp_only_layers": [0],
            "norm_topk_prob": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_5_text": ("qwen3_5_text", _DELTA),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {**_DELTA, **_EXPERTS}),
    "bailing_hybrid": (
        "bailing_hybrid",
        {
            **_LING,
            "num_hidden_layers": 3,
            "layer_group_size": 2,
            "q_lora_rank": 14,
            "first_k_dense_replace": 1,
        },
    ),
    "bailing_hybrid unsafe": (
        "bailing_hybrid",
        {
            **_LING,
            "layer_types": ["full_attention", "linear_attention"],
            "mlp_layer_types": ["sparse", "dense"],
            "kda_safe_gate": False,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "short_conv_kernel_size": 2,
        },
    ),
    "minimax": (
        "minimax",
        {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_hidden_layers": 3,
            "num_local_experts": 5,
            "full_attn_alpha_factor": 1.5,
            "linear_attn_beta_factor": 0.7,
            "mlp_alpha_factor": 1.3,
            "mlp_beta_factor": 0.8,
            "block_size": 16,
        },
    ),
    "minimax odd": (
        "minimax",
        {
            "num_local_experts": 4,
            "head_dim": 10,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "sliding_window": 9,
        },
    ),
    "kimi_linear": (
        "kimi_linear",
        {**_KIMI, "layer_types": ["linear_attention", "full_attention"], "q_lora_rank": 14},
    ),
    "kimi_linear attention": (
        "kimi_linear",
        {
            **_KIMI,
            "layer_types": ["full_attention", "full_attention"],
            "mlp_layer_types": ["sparse", "dense"],
        },
    ),
    "kimi_linear groups": (
        "kimi_linear",
        {
            **_KIMI,
            "layer_types": ["full_attention", "linear_attention"],
            "mlp_layer_types": ["sparse", "dense"],
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "linear_conv_kernel_dim": 2,
        },
    ),
    "recurrent_gemma": (
        "recurrent_gemma",
        {
            "num_hidden_layers": 3,
            "attention_window_size": 9,
            "lru_width": 20,
            "num_key_value_heads": 1,
            "logits_soft_cap": 4.0,
        },
    ),
    "recurrent_gemma turns": (
        "recurrent_gemma",
        {
            "num_hidden_layers": 4,
            "block_types": ["attention", "recurrent"],
            "attention_bias": True,
            "conv1d_width": 3,
            "hidden_activation": "gelu",
            "head_dim": 10,
        },
    ),
    "olmo_hybrid": ("olmo_hybrid", {**_OLMO, "rope_parameters": {"rope_theta": None}}),
    "olmo_hybrid rope": (
        "olmo_hybrid",
        {
            **_OLMO,
            "layer_types": ["full_attention", "linear_attention"],
            "linear_num_value_heads": 2,
            "linear_allow_neg_eigval": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "olmo_hybrid silent": ("olmo_hybrid", {}),
}


def classic_layers(written: dict[str, object]) -> dict[str, object]:
    """The changes that make a config tell its layers' types as files once did."""
    key = "layers_block_type" if "layers_block_type" in written else "layer_types"
    types = written.get(key, [])
    attend = [index for index, kind in enumerate(types) if kind == "full_attention"]
    old = {"linear_attention": "mamba", "full_attention": "attention"}
    match written["model_type"]:
        case "nemotron_h":
            letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
            pattern = "".join(letters[kind] for kind in types)
            return {key: None, "hybrid_override_pattern": pattern, "num_hidden_layers": 1}
        case "granitemoehybrid" | "zamba" | "zamba2":
            return {key: [old.get(kind, kind) for kind in types]}
        case "lfm2":
            size = written["intermediate_size"]
            return {key: None, "full_attn_idxs": attend, "block_ff_dim": size}
        case "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text":
            return {key: None, "full_attention_interval": 2}
        case "kimi_linear":
            inner = {new: written[f"linear_{new}"] for new in ("num_heads", "head_dim")}
            inner["short_conv_kernel_size"] = written["linear_conv_kernel_dim"]
            inner["full_attn_layers"] = [index + 1 for index in attend]
            inner["kda_layers"] = [i + 1 for i in range(len(types)) if i not in attend]
            gone = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
            return {key: None, "linear_attn_config": inner, **dict.fromkeys(gone)}
        case _:
            return {}
