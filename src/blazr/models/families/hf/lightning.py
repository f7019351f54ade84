"""Lightning attention between layers of attention: MiniMax-Text-01 and M1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import ConfigReader, value_or
from blazr.models.families.hf.derive import (
    FULL,
    LINEAR,
    Reading,
    Traits,
    attends,
    counted_rope,
    every_slides,
    read_attention,
)
from blazr.models.families.hf.names import LAYER, hf_rules
from blazr.models.families.hf.sparse import LOCAL_EXPERTS, read_experts
from blazr.models.families.hf.state_space import rules_where
from blazr.models.families.rules import MIXER, Cut, Rule, RuleBook, queries_keys_values
from blazr.nn.layers.base import LayerConfig, MixerConfig, NormConfig, NormedResidual
from blazr.nn.layers.lightning import LightningConfig

_AT = LAYER + "self_attn."
_OWN_NAMES = [
    Rule(_AT + "output_gate.weight", MIXER + "gate_proj.weight"),
    Rule(_AT + "{p}.weight", MIXER + "{p}.weight", p=("norm", "out_proj")),
]
# What the library writes beside the weights, and what follows from the config.
_BUFFERS = (".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay")


def _minimax_rules(checkpoint: Checkpoint) -> RuleBook:
    """In layers of lightning attention, rows of queries, keys and values are together by head."""
    heads = value_or(ConfigReader(checkpoint.config).integer("num_attention_heads", minimum=1), 1)
    joined = queries_keys_values(MIXER, "_proj.weight")
    return hf_rules(
        [
            *_OWN_NAMES,
            *rules_where(
                checkpoint,
                r"model\.layers\.(\d+)\.self_attn\.output_gate\.weight",
                [Rule(_AT + "qkv_proj.weight", joined, cut=Cut(groups=heads))],
            ),
        ]
    )


def _minimax_mixer(reading: Reading, norm: NormConfig, index: int) -> MixerConfig:
    """Slopes are a geometric sequence, the less steep the later the layer."""
    if attends(reading, index, by_turns=index % 2 == 0):
        return read_attention(reading, _MINIMAX, norm, index)
    heads = reading.size("num_attention_heads")
    share = 1 - index / (reading.num_layers - 1 + 1e-5) + 1e-5
    return LightningConfig(
        hidden_size=reading.hidden_size,
        head_dim=reading.size("head_dim", reading.hidden_size // heads or 1),
        rates=tuple(2 ** (-8 * (i + 1) / heads) * share for i in range(heads)),
        norm_eps=1e-6,  # whatever the others' is
        activation=reading.activation("hidden_act"),
    )


def _minimax_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    """Both halves add their weighted outputs to their weighted, normed inputs."""
    mixer = _minimax_mixer(reading, norm, index)
    kind = "linear" if isinstance(mixer, LightningConfig) else "full"
    around_mixer, around_feed = (
        NormedResidual(
            reading.number(f"{half}_alpha_factor", 1.0), reading.number(f"{half}_beta_factor", 1.0)
        )
        for half in (f"{kind}_attn", "mlp")
    )
    return LayerConfig(
        mixer=mixer,
        mixer_norm=norm,
        feed_forward=read_experts(reading, "intermediate_size"),
        feed_forward_norm=norm,
        normed_residuals=(around_mixer, around_feed),
    )


_MINIMAX = Traits(
    rules=hf_rules(_OWN_NAMES),
    rules_of=_minimax_rules,
    names=LOCAL_EXPERTS,
    defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-5,
    },
    layer=_minimax_layer,
    # the library's class rotates whole heads, but nobody trained it like that
    rope=counted_rope,
    slides=every_slides,
    ignored_keys=(
        "block_size",  # how many tokens are computed at once
        "rotary_dim",  # where no layer attends
        *(f"{kind}_attn_{end}_factor" for kind in ("full", "linear") for end in ("alpha", "beta")),
    ),
    buffers=_BUFFERS,
)
MINIMAX = _MINIMAX.family("minimax")


def _first_minimax_config(own: Mapping[str, object]) -> dict[str, object]:
    """As MiniMax's own code spelled it before the library had a class."""
    changed = dict(own)
    words = {"full_attention": "full_attn", "linear_attention": "linear_attn", "mlp": "mlp"}
    for old, new in words.items():
        for end in ("alpha", "beta"):
            if (value := changed.pop(f"layernorm_{old}_{end}", None)) is not None:
                changed[f"{new}_{end}_factor"] = value
    listed = changed.pop("attn_type_list", None)
    if isinstance(listed, list):
        kinds = {0: LINEAR, 1: FULL}
        changed["layer_types"] = [kinds.get(each, str(each)) for each in listed]
    return changed


_FIRST_MINIMAX = replace(
    _MINIMAX,
    prepare=_first_minimax_config,
    expects={"postnorm": (True,), "shared_intermediate_size": (0,)},
    ignored_keys=(*_MINIMAX.ignored_keys, "shared_moe_mode"),
)
MINIMAX_TEXT_01 = _FIRST_MINIMAX.family("minimax_text_01")
MINIMAX_M1 = _FIRST_MINIMAX.family("minimax_m1")
