"""What a GGUF file says about a model: words of config.json, through the table of keys.

The opposite of `as_config`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from blazr.core.gguf_header import Value
from blazr.models.config import ModelConfig
from blazr.models.families.gguf.architectures import Architecture
from blazr.models.families.gguf.form import all_mixers, mixers_of
from blazr.models.families.gguf.keys import METADATA_KEYS, SIGMOID, SOFTMAX
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.gated_delta import GatedDeltaConfig, KimiDeltaConfig
from blazr.nn.layers.mamba1 import Mamba1Config
from blazr.nn.layers.mamba2 import Mamba2Config
from blazr.nn.layers.mla import DeepseekMlaConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.moe import MoeConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.layers.short_conv import ShortConvConfig

# Metadata are float32.
_CLOSE = 1e-6
# How Qwen 3.5 cuts channels between places in text and in images; text has one place.
_SECTIONS = [11, 11, 10, 0]
_ATTENDS = (AttentionConfig, DeepseekMlaConfig)

Metadata = dict[str, Value]
Words = dict[str, Value]


def metadata_of(config: ModelConfig, row: Architecture) -> Metadata:
    """What a file says about a model, under keys without the architecture before them.

    Args:
        config: In the form of `as_gguf`.
        row: Its architecture.
    """
    eps = config.final_norm.eps  # under both names: programs differ in which one they ask for
    found: Words = {
        "num_layers": len(config.layers),
        "max_seq_len": config.max_seq_len,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": eps,
        "layer_norm_eps": eps,
    }
    scale = config.hidden_size**0.5 if row.scales_embedding else 1.0
    numbers = {
        "embedding_multiplier": (config.embedding_multiplier, scale),
        "residual_multiplier": (config.layers[0].residual_multiplier, 1.0),
        "logits_scaling": (config.logits_scaling, 1.0),
        "final_logit_softcapping": (config.logit_softcap or 0.0, 0.0),
    }
    found |= {key: value for key, (value, usual) in numbers.items() if value != usual}
    found |= _feed_forwards(config) | _attention(config, row)
    for mixer in all_mixers(config):
        keys = _FIELDS.get(type(mixer), {})
        found |= {key: getattr(mixer, name) for key, name in keys.items()}
        if isinstance(mixer, Mamba1Config):
            found["normalizes_plainly"] = mixer.inner_norms == "plain"
    return {METADATA_KEYS[word]: value for word, value in found.items()}


def _feed_forwards(config: ModelConfig) -> Words:
    feeds = [layer.feed_forward for layer in config.layers]
    sizes = [getattr(feed, "intermediate_size", 0) for feed in feeds]
    dense = [feed.intermediate_size for feed in feeds if isinstance(feed, MlpConfig)]
    is_even = all(sizes) or not any(sizes)
    size = next(iter(dense), max(sizes, default=0))
    found: Words = {"intermediate_size": size if is_even else sizes}
    experts = next((feed for feed in feeds if isinstance(feed, MoeConfig)), None)
    if experts is None:
        return found
    first = next(i for i, feed in enumerate(feeds) if isinstance(feed, MoeConfig))
    found |= {
        "num_experts": experts.num_experts,
        "experts_per_tok": experts.experts_per_token,
        "moe_intermediate_size": experts.intermediate_size,
        "scoring_number": SIGMOID if experts.scoring == "sigmoid" else SOFTMAX,
        "norm_topk_prob": experts.norm_topk_prob,
        "routed_scaling_factor": experts.routed_scaling_factor,
        "first_k_dense_replace": first if is_even else 0,
    }
    if experts.groups is not None:
        found["n_group"] = experts.groups.count
        found["topk_group"] = experts.groups.kept
    if experts.shared_expert:
        shared = experts.shared_intermediate_size or experts.intermediate_size
        found["shared_expert_intermediate_size"] = shared
        found["n_shared_experts"] = max(1, shared // experts.intermediate_size)
    if experts.latent_size is not None:
        found["moe_latent_size"] = experts.latent_size
    return found


def _attention(config: ModelConfig, row: Architecture) -> Words:
    layers = [mixers_of(layer) for layer in config.layers]
    attends = [next((m for m in each if isinstance(m, _ATTENDS)), None) for each in layers]
    known = [each for each in attends if each is not None]
    if not known:
        return {"num_attention_heads": 0}
    first = known[0]
    kv = [0 if each is None else getattr(each, "num_kv_heads", 1) for each in attends]
    is_delta = any(type(each) is GatedDeltaConfig for mixers in layers for each in mixers)
    found: Words = {
        "num_attention_heads": first.num_heads,
        "num_kv_heads": max(kv) if is_delta or len(set(kv)) == 1 else kv,
    }
    if is_delta:
        found["is_recurrent"] = [each is None for each in attends]
    if isinstance(first, DeepseekMlaConfig):
        return found | _latent(first)
    plain = [each for each in known if isinstance(each, AttentionConfig)]
    found |= {"head_dim": plain[0].head_dim, "value_head_dim": plain[0].head_dim}
    numbers = {
        "attention_multiplier": plain[0].attention_multiplier,
        "attn_logit_softcapping": plain[0].attn_logit_softcap,
    }
    found |= {word: number for word, number in numbers.items() if number is not None}
    windows = [getattr(each, "sliding_window", None) for each in attends]
    is_sliding = [window is not None for window in windows]
    window = next((window for window in windows if window is not None), None)
    every = row.full_every
    if window is not None:
        found["sliding_window"] = window
        if is_sliding != [not every or (index + 1) % every != 0 for index in range(len(windows))]:
            found["is_sliding"] = is_sliding
    return found | _rotation(plain, row)


def _rotation(layers: list[AttentionConfig], row: Architecture) -> Words:
    rotated = [each for each in layers if each.rope is not None]
    found: Words = {"rotates": bool(rotated)} if row.rotation == "metadata" else {}
    windowed = [each for each in rotated if each.sliding_window is not None]
    whole = [each for each in rotated if each.sliding_window is None] or windowed
    if not whole or whole[0].rope is None:
        return found
    found |= _rope_keys(whole[0].rope)
    if row.plain_window and windowed and windowed[0].rope is not None:
        found["rope_local_base_freq"] = windowed[0].rope.theta
    if row.tiled:
        found["mrope_section"] = _SECTIONS
    return found


def _rope_keys(rope: RopeConfig, *, stretches: bool = True) -> Words:
    found: Words = {"rotary_dim": rope.dim, "rope_theta": rope.theta}
    if rope.temperature is not None:
        found["llama_4_scaling_beta"] = rope.temperature.scale
        found["original_max_position_embeddings"] = rope.temperature.length
    scaling = rope.scaling
    if scaling is None or scaling.kind in {"factors", "dynamic"}:
        return found
    if scaling.kind == "longrope":
        found["original_max_position_embeddings"] = scaling.original_max_seq_len
        found["attention_factor"] = scaling.attention_factor
        return found
    found |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "yarn":
        usual = 0.1 * math.log(max(scaling.factor, 1.0)) + 1 if stretches else 1.0
        found |= {
            "original_max_position_embeddings": scaling.original_max_seq_len,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
        }
        if rope.temperature is not None and math.isclose(scaling.attention_factor, 1):
            found["mscale_all_dim"] = 1.0  # Mistral's word for an even stretch
        elif not math.isclose(scaling.attention_factor, usual, rel_tol=_CLOSE):
            found["attention_factor"] = scaling.attention_factor / usual
    return found


def _latent(first: DeepseekMlaConfig) -> Words:
    """One head of keys that all queries share, and what they were before."""
    whole = first.head_dim + first.rope_dim
    found: Words = {
        "head_dim": first.kv_latent + first.rope_dim,
        "value_head_dim": first.kv_latent,
        "qk_head_dim": whole,
        "v_head_dim": first.v_head_dim,
        "kv_lora_rank": first.kv_latent,
        "rotary_dim": first.rope_dim,
    }
    if first.q_latent is not None:
        found["q_lora_rank"] = first.q_latent
    if first.rope is None:
        return found
    stretch = math.sqrt(first.scale * whole**0.5)
    scaling = first.rope.scaling
    apart = scaling is not None and not math.isclose(stretch, 1, rel_tol=_CLOSE)
    if apart and scaling is not None:
        weight = (stretch - 1) / math.log(max(scaling.factor, 1.0))
        found["mscale_all_dim"] = weight
    return found | _rope_keys(first.rope, stretches=not apart)


def _ssm(*fields: str) -> dict[str, str]:
    words = ("conv_kernel", "inner_size", "state_size", "time_step_rank", "n_groups")
    return dict(zip(words, fields, strict=False))


# The field that each word is, mixer by mixer.
_FIELDS: Mapping[type, Mapping[str, str]] = {
    Mamba1Config: {
        **_ssm("conv_kernel", "inner_size", "state_size", "dt_rank"),
        "mixer_rms_eps": "norm_eps",
    },
    Mamba2Config: _ssm("conv_kernel", "inner_size", "state_size", "num_heads", "num_groups"),
    GatedDeltaConfig: _ssm(
        "conv_kernel", "value_size", "key_head_dim", "num_heads", "num_key_heads"
    ),
    KimiDeltaConfig: {"conv_kernel": "conv_kernel", "linear_head_dim": "key_head_dim"},
    ShortConvConfig: {"conv_L_cache": "conv_kernel"},
}
