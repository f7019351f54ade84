"""Ling and Ring: experts behind attention, lightning attention or delta networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import value_or
from blazr.models.families.hf.deepseek import read_latent_attention
from blazr.models.families.hf.delta import (
    deepseek_words,
    delta_module_names,
    delta_names,
    read_kimi_delta,
)
from blazr.models.families.hf.derive import SILU, Reading, Traits, attends
from blazr.models.families.hf.names import LAYER, attention_names, hf_rules
from blazr.models.families.hf.rope import read_rope
from blazr.models.families.hf.sparse import read_experts, sigmoid_experts, with_shared_expert
from blazr.models.families.hf.state_space import rules_where
from blazr.models.families.rules import (
    FEED,
    MIXER,
    PARTS,
    Reshape,
    Rule,
    RuleBook,
    queries_keys_values,
)
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig, NormConfig
from blazr.nn.layers.lightning import LightningConfig, alibi_slopes
from blazr.nn.layers.mla import DeepseekMlaConfig

_AT = LAYER + "attention."
_MODULE = LAYER + "self_attn."  # as transformers names its modules, and PEFT their adapters
_NAMES = [
    Rule("model.word_embeddings.weight", "embed_tokens.weight"),
    *(rule for rule in attention_names(_AT) if not rule.source.startswith(_AT + "o_proj")),
    Rule(LAYER + "mlp.gate.expert_bias", FEED + "correction_bias"),
    # delta networks
    *delta_names(_AT, Reshape(), Reshape()),
    Rule(_AT + "{p}.weight", MIXER + "{p}.weight", p=("f_proj", "g_proj", "b_proj")),
    Rule(_AT + "{p}.weight", MIXER + "out_proj.weight", p=("o_proj", "dense")),
    # lightning attention, and grouped-query attention
    Rule(_AT + "query_key_value.{p}", queries_keys_values(MIXER, "_proj.{p}"), p=PARTS),
    Rule(_AT + "query_layernorm.weight", MIXER + "q_norm.weight"),
    Rule(_AT + "key_layernorm.weight", MIXER + "k_norm.weight"),
    Rule(_AT + "g_norm.weight", MIXER + "norm.weight"),
]
_GATE, _MODULE_GATE = (
    Rule(at + "g_proj.weight", MIXER + "gate_proj.weight") for at in (_AT, _MODULE)
)
_ATTENDS = [
    *(Rule(f"{_AT}{n}.{{p}}", MIXER + "o_proj.{p}", p=PARTS) for n in ("o_proj", "dense")),
    _GATE,
]
_DELTA_MODULE = [
    *delta_module_names(_MODULE),
    Rule(_MODULE + "{p}_proj.weight", MIXER + "{p}_proj.weight", p=("b", "g")),
    Rule(_MODULE + "o_norm.weight", MIXER + "norm.weight"),
    Rule(_MODULE + "o_proj.weight", MIXER + "out_proj.weight"),
]
# Tensors that layers with lightning attention alone have, with latent attention, or with deltas.
_LIGHTNING = r"model\.layers\.(\d+)\.attention\.g_norm\.weight"
_LATENT = r"model\.layers\.(\d+)\.(?:attention|self_attn)\.kv_a_layernorm\.weight"
_DELTA = r"model\.layers\.(\d+)\.(?:attention|self_attn\.forget_gate)\.A_log"


def _ling_rules(checkpoint: Checkpoint) -> RuleBook:
    """What each kind of mixer puts out goes through a matrix of one name."""
    return hf_rules(
        [
            *_NAMES,
            *rules_where(checkpoint, _LATENT, [*_ATTENDS, _MODULE_GATE]),
            *rules_where(checkpoint, _LIGHTNING, [_GATE]),
            *rules_where(checkpoint, _DELTA, _DELTA_MODULE),
        ]
    )


def _ring_rules(checkpoint: Checkpoint) -> RuleBook:
    """The same where layers that attend may have no other tensor of a name of their own."""
    out = Rule(_AT + "dense.weight", MIXER + "out_proj.weight")
    recurrent = rules_where(checkpoint, _LIGHTNING, [out])
    return hf_rules([*_NAMES, *_ATTENDS, *recurrent])


def read_ling_latent(reading: Reading, *, output_gate: bool) -> DeepseekMlaConfig:
    """Latent attention; the share of rotated channels in the config is about other layers.

    Args:
        reading: The config.
        output_gate: Whether a sigmoid weighs the output of each head.
    """
    latent = read_latent_attention(reading)
    assert latent.rope is not None
    rope = replace(latent.rope, dim=latent.rope_dim)
    return replace(latent, rope=rope, output_gate=output_gate)


def _is_lightning(reading: Reading) -> bool:
    """Whether it is Ling 2.5: both have one type."""
    return "model.layers.0.attention.g_norm.weight" in reading.tensors


def _lightning(reading: Reading, norm: NormConfig, index: int) -> LightningConfig:
    """Ring's, with norms and rotation; slopes are as in the models' own code."""
    heads, dim = reading.size("linear_num_heads"), reading.size("linear_head_dim")
    share = 1 - (index - 1) / max(1, reading.num_layers - 1) + 1e-5
    return LightningConfig(
        hidden_size=reading.hidden_size,
        head_dim=dim,
        rates=tuple(slope * share for slope in alibi_slopes(heads)),
        norm_eps=norm.eps,
        norm_groups=reading.size("group_norm_size", 1),
        activation="silu" if reading.flag("linear_silu") else None,
        qk_norm=reading.flag("use_qk_norm"),
        rope=read_rope(reading.reader, dim),
        scale=dim**-0.5,
    )


def _ring_mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig | None:
    every, count = reading.size("layer_group_size", 1), reading.num_layers
    if (index + 1) % every and index < count // every * every:
        return _lightning(reading, norm, index)
    if reading.reader.integer("kv_lora_rank", minimum=1) is None:
        return None
    return read_ling_latent(reading, output_gate=False)


def _ling_feed(reading: Reading, index: int) -> FeedForwardConfig | None:
    """Experts that a sigmoid scores, or in the first Ling a softmax."""
    if reading.reader.integer("num_experts", minimum=1) is None:
        return None
    if value_or(reading.reader.text("score_function"), "softmax") == "sigmoid":
        return sigmoid_experts(reading, index)
    first = reading.size("first_k_dense_replace", 0, minimum=0)
    experts = read_experts(reading)
    shared = reading.size("n_shared_experts", 0, minimum=0)
    experts = replace(experts, norm_topk_prob=reading.flag("norm_topk_prob"))
    return (
        None if index < first else with_shared_expert(experts, shared * experts.intermediate_size)
    )


def _ling3_mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig | None:
    if _is_lightning(reading):
        return _ring_mixer(reading, norm, index)
    every = reading.size("layer_group_size")
    if attends(reading, index, by_turns=(index + 1) % every == 0):
        return read_ling_latent(reading, output_gate=True)
    least = value_or(reading.reader.number("kda_lower_bound"), 0.0)
    has_limit = reading.flag("kda_safe_gate")
    if has_limit and least >= 0:
        raise ConfigError(
            f"{reading.reader.source}: 'kda_lower_bound' is out of range.",
            found=f"{least:g}",
            expected="a number below 0, as it is the least logarithm of a decay",
        )
    delta = read_kimi_delta(reading, norm)
    return replace(delta, has_low_rank=False, least=least if has_limit else 0.0)


_DELTA_KEYS: Mapping[str, tuple[str, ...]] = {
    "linear_head_dim": ("linear_head_dim", "head_dim"),
    "linear_num_heads": ("linear_num_heads", "num_attention_heads"),
    "linear_conv_kernel_dim": ("linear_conv_kernel_dim", "short_conv_kernel_size"),
}
_KDA_KEYS = ("kda_safe_gate", "kda_lower_bound")
_LATENT_KEYS = (
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("rope_interleave", "attention_bias"),
)
# What config.json holds of older and of unreleased models, and nobody looks at.
_IDLE = (
    *("use_qk_norm", "linear_silu"),
    *("group_norm_size", "mtp_use_kda", "use_mla_nope", "use_nGPT", "scale_router_input"),
    *("router_dtype", "moe_shared_expert_intermediate_size", "use_qkv_bias", "use_bias"),
    *("mtp_loss_scaling_factor", "qk_head_dim", "use_rmsnorm"),
)
BAILING_HYBRID = Traits(
    rules=hf_rules(_NAMES),
    rules_of=_ling_rules,
    names=_DELTA_KEYS,
    defaults={
        "hidden_size": 2560,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "moe_intermediate_size": 768,
        "num_experts": 512,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 2,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rope_theta": 6_000_000.0,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "layer_group_size": 6,
        "kda_safe_gate": True,
        "kda_lower_bound": -5.0,
    },
    mixer=_ling3_mixer,
    feed_forward=sigmoid_experts,
    prepare=deepseek_words,
    expects={
        "hidden_act": SILU,
        "no_kda_lora": (True,),
        "linear_attention": ("kda",),
        "gated_attention_proj_granularity_type": ("head_wise",),
        "score_function": ("sigmoid",),
        "moe_router_enable_expert_bias": (True,),
        "topk_method": ("noaux_tc",),
    },
    # some are not looked at where no layer is of the kind that they are about
    ignored_keys=(*_IDLE, *_DELTA_KEYS, "short_conv_kernel_size", *_LATENT_KEYS, *_KDA_KEYS),
    unused=lambda _: ("model.mtp.",),
).family("bailing_hybrid")
_SARVAM = {"use_qkv_bias": "attention_bias"}
_LING = Traits(
    rules=hf_rules([*_NAMES, *_ATTENDS]),
    names=_DELTA_KEYS,
    defaults={"norm_topk_prob": True, "routed_scaling_factor": 2.5},
    attention={"qkv_bias": "use_qkv_bias", "qk_norm": "use_qk_norm"},
    feed_forward=_ling_feed,
    prepare=deepseek_words,
    expects={
        "hidden_act": SILU,
        "use_bias": (False,),
        "norm_head": (False,),
        "score_function": ("softmax", "sigmoid"),
        "topk_method": ("noaux_tc",),
        "linear_rope": (True,),
    },
    ignored_keys=(
        *("moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size", "router_dtype"),
        *("use_rmsnorm", "norm_softmax", "use_sliding_window", "n_group", "topk_group"),
        *("norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace"),
    ),
    unused=lambda _: ("model.mtp.",),
)
BAILING_MOE = _LING.family("bailing_moe")
BAILING_MOE_V2 = _LING.family("bailing_moe_v2")
BAILING_MOE_LINEAR = replace(
    _LING,
    rules_of=_ring_rules,
    mixer=_ring_mixer,
    expects={**_LING.expects, "use_qkv_bias": (False,)},
    ignored_keys=(*_LING.ignored_keys, *_DELTA_KEYS, *_LATENT_KEYS, "linear_silu"),
).family("bailing_moe_linear")
SARVAM_MOE = replace(
    _LING,
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 64,
        "num_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1024,
        "rope_theta": 8_000_000.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
    },
    attention={"qkv_bias": "attention_bias", "qk_norm": "use_qk_norm"},
    feed_forward=sigmoid_experts,
    prepare=lambda own: deepseek_words({_SARVAM.get(k, k): own[k] for k in own}),
    expects={"hidden_act": SILU, "score_function": ("sigmoid",)},
).family("sarvam_moe")
