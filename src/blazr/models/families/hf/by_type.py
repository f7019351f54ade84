"""Laguna and MiMo-V2: layers of two types, with attention and rotation of their own each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.families.base import value_or
from blazr.models.families.hf.dense import LLAMA_BIASES
from blazr.models.families.hf.derive import (
    FULL,
    SLIDING,
    Reading,
    Traits,
    read_attention,
    read_mlp,
)
from blazr.models.families.hf.names import LAYER, MLP_NAMES, hf_rules
from blazr.models.families.hf.rope import plain_rope_by_type, rope_of_type
from blazr.models.families.hf.sparse import (
    ROUTED_EXPERTS,
    listed_type,
    read_experts,
    sigmoid_experts,
    with_shared_expert,
)
from blazr.models.families.rules import FEED, MIXER, Rule
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.moe import MoeConfig

_ATTENTION = LAYER + "self_attn."


def _mlp_type(reading: Reading, index: int) -> str:
    """By ``mlp_layer_types``, or experts in all layers but the first."""
    listed = reading.mlp_type(index)
    return listed or ("sparse" if index else "dense")


def _laguna_attention(reading: Reading, norm: NormConfig, index: int) -> AttentionConfig:
    """Each layer may have another number of heads, and a gate for each head or channel.

    Raises:
        ConfigError: What the gates weigh is unknown, or numbers of heads are missing.
    """
    counts = reading.reader.integers("num_attention_heads_per_layer")
    count = None
    if counts is not None:
        count = counts.value[index] if index < len(counts.value) else 0
        if count < 1:
            raise ConfigError(
                f"{counts.source} does not fit the layers.",
                found=f"{len(counts.value)} numbers",
                expected=f"a number of heads for each of {reading.num_layers} layers",
            )
    config = read_attention(reading, _LAGUNA, norm, index, count=count)
    gating = reading.reader.raw.get("gating", True)
    reading.reader.expect("gating", True, "per-head", "per-element")  # noqa: FBT003  (a value)
    is_by_channel = gating == "per-element"
    return replace(config, head_gate=not is_by_channel, gate_proj=is_by_channel, softplus_gate=True)


def _laguna_experts(reading: Reading, index: int) -> MoeConfig | None:
    if _mlp_type(reading, index) == "dense":
        return None
    cap = value_or(reading.reader.number("moe_router_logit_softcapping"), 0.0)
    experts = replace(
        read_experts(reading),
        scoring="sigmoid",
        correction_bias=True,
        routed_scaling_factor=reading.number("moe_routed_scaling_factor", 1.0),
        router_softcap=cap if cap > 0 else None,
    )
    return with_shared_expert(experts, reading.size("shared_expert_intermediate_size"))


_LAGUNA = Traits(
    rules=hf_rules(
        [
            Rule(_ATTENTION + "g_proj.weight", MIXER + "gate_proj.weight"),
            Rule(LAYER + "mlp.experts.e_score_correction_bias", FEED + "correction_bias"),
            Rule(LAYER + "mlp.shared_expert.{p}", FEED + "shared_expert.{p}", p=MLP_NAMES),
        ]
    ),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    attention={**LLAMA_BIASES, "qk_norm": True},
    feed_forward=_laguna_experts,
    rope=lambda reading, dim, index: rope_of_type(reading.reader, listed_type(reading, index), dim),
    slides=lambda reading, index: listed_type(reading, index) == SLIDING,
    prepare=plain_rope_by_type(
        full_attention={"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
        sliding_attention={"rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    ),
    expects={
        "moe_apply_router_weight_on_input": (False,),
        "norm_topk_prob": (True,),
        "qkv_bias": (False,),
        "decoder_sparse_step": (1,),
    },
    # where no layer has experts; and what says again which layers have none
    ignored_keys=(
        *("moe_router_logit_softcapping", "moe_routed_scaling_factor", "mlp_only_layers"),
        *("shared_expert_intermediate_size", "moe_intermediate_size", "num_experts"),
    ),
)
LAGUNA = replace(_LAGUNA, mixer=_laguna_attention).family("laguna")


def _mimo_config(own: Mapping[str, object]) -> Mapping[str, object]:
    """In the library's words, where it has those of the release."""
    changed = dict(own)
    for old, new, kinds in (
        ("hybrid_layer_pattern", "layer_types", (FULL, SLIDING)),
        ("moe_layer_freq", "mlp_layer_types", ("dense", "sparse")),
    ):
        listed = changed.pop(old, None)
        if isinstance(listed, list) and own.get(new) is None:
            changed[new] = [kinds[1] if each else kinds[0] for each in listed]
    if isinstance(window := own.get("sliding_window_size"), int):
        changed["sliding_window"] = window + 1  # beside the query itself
    if own.get("rope_parameters") is None:
        thetas = own.get("rope_theta", 5_000_000.0), own.get("swa_rope_theta", 10_000.0)
        share = own.get("partial_rotary_factor", _MIMO_SHARE)
        changed["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share}
            for kind, theta in zip((FULL, SLIDING), thetas, strict=True)
        }
    return changed


def _mimo_type(reading: Reading, index: int) -> str:
    """By ``layer_types``, or a window in all but the first and every sixth."""
    sees_all = index == 0 or (index + 1) % 6 == 0
    return reading.layer_type(index) or (FULL if sees_all else SLIDING)


def _mimo_attention(reading: Reading, norm: NormConfig, index: int) -> AttentionConfig:
    return _mimo_attention_of(reading, norm, index, _mimo_type(reading, index))


def _mimo_attention_of(
    reading: Reading, norm: NormConfig, index: int, kind: str
) -> AttentionConfig:
    """Twice as many keys, and sinks, where there is a window; values are shorter than keys."""
    slides = kind == SLIDING
    kv_heads, dim = reading.size("num_kv_heads"), reading.size("head_dim")
    reading.reader.expect("swa_num_key_value_heads", 2 * kv_heads)
    for key in ("swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads"):
        reading.reader.expect(key, reading.size(key.removeprefix("swa_")))
    heads = (2 * kv_heads if slides else kv_heads), dim
    traits = replace(_MIMO, slides=lambda *_: slides)
    config = read_attention(reading, traits, norm, index, heads=heads)
    silent = {"partial_rotary_factor": _MIMO_SHARE}
    rope = rope_of_type(reading.reader, kind, dim, defaults=silent)
    return replace(
        config,
        rope=rope,
        sinks=slides,
        v_head_dim=reading.size("v_head_dim"),
        v_multiplier=value_or(reading.reader.number("attention_value_scale", above=0), 1.0),
    )


def _mimo_experts(reading: Reading, index: int) -> MoeConfig | None:
    if _mlp_type(reading, index) == "dense":
        return None
    experts = sigmoid_experts(reading, index)
    return experts and with_shared_expert(experts, 0)


def _mimo_mtp(reading: Reading, norm: NormConfig) -> LayerConfig:
    """A window and a dense MLP, whatever the layers have; of several modules this is the first.

    Source: vLLM's model_executor/models/mimo_v2_mtp.py.
    """
    return LayerConfig(
        mixer=_mimo_attention_of(reading, norm, 0, SLIDING),
        mixer_norm=norm,
        feed_forward=read_mlp(reading, {}),
        feed_forward_norm=norm,
    )


_MIMO_SHARE = 0.334
_MIMO_MTP = "model.mtp.layers.0."
_MIMO = Traits(
    rules=hf_rules(
        [
            Rule(_ATTENTION + "attention_sink_bias", MIXER + "sinks"),
            Rule(_MIMO_MTP + "pre_mlp_layernorm.weight", "layers.0.feed_forward_norm.weight"),
        ]
    ),
    names={**ROUTED_EXPERTS, "rms_norm_eps": ("rms_norm_eps", "layernorm_epsilon")},
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "rms_norm_eps": 1e-5,
        "sliding_window": 129,
        "attention_value_scale": 0.707,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
    },
    attention={"qkv_bias": "attention_bias"},
    feed_forward=_mimo_experts,
    slides=lambda reading, index: _mimo_type(reading, index) == SLIDING,
    prepare=_mimo_config,
    expects={
        "add_swa_attention_sink_bias": (True,),
        "add_full_attention_sink_bias": (False,),
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "n_shared_experts": (0,),
    },
    ignored_keys=(
        *("sliding_window_size", "swa_rope_theta", "attention_chunk_size", "hybrid_block_size"),
        *("first_k_dense_replace", "routed_scaling_factor", "norm_topk_prob", "moe_layer_freq"),
        *("moe_intermediate_size", "n_routed_experts", "n_group", "topk_group"),
    ),
    unused=lambda _: ("model.mtp.",),
    mtp=_MIMO_MTP,
    mtp_layer=_mimo_mtp,
)
MIMO_V2_FLASH = replace(_MIMO, mixer=_mimo_attention).family("mimo_v2_flash")
