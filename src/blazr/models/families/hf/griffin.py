"""RecurrentGemma: the recurrent block of Griffin between layers of local attention."""

from __future__ import annotations

from dataclasses import replace

import torch

from blazr.core.errors import ConfigError
from blazr.models.families.base import value_or
from blazr.models.families.hf.derive import (
    Reading,
    Traits,
    every_slides,
    read_attention,
    read_mlp,
)
from blazr.models.families.hf.names import LAYER, MLP_NAMES, hf_rules
from blazr.models.families.rules import (
    FEED,
    MIXER,
    OURS,
    PARTS,
    Reshape,
    Rule,
    Squeeze,
    Transpose,
    renamed,
)
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.rg_lru import RgLruConfig

_RECURRENT, _ATTENTION = "recurrent", "attention"
_BLOCK = LAYER + "temporal_block."
_LRU = _BLOCK + "rg_lru."
_RULES = [
    Rule("model.final_norm.weight", "norm.weight"),
    Rule(LAYER + "temporal_pre_norm.weight", OURS + "mixer_norm.weight"),
    Rule(LAYER + "channel_pre_norm.weight", OURS + "feed_forward_norm.weight"),
    Rule(LAYER + "mlp_block.{p}", FEED + "{p}", p=MLP_NAMES),
    *(Rule(f"{_BLOCK}{n}_proj.{{p}}", f"{MIXER}{n}_proj.{{p}}", p=PARTS) for n in "qkvo"),
    *renamed(
        _BLOCK, MIXER, {"linear_x": "in_proj", "linear_y": "gate_proj", "linear_out": "out_proj"}
    ),
    Rule(_BLOCK + "conv_1d.weight", MIXER + "conv1d.weight", Squeeze(1)),
    Rule(_BLOCK + "conv_1d.bias", MIXER + "conv1d.bias"),
    Rule(_LRU + "recurrent_param", MIXER + "a_param"),
    *(
        rule
        for theirs, ours in (("input", "input"), ("recurrent", "decay"))
        for rule in (
            Rule(f"{_LRU}{theirs}_gate_weight", f"{MIXER}{ours}_gate", Transpose()),
            Rule(f"{_LRU}{theirs}_gate_bias", f"{MIXER}{ours}_bias", Reshape()),
        )
    ),
]


def _read_block(reading: Reading) -> RgLruConfig:
    heads = reading.size("num_attention_heads")
    width = reading.size("lru_width", reading.hidden_size)
    if width % heads:
        raise ConfigError(
            f"{reading.reader.source}: {width} channels of the RG-LRU are not {heads} equal heads.",
            expected='a "num_attention_heads" that divides "lru_width"',
        )
    return RgLruConfig(
        hidden_size=reading.hidden_size,
        num_heads=heads,
        head_dim=width // heads,
        conv_kernel=reading.size("conv1d_width", 4, minimum=2),
        activation=reading.activation("hidden_activation"),
    )


def _is_recurrent(reading: Reading, index: int) -> bool:
    """By a list that is repeated until all layers have a type."""
    kinds = value_or(reading.reader.texts("block_types"), ())
    if not kinds or {*kinds} - {_RECURRENT, _ATTENTION}:
        raise ConfigError(
            f"{reading.reader.source}: 'block_types' has a wrong value.",
            found=repr(kinds)[:100],
            expected=f"a list of {_RECURRENT!r} and {_ATTENTION!r}",
        )
    return kinds[index % len(kinds)] == _RECURRENT


def _layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    mlp = read_mlp(reading, {"bias": True}, "hidden_activation")
    half = reading.derived("intermediate_size", mlp.intermediate_size / 2)
    return LayerConfig(
        mixer=_read_block(reading)
        if _is_recurrent(reading, index)
        else read_attention(reading, _GRIFFIN, norm, index),
        mixer_norm=norm,
        feed_forward=replace(mlp, intermediate_size=half),
        feed_forward_norm=norm,
    )


def _numbers(reading: Reading) -> dict[str, float | None]:
    factor = torch.tensor(reading.hidden_size**0.5, dtype=torch.bfloat16)  # whatever runs it
    return {
        "embedding_multiplier": float(factor),
        "logit_softcap": reading.number("logits_soft_cap", 30.0),
    }


_GRIFFIN = Traits(
    rules=hf_rules(_RULES, {}),
    defaults={
        "block_types": [_RECURRENT, _RECURRENT, _ATTENTION],
        "hidden_activation": "gelu_pytorch_tanh",
        "partial_rotary_factor": 0.5,
        "sliding_window": 2048,
    },
    attention={"qkv_bias": "attention_bias", "o_bias": True},
    layer=_layer,
    model_numbers=_numbers,
    slides=every_slides,
    unit_offset=True,
    activation="hidden_activation",
    names={"sliding_window": ("attention_window_size", "sliding_window")},
    expects={"embeddings_scale_by_sqrt_dim": (True,)},
    # the last ones are about training, or not looked at where no layer is of their kind
    ignored_keys=(
        *("w_init_variance_scale", "final_w_init_variance_scale", "block_types"),
        *("attention_bias", "attention_window_size", "sliding_window"),
        *("lru_width", "conv1d_width"),
    ),
)
RECURRENT_GEMMA = _GRIFFIN.family("recurrent_gemma")
