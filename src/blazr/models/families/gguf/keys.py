"""Which metadata key of a GGUF file means which key of config.json: one table, read both ways.

llama.cpp has one word for what Hugging Face's families call by several: `as_config` reads all of
them, `as_file` writes by the first. Where config.json has no word, ours says what is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# llama.cpp has one eps for all norms, so that this key is ours.
INNER_EPS = "ssm.dt_b_c_rms_epsilon"
RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
SOFTMAX, SIGMOID = 1, 2  # llama.cpp's numbers for what scores experts; 0 is neither

CONFIG_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "block_count": ("num_layers",),
        "context_length": ("max_seq_len",),
        "embedding_length": ("hidden_size",),
        "vocab_size": ("vocab_size",),
        "feed_forward_length": ("intermediate_size",),
        "nextn_predict_layers": ("num_nextn_predict_layers",),
        "embedding_scale": ("embedding_multiplier",),
        "residual_scale": ("residual_multiplier",),
        "logit_scale": ("logits_scaling",),
        "final_logit_softcapping": ("final_logit_softcapping",),
        "attn_logit_softcapping": ("attn_logit_softcapping",),
        LAYER_EPS: ("layer_norm_eps",),
        RMS_EPS: ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        "attention.head_count": ("num_attention_heads",),
        "attention.head_count_kv": ("num_kv_heads",),
        "attention.key_length": ("head_dim",),
        "attention.value_length": ("value_head_dim",),
        "attention.key_length_mla": ("qk_head_dim",),
        "attention.value_length_mla": ("v_head_dim",),
        "attention.kv_lora_rank": ("kv_lora_rank",),
        "attention.q_lora_rank": ("q_lora_rank",),
        "attention.scale": ("attention_multiplier",),
        "attention.sliding_window": ("sliding_window",),
        "attention.sliding_window_pattern": ("is_sliding",),
        "attention.recurrent_layers": ("is_recurrent",),
        "attention.temperature_scale": ("llama_4_scaling_beta",),
        "rope.dimension_count": ("rotary_dim",),
        "rope.dimension_sections": ("mrope_section",),
        "rope.freq_base": ("rope_theta",),
        "rope.freq_base_swa": ("rope_local_base_freq",),
        "rope.scaling.type": ("rope_type",),
        "rope.scaling.factor": ("factor",),
        "rope.scaling.original_context_length": ("original_max_position_embeddings",),
        "rope.scaling.attn_factor": ("attention_factor",),
        "rope.scaling.yarn_beta_fast": ("beta_fast",),
        "rope.scaling.yarn_beta_slow": ("beta_slow",),
        "rope.scaling.yarn_log_multiplier": ("mscale_all_dim",),
        "rope.scaling.finetuned": ("rotates",),
        "expert_count": ("num_experts",),
        "expert_used_count": ("experts_per_tok", "num_experts_per_tok"),
        "expert_feed_forward_length": ("moe_intermediate_size",),
        "expert_shared_feed_forward_length": (
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "shared_intermediate_size",
        ),
        "expert_shared_count": ("n_shared_experts",),
        "expert_gating_func": ("scoring_number",),
        "expert_weights_norm": ("norm_topk_prob",),
        "expert_weights_scale": ("routed_scaling_factor",),
        "expert_group_count": ("n_group",),
        "expert_group_used_count": ("topk_group",),
        "leading_dense_block_count": ("first_k_dense_replace", "num_dense_layers"),
        "moe_latent_size": ("moe_latent_size",),
        "ssm.conv_kernel": ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim"),
        "ssm.inner_size": ("inner_size",),
        "ssm.state_size": (
            "state_size",
            "ssm_state_size",
            "mamba_d_state",
            "linear_key_head_dim",
        ),
        "ssm.time_step_rank": (
            "time_step_rank",
            "mamba_dt_rank",
            "num_heads",
            "mamba_num_heads",
            "mamba_n_heads",
            "linear_num_value_heads",
        ),
        "ssm.group_count": ("n_groups", "mamba_n_groups", "linear_num_key_heads"),
        "ssm.dt_b_c_rms": ("normalizes_plainly",),
        INNER_EPS: ("mixer_rms_eps",),
        "kda.head_dim": ("linear_head_dim",),
        "shortconv.l_cache": ("conv_L_cache",),
    }
)
METADATA_KEYS: Mapping[str, str] = MappingProxyType(
    {word: key for key, words in CONFIG_KEYS.items() for word in words}
)
