"""Llama 4: chunks, layers that do not rotate, and experts that are given weighted tokens."""

from __future__ import annotations

from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.families.base import value_or
from blazr.models.families.hf.dense import LLAMA_BIASES, has_rope, with_bare_norms
from blazr.models.families.hf.derive import FULL, Reading, Traits, interleaved_rope, read_attention
from blazr.models.families.hf.names import LAYER, MLP_NAMES, hf_rules
from blazr.models.families.hf.sparse import LOCAL_EXPERTS, read_experts, with_shared_expert
from blazr.models.families.rules import (
    FEED,
    GATE_UP_DOWN,
    Cut,
    Rule,
    Stack,
    Transpose,
    gate_and_up,
)
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, NormConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.rope import RopeConfig
from blazr.nn.operands.attention import AttentionTemperature
from blazr.nn.operands.step import GRID

CHUNKED = "chunked_attention"
_FEED = LAYER + "feed_forward."
_EXPERTS = FEED + "experts."


def _rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    rope = interleaved_rope(reading, dim, index)
    return rope if has_rope(reading, index) else None


def _chunk_size(reading: Reading, index: int) -> int | None:
    """Where types are listed they decide alone, as the library masks by them.

    Raises:
        ConfigError: A layer has chunks, of which the size is missing, or no multiple of pages.
    """
    found = reading.reader.integer("attention_chunk_size", minimum=1)
    default = CHUNKED if found is not None and has_rope(reading, index) else FULL
    if (reading.layer_type(index, (FULL, CHUNKED)) or default) == FULL:
        return None
    if found is None or found.value % GRID:
        raise ConfigError(
            f"{reading.reader.source}: 'attention_chunk_size' is not supported.",
            found="null" if found is None else f"{found.value}",
            expected=f"a multiple of {GRID}",
            hint="transformers may run the model: --model-impl transformers",
        )
    return found.value


def _attention(reading: Reading, norm: NormConfig, index: int) -> AttentionConfig:
    """Layers that rotate have norms and chunks; scores of the others grow."""
    config = read_attention(reading, _TRAITS, norm, index)
    config = replace(config, chunk_size=_chunk_size(reading, index))
    grows, is_normed = reading.flag("attn_temperature_tuning"), reading.flag("use_qk_norm")
    scale, length = reading.number("attn_scale", 0.1), reading.size("floor_scale", 8192)
    if config.rope is not None:
        return with_bare_norms(config) if is_normed else config
    temperature = AttentionTemperature(scale, length) if grows else None
    return replace(config, temperature=temperature)


def _feed_forward(reading: Reading, index: int) -> FeedForwardConfig:
    """Experts in every n-th layer or in those that are listed, beside one of their size."""
    listed = reading.reader.integers("moe_layers")
    step = reading.size("interleave_moe_layer_step", 1)
    sparse = value_or(listed, range(step - 1, reading.num_layers, step))
    size = reading.size("intermediate_size")
    activation = reading.activation("hidden_act")
    wide = reading.size("intermediate_size_mlp", 16_384)
    if index not in sparse:
        return MlpConfig(
            hidden_size=reading.hidden_size, intermediate_size=wide, activation=activation
        )
    experts = replace(
        read_experts(reading, "intermediate_size"),
        scoring="sigmoid of chosen",
        norm_topk_prob=False,
        weighs_input=True,
    )
    return with_shared_expert(experts, size)


_TRAITS = Traits(
    rules=hf_rules(
        [
            Rule(_FEED + "{p}", FEED + "{p}", p=MLP_NAMES),
            Rule(_FEED + "router.weight", FEED + "router.weight"),
            Rule(_FEED + "shared_expert.{p}", FEED + "shared_expert.{p}", p=MLP_NAMES),
            Rule(
                _FEED + "experts.gate_up_proj",
                gate_and_up(_EXPERTS, "_proj"),
                Transpose(),
                cut=Cut(2),
            ),
            Rule(_FEED + "experts.down_proj", _EXPERTS + "down_proj", Transpose()),
            # one by one for quantizers and adapters: llm-compressor's and Axolotl's
            *(
                Rule(_FEED + name, _EXPERTS + "{p}_proj", Stack("e"), p=GATE_UP_DOWN)
                for name in ("experts.{e}.{p}_proj.weight", "experts.{p}_projs.{e}.weight")
            ),
        ]
    ),
    names=LOCAL_EXPERTS,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "use_qk_norm": True,
        "attn_temperature_tuning": True,
        "attention_chunk_size": 8192,
    },
    attention=LLAMA_BIASES,
    feed_forward=_feed_forward,
    rope=_rope,
    # where no layer has any
    ignored_keys=("attention_chunk_size", "intermediate_size_mlp", "for_llm_compressor"),
)
LLAMA4_TEXT = replace(_TRAITS, mixer=_attention).family("llama4_text")
