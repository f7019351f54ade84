"""LFM2: short convolutions between a few layers of attention, with an MLP or experts."""

from __future__ import annotations

from dataclasses import replace

from blazr.models.families.hf.derive import Reading, Traits, attends, read_mlp
from blazr.models.families.hf.names import LAYER, hf_rules
from blazr.models.families.hf.sparse import read_experts
from blazr.models.families.rules import FEED, MIXER, OURS, PARTS, Rule, Squeeze, Stack, renamed
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig, NormConfig
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
]


def _mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig | None:
    del norm
    listed = reading.reader.integers("full_attn_idxs")
    by_turns = listed is None or index in listed.value
    if attends(reading, index, by_turns=by_turns, other=CONV):
        return None
    return ShortConvConfig(
        hidden_size=reading.hidden_size,
        conv_kernel=reading.size("conv_L_cache", 3, minimum=2),
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
