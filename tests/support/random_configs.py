"""Configs of transformers that nobody has released: those of CASES, changed at random."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

Changes = dict[str, object]

# Keys of which a list has one entry a layer, and of which one names layers.
_PER_LAYER = ("layer_types", "layers_block_type", "mlp_layer_types", "no_rope_layers")
_LAYERS = ("attn_layer_indices", "full_attn_idxs", "mlp_only_layers")
_COUNTS: Mapping[str, tuple[object, ...]] = {
    "intermediate_size": (20, 36, 52, 64, 70),
    "num_experts": (4, 6, 8, 12),
    "num_local_experts": (8, 12),
    "n_routed_experts": (8, 12),
    "num_experts_per_tok": (1, 2, 3),
    "n_shared_experts": (1, 2, 3),
    "first_k_dense_replace": (0, 1, 2),
    "sliding_window": (None, 3, 9, 30, 100),
    **dict.fromkeys(("conv_kernel", "mamba_d_conv", "conv_L_cache"), (2, 3, 4, 5)),
    "linear_conv_kernel_dim": (2, 3, 4, 5),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), (3, 8, 11, 16)),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), (8, 32, 256)),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "norm_eps"), (1e-6, 1e-5, 1e-2)),
}
_MULTIPLIED = ("multiplier", "logits_scaling", "routed_scaling_factor", "logit_softcapping")
_FLAGS = (
    *("attention_bias", "mlp_bias", "use_bias", "use_conv_bias", "mamba_conv_bias", "conv_bias"),
    *("mamba_proj_bias", "projectors_bias", "add_bias_linear", "qkv_bias", "tie_word_embeddings"),
    *("mamba_rms_norm", "mamba_norm_before_gate", "use_mem_rope", "use_shared_attention_adapter"),
    *("use_qk_norm", "norm_topk_prob", "use_expert_bias", "rope_interleave", "moe_renormalize"),
)
# Keys that decide about others or about none of the numbers, and some that only refuse.
_LEFT = {
    *("model_type", "architectures", "vocab_size", "transformers_version", "dtype", "return_dict"),
    *("problem_type", "is_encoder_decoder", "chunk_size_feed_forward", "output_attentions"),
    *("output_hidden_states", "bos_token_id", "eos_token_id", "pad_token_id", "hidden_size"),
    *("max_position_embeddings", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hybrid_layer_ids", "use_bidirectional_attention"),
    *("rope_parameters", "tie_word_embeddings", "qk_layernorm", "alibi", "attention_chunk_size"),
    *("add_cross_attention", "_remove_final_layer_norm"),
}
_CHOSEN = "num_experts_per_tok"
_GROUPS = ("n_group", "num_expert_group")
_SCALED = {"rope_scaling", "rope_parameters"}
_SHORT = {"original_max_position_embeddings": 20}
_ROTATIONS: tuple[Changes, ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 3.0, **_SHORT},
    {"rope_type": "yarn", "factor": 3.0, "beta_fast": 16, "attention_factor": 0.8, **_SHORT},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
    | _SHORT,
)


def random_changes(
    rng: Random, kind: str, changes: Changes, known: Mapping[str, object]
) -> Changes:
    """A case's changes with others beside and in place of them.

    Args:
        rng: What decides.
        kind: The type of model.
        changes: Those of the case.
        known: The config that they make.
    """
    made = dict(changes)
    # of those layers and heads decide about each other, or how many channels are rotated, which the
    # library wants to be even
    if kind not in {"zamba", "zamba2", "phi", "stablelm"}:
        if "num_attention_heads" in known and rng.random() < 0.7:
            _change_heads(rng, made, known)
        if rng.random() < 0.6:
            _change_layers(rng, made)
    _change_counts(rng, made, known)
    for key, value in known.items():
        if isinstance(value, float) and any(each in key for each in _MULTIPLIED):
            made[key] = round(value * rng.choice((0.3, 0.7, 1, 1, 1, 1.9)), 4)
        elif key in _FLAGS and rng.random() < 0.2:
            made[key] = not value
    if rng.random() < 0.5:
        _change_anything(rng, made, known)
    old = known.get("rope_parameters")
    is_plain = isinstance(old, dict) and "rope_theta" in old and not _SCALED & {*changes}
    if is_plain and rng.random() < 0.3:
        kept = {key: old[key] for key in ("partial_rotary_factor",) if key in old}
        kinds = _ROTATIONS[:2] if kept else _ROTATIONS  # others take an even number of channels
        made["rope_parameters"] = rng.choice(kinds) | kept
        made["rope_parameters"] |= {"rope_theta": rng.choice((500.0, 1e4, 1e6))}
    if kind != "deepseek_v2":
        _choose_within_groups(made, known)
    return made


def _choose_within_groups(made: Changes, known: Mapping[str, object]) -> None:
    """Let a token choose no more experts than its best groups have.

    Which others it would get nothing defines: to the library's ``topk`` their scores are all minus
    infinity, but they are weighed in full. DeepSeek-V2 gives them weight 0.
    """
    now = {**known, **made}
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = next((now[key] for key in keys if now.get(key)), None)
    groups, kept, chosen = (now.get(key) for key in ("n_group", "topk_group", _CHOSEN))
    numbers = (experts, groups, kept, chosen)
    if all(isinstance(each, int) and each > 0 for each in numbers) and groups != 1:
        made[_CHOSEN] = max(1, min(chosen, experts // groups * kept))


def _change_anything(rng: Random, made: Changes, known: Mapping[str, object]) -> None:
    """Some of all keys that the library writes, whatever they mean."""
    for key, value in known.items():
        if key in _LEFT or rng.random() < 0.8:
            continue
        if isinstance(value, bool):
            made[key] = not value
        elif isinstance(value, float):
            made[key] = rng.choice((value * 0.5 + 0.1, value * 2))
        elif isinstance(value, int) and value < 100:
            made[key] = rng.choice((value + 1, value * 2, max(1, value - 1)))
        elif value is None:
            made[key] = rng.choice((4, 0.5, True, None))


def _change_heads(rng: Random, made: Changes, known: Mapping[str, object]) -> None:
    kv_heads, dim = rng.choice((1, 2, 3)), rng.choice((4, 6, 8, 10, 12))
    heads = kv_heads * rng.choice((1, 2))
    is_latent = "kv_lora_rank" in made
    made |= {"num_attention_heads": heads, "num_key_value_heads": heads if is_latent else kv_heads}
    if is_latent:
        return
    made["hidden_size"] = heads * dim
    if "head_dim" in known and rng.random() < 0.6:
        made |= {"head_dim": dim, "hidden_size": rng.choice((16, 24, 32, 40))}


def _change_counts(rng: Random, made: Changes, known: Mapping[str, object]) -> None:
    has_groups = any(known.get(key) not in (None, 1) for key in _GROUPS)
    for key, values in _COUNTS.items():
        if not known.get(key) or (has_groups and "experts" in key):
            continue  # groups of experts must each have as many as a token takes of them
        if rng.random() < 0.3:
            made[key] = rng.choice(values)


def _change_layers(rng: Random, made: Changes) -> None:
    count = rng.choice((1, 2, 3, 4))
    pattern = made.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        made["hybrid_override_pattern"] = "".join(rng.choice(pattern) for _ in range(count + 1))
        return
    made["num_hidden_layers"] = count
    for key in _PER_LAYER:
        if isinstance(kinds := made.get(key), list):
            made[key] = [rng.choice(kinds) for _ in range(count)]
    for key in _LAYERS:
        if key in made:
            made[key] = sorted(rng.sample(range(count), rng.randint(0, count)))
