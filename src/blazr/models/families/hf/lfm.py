"""LFM2 and LFM3: short convolutions between layers of attention, with an MLP or experts."""

from __future__ import annotations

from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.families.base import ConfigReader
from blazr.models.families.hf.dense import LLAMA_BIASES
from blazr.models.families.hf.derive import (
    FULL,
    SLIDING,
    Reading,
    Traits,
    attends,
    read_attention,
    read_mlp,
)
from blazr.models.families.hf.names import LAYER, hf_rules, joined_experts
from blazr.models.families.hf.rope import read_rope
from blazr.models.families.hf.sparse import read_experts
from blazr.models.families.rules import FEED, MIXER, OURS, PARTS, Rule, Squeeze, Stack, renamed
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.layers.short_conv import ShortConvConfig

CONV = "conv"
_WORDS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


_CONV, _ATTENTION = LAYER + "conv.", LAYER + "self_attn."
_RULES = [
    Rule("model.embedding_norm.weight", "norm.weight"),
    Rule(LAYER + "operator_norm.weight", OURS + "mixer_norm.weight"),
    Rule(LAYER + "ffn_norm.weight", OURS + "feed_forward_norm.weight"),
    Rule(_CONV + "conv.weight", MIXER + "conv1d.weight", Squeeze(1)),
    Rule(_CONV + "conv.bias", MIXER + "conv1d.bias"),
    *(Rule(f"{_CONV}{n}_proj.{{p}}", f"{MIXER}{n}_proj.{{p}}", p=PARTS) for n in ("in", "out")),
    Rule(_ATTENTION + "out_proj.weight", MIXER + "o_proj.weight"),
    Rule(_ATTENTION + "{p}_layernorm.weight", MIXER + "{p}_norm.weight", p=("q", "k")),
    # of the releases, and of the library's own modules
    Rule(_ATTENTION + "{p}_proj.weight", MIXER + "gate_proj.weight", p=("gate", "g")),
    Rule(LAYER + "post_operator_norm.weight", OURS + "mixer_post_norm.weight"),
    Rule(LAYER + "post_ffn_norm.weight", OURS + "feed_forward_post_norm.weight"),
    Rule(LAYER + "feed_forward.gate.weight", FEED + "router.weight"),
    Rule(LAYER + "feed_forward.expert_bias", FEED + "correction_bias"),
    *renamed(LAYER + "feed_forward.", FEED, _WORDS),
    *(
        Rule(
            f"{LAYER}feed_forward.experts.{{e}}.{theirs}.weight",
            f"{FEED}experts.{ours}",
            Stack("e"),
        )
        for theirs, ours in _WORDS.items()
    ),
    *joined_experts(at=LAYER + "feed_forward."),
]


def _mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig | None:
    del norm
    listed = reading.reader.integers("full_attn_idxs")
    by_turns = listed is None or index in listed.value
    if attends(reading, index, by_turns=by_turns, other=CONV):
        return None
    return _read_conv(reading, 3)


def _read_conv(reading: Reading, taps: int) -> ShortConvConfig:
    return ShortConvConfig(
        hidden_size=reading.hidden_size,
        conv_kernel=reading.size("conv_L_cache", taps, minimum=2),
        bias=reading.flag("conv_bias"),
    )


def _feed_forward(reading: Reading, index: int) -> FeedForwardConfig:
    """Its size is two thirds of what is said, and a multiple of something."""
    del index
    mlp = read_mlp(reading, {})
    step = reading.size("block_multiple_of", 256)
    share = reading.number("block_ffn_dim_multiplier", 1.0)
    if not reading.flag("block_auto_adjust_ff_dim"):
        return mlp
    two_thirds = int(2 * mlp.intermediate_size / 3)
    wanted = reading.derived("block_ffn_dim_multiplier", share * two_thirds)
    return replace(mlp, intermediate_size=-(-wanted // step) * step)


def _experts(reading: Reading, index: int) -> FeedForwardConfig | None:
    dense = reading.size("num_dense_layers", 2, minimum=0)
    experts = replace(
        read_experts(reading),
        scoring="sigmoid",
        correction_bias=reading.flag("use_expert_bias"),
        norm_topk_prob=reading.flag("norm_topk_prob"),
        routed_scaling_factor=reading.number("routed_scaling_factor", 1.0),
    )
    return experts if index >= dense else None


_UNUSED_KEYS = (
    "block_ff_dim",
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "tie_embedding",
    "use_pos_enc",
    "conv_L_cache",
    "conv_bias",
)


_DEFAULTS = {"num_key_value_heads": 8, "rope_theta": 1_000_000.0, "norm_eps": 1e-5}
_LFM2 = Traits(
    rules=hf_rules(_RULES, {}),
    defaults={**_DEFAULTS, "block_auto_adjust_ff_dim": True},
    attention={"qk_norm": True},
    mixer=_mixer,
    feed_forward=_feed_forward,
    eps="norm_eps",
    # the MLP's size had another name
    prepare=lambda own: (
        {**own, "intermediate_size": own["block_ff_dim"]}
        if own.get("block_ff_dim") is not None
        else own
    ),
    expects={"block_use_swiglu": (True,)},
    ignored_keys=_UNUSED_KEYS,
)
LFM2 = _LFM2.family("lfm2")
LFM2_MOE = replace(
    _LFM2,
    defaults={
        **_DEFAULTS,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "use_expert_bias": True,
        "norm_topk_prob": True,
    },
    feed_forward=_experts,
).family("lfm2_moe")

# What the library takes where a config says nothing of rotation.
_LFM3_ROPE: dict[str, dict[str, object]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}
_LFM3_TURNS = (SLIDING, CONV, FULL, CONV)


def _lfm3_type(reading: Reading, index: int) -> str:
    usual = _LFM3_TURNS[index % 4] if index else CONV
    return reading.layer_type(index, (FULL, SLIDING, CONV)) or usual


def _lfm3_rope(reading: Reading, dim: int, index: int) -> RopeConfig:
    kind = _lfm3_type(reading, index)
    section = reading.reader.section("rope_parameters")
    if section is None:
        parameters = ConfigReader(_LFM3_ROPE[kind], f"{reading.reader.source}: rope_parameters")
    else:
        found = section.section(kind)
        if found is None:
            raise ConfigError(
                f"{section.source} says nothing about layers of type {kind!r}.",
                expected=f"a section {kind!r} with a rope_type and a rope_theta",
            )
        parameters = found
    return read_rope(reading.reader, dim, parameters=parameters)


def _lfm3_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    is_conv = _lfm3_type(reading, index) == CONV
    has_norms_behind = reading.reader.is_true("use_sandwich_norm", default=True)
    behind = norm if has_norms_behind else None
    return LayerConfig(
        mixer=_read_conv(reading, 7) if is_conv else read_attention(reading, _LFM3, norm, index),
        mixer_norm=norm,
        mixer_post_norm=behind,
        feed_forward=read_mlp(reading, {}),
        feed_forward_norm=norm,
        feed_forward_post_norm=behind,
    )


_LFM3 = Traits(
    rules=hf_rules(_RULES, {}),
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 128,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": 256,
        "use_attention_gate": True,
    },
    attention={**LLAMA_BIASES, "qk_norm": True, "head_gate": "use_attention_gate"},
    layer=_lfm3_layer,
    rope=_lfm3_rope,
    slides=lambda reading, index: _lfm3_type(reading, index) == SLIDING,
    eps="norm_eps",
    names={"norm_eps": ("norm_eps", "rms_norm_eps")},
    # not looked at where no layer is of the kind that they are about
    ignored_keys=(
        *("conv_L_cache", "conv_bias"),
        *("attention_bias", "use_attention_gate", "sliding_window"),
    ),
)
LFM3 = _LFM3.family("lfm3")
