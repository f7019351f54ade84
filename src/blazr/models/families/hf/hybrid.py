"""Attention and state spaces in one model: Bamba, Granite 4, Falcon-H1 and Jamba."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from blazr.core.errors import ConfigError
from blazr.models.families.hf.dense import GRANITE_TRAITS, LLAMA_BIASES
from blazr.models.families.hf.derive import (
    SILU,
    Reading,
    Traits,
    attends,
    read_attention,
    read_mlp,
)
from blazr.models.families.hf.names import LAYER, MLP_NAMES, hf_rules, joined_experts, shared_mlp
from blazr.models.families.hf.rope import read_rope
from blazr.models.families.hf.sparse import LOCAL_EXPERTS, read_experts, with_shared_expert
from blazr.models.families.hf.state_space import (
    TRAINING,
    Mamba2Keys,
    mixer_rules,
    read_mamba1,
    read_mamba2,
    with_types,
    without_auto,
)
from blazr.models.families.rules import FEED, GATE_UP_DOWN, MIXER, PARTS, Rule, RuleBook, Stack
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.parallel import ParallelMixerConfig, ParallelPart
from blazr.nn.layers.rope import RopeConfig


def _rules(more: Sequence[Rule] = ()) -> RuleBook:
    """The names that Jamba began with."""
    names = [
        Rule("model.final_layernorm.weight", "norm.weight"),
        *mixer_rules(LAYER + "mamba."),
        Rule(LAYER + "feed_forward.{p}", FEED + "{p}", p=MLP_NAMES),
    ]
    return hf_rules([*names, *more], {"input": "mixer_norm", "pre_ff": "feed_forward_norm"})


def _bamba_mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig | None:
    listed = reading.reader.integers("attn_layer_indices")
    if listed is not None and index in listed.value:
        return None
    return read_mamba2(reading, Mamba2Keys(), norm)


_MAMBA2_DEFAULTS = {"mamba_conv_bias": True, "mamba_d_state": 256, "mamba_n_heads": 128}
BAMBA = Traits(
    rules=_rules(),
    defaults={
        **_MAMBA2_DEFAULTS,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
    },
    attention=LLAMA_BIASES,
    mlp={"bias": "mlp_bias"},
    mixer=_bamba_mixer,
    prepare=without_auto,
    expects={"hidden_act": SILU},
    # mamba_dt_rank, of Mamba-1, is in the config.json of the first release
    ignored_keys=(
        *(*TRAINING, *Mamba2Keys().names),
        "attention_bias",
        "attn_rotary_emb",
        "mamba_dt_rank",
    ),
).family("bamba")


def _granite_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    del index
    reading.reader.expect("position_embedding_type", "rope", "nope")
    rotates = reading.reader.raw.get("position_embedding_type") == "rope"
    return read_rope(reading.reader, dim) if rotates else None


def _granite_feed(reading: Reading, index: int) -> FeedForwardConfig:
    """Experts beside an MLP that is always there."""
    del index
    shared = reading.size("shared_intermediate_size")
    if not reading.size("num_experts", 0, minimum=0):
        return replace(read_mlp(reading, {}), intermediate_size=shared)
    return with_shared_expert(read_experts(reading, "intermediate_size"), shared)


def _granite_rules(*, sparse: bool) -> RuleBook:
    ours = FEED + ("shared_expert." if sparse else "")
    return hf_rules([*mixer_rules(LAYER + "mamba."), *shared_mlp(ours)])


_ATTENTION = ("attention_bias", "attention_multiplier", "position_embedding_type")
GRANITE_HYBRID = replace(
    GRANITE_TRAITS,
    rules=_granite_rules(sparse=True),
    rules_of=lambda checkpoint: _granite_rules(
        sparse=any(".block_sparse_moe." in name for name in checkpoint.tensors)
    ),
    names=LOCAL_EXPERTS,
    defaults={**_MAMBA2_DEFAULTS, "shared_intermediate_size": 1024},
    mixer=lambda reading, norm, index: (
        None
        if attends(reading, index, by_turns=False)
        else read_mamba2(reading, Mamba2Keys(), norm)
    ),
    feed_forward=_granite_feed,
    rope=_granite_rope,
    prepare=lambda own: with_types(own, "layer_types", "layers_block_type"),
    expects={"hidden_act": SILU, "normalization_function": ("rmsnorm",)},
    ignored_keys=(*TRAINING, *Mamba2Keys().names, *_ATTENTION, "init_method"),
).family("granitemoehybrid")


def _numbers(reading: Reading, key: str, count: int) -> tuple[float, ...]:
    found = reading.reader.numbers(key)
    if found is None:
        return (1.0,) * count
    if len(found.value) != count:
        raise ConfigError(
            f"{found.source} has a wrong value.",
            found=f"{len(found.value)} numbers",
            expected=f"{count}",
        )
    return tuple(found.value)


def _falcon_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    """Both kinds of mixer see the same input [arXiv:2507.22448]."""
    gate, down = _numbers(reading, "mlp_multipliers", 2)
    attention = read_attention(reading, _FALCON, norm, index)
    scale = attention.scale * reading.number("key_multiplier", 1.0)
    z, x, b, c, dt = _numbers(reading, "ssm_multipliers", 5)
    order: Literal["norm_first", "gate_first"]
    order = "norm_first" if reading.flag("mamba_norm_before_gate") else "gate_first"
    mamba = replace(
        read_mamba2(reading, Mamba2Keys(), norm),
        norm=order if reading.flag("mamba_rms_norm") else "none",
        out_bias=reading.flag("projectors_bias"),
        multipliers=(z, x, b, c, dt),
    )
    parts = (
        ParallelPart(
            name="mamba",
            mixer=mamba,
            input_multiplier=reading.number("ssm_in_multiplier", 1.0),
            output_multiplier=reading.number("ssm_out_multiplier", 1.0),
        ),
        ParallelPart(
            name="attention",
            mixer=replace(attention, attention_multiplier=scale),
            input_multiplier=reading.number("attention_in_multiplier", 1.0),
            output_multiplier=reading.number("attention_out_multiplier", 1.0),
        ),
    )
    mlp = read_mlp(reading, {"bias": "mlp_bias"})
    return LayerConfig(
        mixer=ParallelMixerConfig(parts),
        mixer_norm=norm,
        feed_forward=replace(mlp, gate_multiplier=gate, down_multiplier=down),
        feed_forward_norm=norm,
    )


def _falcon_config(own: Mapping[str, object]) -> dict[str, object]:
    """The mixer may be narrower than ``mamba_expand`` has it."""
    changed = without_auto(own)
    inner = changed.get("mamba_d_ssm")
    heads = changed.get("mamba_n_heads")
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        changed.setdefault("mamba_d_head", inner // heads)
    return changed


_FALCON = Traits(
    rules=_rules(
        [
            *mixer_rules(LAYER + "mamba.", MIXER + "parts.mamba."),
            Rule(
                LAYER + "self_attn.{p}",
                MIXER + "parts.attention.{p}",
                p=tuple(f"{name}_proj.{part}" for name in "qkvo" for part in PARTS),
            ),
        ]
    ),
    defaults={
        **_MAMBA2_DEFAULTS,
        "mamba_norm_before_gate": True,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
    },
    attention=LLAMA_BIASES,
    layer=_falcon_layer,
    model_numbers=lambda reading: {
        "embedding_multiplier": reading.number("embedding_multiplier", 1.0),
        "logits_scaling": 1 / reading.number("lm_head_multiplier", 1.0),
    },
    prepare=_falcon_config,
    expects={"hidden_act": SILU},
    ignored_keys=(*TRAINING, "mamba_d_ssm", "mamba_use_mlp", "mlp_expansion_factor"),
)
FALCON_H1 = _FALCON.family("falcon_h1")


def _every(reading: Reading, name: str, period: int, offset: int) -> Callable[[int], bool]:
    """Whether a layer is one of every so many."""
    step = reading.size(f"{name}_layer_period", period)
    first = reading.size(f"{name}_layer_offset", offset, minimum=0)
    return lambda index: index % step == first


def _jamba_mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig | None:
    if attends(reading, index, by_turns=_every(reading, "attn", 8, 4)(index)):
        return None
    return replace(read_mamba1(reading, "mamba_"), inner_norms="weighted", norm_eps=norm.eps)


def _jamba_feed(reading: Reading, index: int) -> FeedForwardConfig | None:
    kind = reading.mlp_type(index)
    by_turns = _every(reading, "expert", 2, 1)
    has_experts = by_turns(index) if kind is None else kind == "sparse"
    experts = replace(read_experts(reading, "intermediate_size"), norm_topk_prob=False)
    return experts if has_experts and experts.num_experts > 1 else None


JAMBA = Traits(
    rules=_rules(
        [
            Rule(LAYER + "feed_forward.router.weight", FEED + "router.weight"),
            Rule(
                LAYER + "feed_forward.experts.{e}.{p}_proj.weight",
                FEED + "experts.{p}_proj",
                Stack("e"),
                p=GATE_UP_DOWN,
            ),
            *joined_experts(at=LAYER + "feed_forward."),
        ]
    ),
    defaults={
        "num_key_value_heads": 8,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "mamba_conv_bias": True,
    },
    mixer=_jamba_mixer,
    feed_forward=_jamba_feed,
    rope=lambda *_: None,  # positions are left to the recurrence
    prepare=without_auto,
    expects={"hidden_act": SILU, "mamba_inner_layernorms": (True,)},
    ignored_keys=(*TRAINING, "sliding_window", "n_ctx", "calc_logits_for_entire_prompt"),
).family("jamba")
