"""Models named ``backbone.``: state spaces alone (Mamba-2, FalconMamba), and Nemotron-H."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import value_or
from blazr.models.families.hf.derive import (
    BESIDE,
    FULL,
    LINEAR,
    SILU,
    Reading,
    Traits,
    read_attention,
    read_mlp,
)
from blazr.models.families.hf.sparse import ROUTED_EXPERTS, sigmoid_experts
from blazr.models.families.hf.state_space import (
    LEAST_STEP,
    TRAINING,
    Mamba2Keys,
    mixer_rules,
    read_mamba1,
    read_mamba2,
    rules_where,
    with_types,
    without_auto,
)
from blazr.models.families.rules import FEED, MIXER, MTP, OURS, Rule, RuleBook, Stack, renamed
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, NormConfig
from blazr.nn.layers.parallel import ParallelMixerConfig

_LAYER = "backbone.layers.{i}."
_SECOND = MTP + "second."  # half of the layer of the module for multi-token prediction
_BACKBONE = [
    Rule("lm_head.weight", "lm_head.weight"),
    Rule("backbone.{p}.weight", "embed_tokens.weight", p=("embeddings", "embedding")),
    Rule("backbone.norm_f.weight", "norm.weight"),
    Rule(_LAYER + "norm.weight", OURS + "mixer_norm.weight"),
    *mixer_rules(_LAYER + "mixer."),
]
BACKBONE_RULES = RuleBook(_BACKBONE)
_MAMBA2_KEYS = Mamba2Keys(
    heads="num_heads",
    head_dim="head_dim",
    states="state_size",
    groups="n_groups",
    kernel="conv_kernel",
    expand="expand",
    bias="use_bias",
    conv_bias="use_conv_bias",
)


_NEMOTRON_KEYS = replace(
    _MAMBA2_KEYS, heads="mamba_num_heads", head_dim="mamba_head_dim", states="ssm_state_size"
)
_NEMOTRON_TYPES = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
_LIBRARY_HAS_IT = 5  # the first version of transformers with a class of its own
_NEMOTRON_OLD = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_dt_limit": "time_step_limit",
    "attention_head_dim": "head_dim",
}


def _nemotron_config(own: Mapping[str, object]) -> dict[str, object]:
    """Layer types were one letter each, and some keys had other names."""
    changed = with_types(own, "layers_block_type", "layer_types")
    pattern = changed.pop("hybrid_override_pattern", None)
    if changed["layers_block_type"] is None and isinstance(pattern, str):
        changed["layers_block_type"] = [_NEMOTRON_TYPES.get(letter, letter) for letter in pattern]
    types = changed["layers_block_type"]
    if isinstance(types, list):
        changed["num_hidden_layers"] = len(types)
    for old, new in _NEMOTRON_OLD.items():
        if old in changed:
            changed.setdefault(new, changed.pop(old))
    # transformers' own class cuts steps off at time_step_min; the code that releases come with, and
    # the kernels they were trained with, do not
    version = str(own.get("transformers_version", "")).partition(".")[0]
    is_plain = version.isdecimal() and version.isascii()
    if is_plain and int(version[:9]) >= _LIBRARY_HAS_IT:
        changed["time_step_limit"] = [changed.get("time_step_min", LEAST_STEP), "Infinity"]
    return changed


def _nemotron_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    """One half of a layer each: a mixer, or a feed-forward."""
    kind = reading.layer_type(index, tuple(_NEMOTRON_TYPES.values()), "layers_block_type")
    if kind == LINEAR:
        return LayerConfig(mixer=read_mamba2(reading, _NEMOTRON_KEYS, norm), mixer_norm=norm)
    if kind == FULL:
        return LayerConfig(mixer=read_attention(reading, _NEMOTRON, norm, index), mixer_norm=norm)
    return LayerConfig(
        mixer=ParallelMixerConfig(),
        mixer_norm=None,
        feed_forward=_nemotron_feed(reading, kind),
        feed_forward_norm=norm,
    )


def _nemotron_feed(reading: Reading, kind: str | None) -> FeedForwardConfig:
    if kind != "moe":
        return read_mlp(reading, {"gated": False, "bias": "mlp_bias"}, "mlp_hidden_act")
    experts = sigmoid_experts(reading, reading.num_layers)
    assert experts is not None
    return replace(
        experts,
        activation=reading.activation("mlp_hidden_act"),
        gated=False,
        dense_bias=reading.flag("mlp_bias"),
        shared_expert=True,
        shared_intermediate_size=reading.size("moe_shared_expert_intermediate_size"),
        latent_size=value_or(reading.reader.integer("moe_latent_size", minimum=1), None),
    )


def _nemotron_mtp(reading: Reading, norm: NormConfig) -> LayerConfig:
    """Both halves of one layer.

    Raises:
        ConfigError: They are others than attention and experts.
    """
    raw = reading.reader.raw
    pattern = raw.get("mtp_hybrid_override_pattern")
    kinds = raw.get("mtp_layers_block_type")
    if kinds is None and isinstance(pattern, str):
        kinds = [_NEMOTRON_TYPES.get(letter, letter) for letter in pattern]
    if kinds not in (None, [FULL, "moe"], ["attention", "moe"]):
        raise ConfigError(
            "this module for multi-token prediction is not known.",
            found=f"layers {kinds!r:.100}",
            expected="attention and experts, as Nemotron 3 has them",
        )
    return LayerConfig(
        mixer=read_attention(reading, _NEMOTRON, norm, 0),
        mixer_norm=norm,
        feed_forward=_nemotron_feed(reading, "moe"),
        feed_forward_norm=norm,
    )


def _nemotron_rules(checkpoint: Checkpoint) -> RuleBook:
    """The norm of a layer is before its mixer or before its feed-forward."""
    at = _LAYER + "mixer."
    attention = tuple(f"{name}_proj.weight" for name in "qkvo")
    projections = tuple(
        f"{name}_proj.{part}" for name in ("up", "down") for part in ("weight", "bias")
    )
    experts = FEED + "experts.{p}_proj"
    shared = "{p}_proj.weight"
    latent = {"fc1_latent_proj": "latent_down_proj", "fc2_latent_proj": "latent_up_proj"}
    feeds = [
        Rule(at + "{p}", FEED + "{p}", p=projections),
        Rule(at + "gate.weight", FEED + "router.weight"),
        Rule(at + "gate.e_score_correction_bias", FEED + "correction_bias"),
        Rule(at + "experts.{e}." + shared, experts, Stack("e"), p=("up", "down")),
        Rule(at + "experts.{p}_proj", experts, p=("up", "down")),  # as the library's modules are
        Rule(at + "shared_experts.{p}", FEED + "shared_expert.{p}", p=projections),
        *renamed(at, FEED, latent),
    ]
    return RuleBook(
        [
            *_BACKBONE,
            Rule(at + "{p}", MIXER + "{p}", p=attention),
            *feeds,
            *rules_where(
                checkpoint,
                r"backbone\.layers\.(\d+)\.mixer\.(up_proj|gate)\.",
                [Rule(_LAYER + "norm.weight", OURS + "feed_forward_norm.weight")],
            ),
            *_mtp_feeds(feeds),
        ],
        {MTP + "layers.1.": _SECOND},
    )


def _mtp_feeds(feeds: Iterable[Rule]) -> Iterator[Rule]:
    """Names of the second half of the module's layer, which are numbered as a layer's."""
    layer = MTP + "layers.0."
    yield Rule(_SECOND + "norm.weight", layer + "feed_forward_norm.weight")
    yield Rule(_SECOND + "final_layernorm.weight", MTP + "norm.weight")
    for rule in feeds:
        (target,) = rule.targets
        source = rule.source.replace(_LAYER, _SECOND)
        yield replace(rule, source=source, target=target.replace(OURS, layer))


MAMBA2 = Traits(
    rules=BACKBONE_RULES,
    defaults={"layer_norm_epsilon": 1e-5, "n_groups": 8, "use_conv_bias": True},
    layer=lambda reading, norm, _: LayerConfig(
        mixer=read_mamba2(reading, _MAMBA2_KEYS, norm), mixer_norm=norm
    ),
    eps="layer_norm_epsilon",
    prepare=without_auto,
    expects={"hidden_act": SILU, "rms_norm": (True,)},
    ignored_keys=(*TRAINING, "norm_before_gate"),
).family("mamba2")
FALCON_MAMBA = Traits(
    rules=BACKBONE_RULES,
    defaults={"layer_norm_epsilon": 1e-5, "use_conv_bias": True},
    layer=lambda reading, norm, _: LayerConfig(
        mixer=replace(
            read_mamba1(reading),
            inner_norms="plain",
            norm_eps=reading.number("mixer_rms_eps", 1e-6),
        ),
        mixer_norm=norm,
    ),
    eps="layer_norm_epsilon",
    prepare=without_auto,
    expects={"hidden_act": SILU},
    ignored_keys=TRAINING,
).family("falcon_mamba")
_NEMOTRON = Traits(
    rules=BACKBONE_RULES,
    rules_of=_nemotron_rules,
    names=ROUTED_EXPERTS,
    defaults={
        "layer_norm_epsilon": 1e-5,
        "n_groups": 8,
        "use_conv_bias": True,
        "head_dim": 128,
        "mlp_hidden_act": "relu2",
        "norm_topk_prob": True,
        "topk_group": 1,
    },
    layer=_nemotron_layer,
    rope=lambda *_: None,  # positions are left to the recurrence
    eps="layer_norm_epsilon",
    prepare=_nemotron_config,
    expects={"mamba_hidden_act": SILU},
    ignored_keys=(
        *TRAINING,
        "attention_bias",  # the library does not look at these seven, either
        "mamba_proj_bias",
        "rms_norm_eps",
        "norm_eps",
        "sliding_window",
        "layer_types",
        "num_query_groups",
        *_NEMOTRON_KEYS.names,
        "mlp_hidden_act",
        "mlp_bias",
        "moe_shared_expert_overlap",
        "mtp_layers_block_type",
        "mtp_hybrid_override_pattern",
        "norm_topk_prob",
        "n_group",
        "topk_group",
        "routed_scaling_factor",
        "moe_latent_size",
        "n_routed_experts",
        "n_shared_experts",
        "moe_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ),
    unused=lambda _: (MTP,),
    mtp=BESIDE,
    mtp_layer=_nemotron_mtp,
)
NEMOTRON_H = _NEMOTRON.family("nemotron_h")
