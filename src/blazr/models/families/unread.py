"""Keys of a config that no reader has asked for: what becomes of each.

A key that changes nothing is passed over; one that changes the result and is not implemented is
refused; all others are ignored with one warning that names them.
"""

from __future__ import annotations

from collections.abc import Mapping

from blazr.core.errors import ConfigError
from blazr.models.families.base import ConfigReader, Ledger

# Training, generation defaults, how the file was written, and what is read elsewhere.
_LISTED = 40
_BEGINNINGS = (
    "_",
    "auto_",
    "unsloth",
    "output_",
    "forced_",
    "num_beam",
    "summary_",
    "transformers",
)
_ENDINGS = (
    "_token_id",
    "_token_ids",
    "_token",
    "_dropout",
    "_dropout_prob",
    "_pdrop",
    "_coef",
    "_noise",
    "initializer_range",
    "_version",
    "_class",
    "_penalty",
)
_KEYS = {
    "architectures", "model_type", "torch_dtype", "dtype", "use_cache", "pretraining_tp",
    "quantization_config", "quantization", "return_dict", "chunk_size_feed_forward",
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
    "reorder_and_upcast_attn",
    "base_model", "base_model_name_or_path", "model_name", "n_ctx", "n_positions", "num_labels",
    "max_seq_len", "max_seq_length", "tokenizer_name", "tokenizer_vocab", "license", "language",
}  # fmt: skip


# What would change the result without any tensor that tells, and is not implemented where no reader
# asks for it: the reason, and the values that ask for nothing.
_NOT_CAUSAL = "only causal decoders run here"
_POSITIONS = "this type of model tells positions by rotation (RoPE), a learned table or not at all"
_MULTIPLIED = "this type of model has no such multiplier here"
_CAPPED = "this type of model caps no scores here"
NOT_IMPLEMENTED: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "is_encoder_decoder": (_NOT_CAUSAL, ()),
    "add_cross_attention": (_NOT_CAUSAL, ()),
    "use_bidirectional_attention": (_NOT_CAUSAL, ()),
    "is_causal": (_NOT_CAUSAL, (True,)),
    "alibi": (_POSITIONS, ()),
    "use_alibi": (_POSITIONS, ()),
    "position_embedding_type": (_POSITIONS, ("rope", "rotary", "nope")),
    "parallel_attn": ("both halves of a layer run one after the other", ()),
    "use_parallel_residual": ("both halves of a layer run one after the other", ()),
    "parallel_residual": ("both halves of a layer run one after the other", ()),
    "apply_residual_connection_post_layernorm": ("residuals leave before the norm", ()),
    "attn_logit_softcapping": (_CAPPED, ()),
    "final_logit_softcapping": (_CAPPED, ()),
    "logit_scale": (_MULTIPLIED, (1,)),
    "logits_scaling": (_MULTIPLIED, (1,)),
    "attention_multiplier": (_MULTIPLIED, (1,)),
    "embedding_multiplier": (_MULTIPLIED, (1,)),
    "residual_multiplier": (_MULTIPLIED, (1,)),
    "lm_head_multiplier": (_MULTIPLIED, (1,)),
    "key_multiplier": (_MULTIPLIED, (1,)),
    "scale_emb": (_MULTIPLIED, (1,)),
    "scale_depth": (_MULTIPLIED, ()),
    "attention_chunk_size": ("this type of model has no chunks here", ()),
    "attn_temperature_tuning": ("this type of model has no such scores here", ()),
    "llama_4_scaling_beta": ("only Ministral 3's scores grow with the position", ()),
    "num_kv_shared_layers": ("layers share no keys and values here", ()),
}


def check_unread(reader: ConfigReader, ledger: Ledger) -> None:
    """Refuse or ignore what nobody has asked for; one warning names all that is ignored.

    Raises:
        ConfigError: One of the keys changes the result and is not implemented.
    """
    types = reader.raw.get("layer_types")
    if isinstance(types, list) and all(kind == "full_attention" for kind in types):
        reader.mark("layer_types")
    ignored = []
    for key, value in (*reader.unread().items(), *reader.unknown.items()):
        if is_off(value):
            continue
        section, _, name = key.rpartition(".")
        why, harmless = NOT_IMPLEMENTED.get(name, ("", ()))
        if why and value not in harmless:
            place = f"{reader.source}: {section}" if section else reader.source
            raise ConfigError(
                f"{place}: {name!r} is not supported: {why}.",
                found=repr(value)[:100],
                expected=" or ".join(repr(each) for each in (*harmless, None)),
                hint="transformers may run the model: --model-impl transformers",
            )
        if not why and not is_neutral(key):
            ignored.append(key)
    warn_ignored(reader.source, ignored, ledger)


def warn_ignored(source: str, keys: list[str], ledger: Ledger) -> None:
    """One warning for all keys that are not known, if there are any."""
    if keys:
        names = ", ".join(key[:60] for key in sorted(keys)[:_LISTED])
        more = f" and {len(keys) - _LISTED} more" if len(keys) > _LISTED else ""
        ledger.warn(f"{source}: unknown keys are ignored: {names}{more}.")


def is_off(value: object) -> bool:
    """Whether a value is that of an option which is off."""
    return value is None or value in (0, {}, [], "")


def is_neutral(key: str) -> bool:
    """Whether a key changes nothing in what a model computes, by its name."""
    return key in _KEYS or key.startswith(_BEGINNINGS) or key.endswith(_ENDINGS)
