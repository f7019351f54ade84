"""Keys of Hugging Face configs that do not change what a model computes.

Training, generation defaults, how the file was written, and what is read elsewhere.
"""

from __future__ import annotations

_BEGINNINGS = ("_", "auto_", "unsloth", "output_", "forced_", "num_beam", "transformers")
_ENDINGS = (
    *("_token_id", "_token_ids", "_token", "_dropout", "_dropout_prob", "_pdrop", "_coef"),
    *("_noise", "initializer_range", "_version", "_class", "_penalty"),
)
_KEYS = {
    "architectures", "model_type", "torch_dtype", "dtype", "use_cache", "pretraining_tp",
    "quantization_config", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder",
    "id2label", "label2id", "problem_type", "name_or_path", "vocab_size", "use_bfloat16",
    "torchscript", "is_decoder", "tie_encoder_decoder", "temperature", "top_k", "top_p",
    "typical_p", "do_sample", "max_length", "min_length", "num_return_sequences",
    "early_stopping", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "remove_invalid_values",
    "return_dict_in_generate", "task_specific_params", "finetuning_task", "pruned_heads",
    "prefix", "tf_legacy_loss", "max_window_layers", "model_max_length", "seq_length",
    "max_sequence_length", "rope_theta", "rope_scaling", "rope_parameters",
    "partial_rotary_factor", "use_flash_attn", "use_flash_attention_2", "attn_implementation",
    "scale_attn_weights", "original_max_position_embeddings", "max_position_embeddings",
    "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "qk_head_dim",
    "aux_loss_alpha", "seq_aux", "ep_size", "moe_layer_freq", "initial_context_length",
    "experts_per_token", "num_experts_per_tok", "full_attn_mod", "interpolate_factor",
    "cache_implementation", "norm_type", "mlp_type", "activation_function",
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "layer_norm_epsilon",
}  # fmt: skip


def is_neutral(key: str, value: object) -> bool:
    """Whether a key that no reader asked for may be ignored: by its name, or as it says nothing."""
    says_nothing = value is None or value is False or value in ({}, [], "")
    return says_nothing or key in _KEYS or key.startswith(_BEGINNINGS) or key.endswith(_ENDINGS)
