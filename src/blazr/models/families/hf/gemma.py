"""Gemma, from the first to the fourth.

From the second on, layers have norms on both sides of their halves, and windows by turns. Layers of
3n and 4 share keys and take a vector of each token; 3n has several residual streams.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.families.base import ConfigReader, value_or
from blazr.models.families.hf.dense import LLAMA_BIASES
from blazr.models.families.hf.derive import (
    FULL,
    SLIDING,
    Flags,
    Reading,
    Traits,
    read_attention,
    slides_by_turns,
    type_by_turns,
)
from blazr.models.families.hf.names import GEMMA_NORMS, LAYER, MLP_NAMES, hf_rules
from blazr.models.families.hf.rope import read_rope, rope_parameters
from blazr.models.families.hf.sparse import read_experts
from blazr.models.families.rules import (
    FEED,
    GATE_UP_DOWN,
    OURS,
    Cut,
    Rule,
    RuleBook,
    Stack,
    gate_and_up,
)
from blazr.nn.layers.altup import AltUpLayerConfig, StreamsConfig
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, NormConfig, TokenInputConfig
from blazr.nn.layers.embedding import PerLayerEmbeddingConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.parallel import FeedForwardPart, ParallelFeedForwardConfig
from blazr.nn.layers.rope import RopeConfig

_ACTIVATION = "hidden_activation"
_ACTIVATIONS = (_ACTIVATION, "hidden_act")  # both are there, and one is looked at


def _numbers(reading: Reading) -> dict[str, float | None]:
    return {
        "embedding_multiplier": reading.hidden_size**0.5,
        "logit_softcap": reading.optional_number("final_logit_softcapping"),
    }


def _gemma3_type(reading: Reading, index: int) -> str:
    every = reading.reader.integer("sliding_window_pattern", minimum=1)
    every = reading.reader.integer("_sliding_window_pattern", minimum=1) or every
    return type_by_turns(reading, index, value_or(every, 6))


def _local_rope(reading: Reading, dim: int, kind: str) -> RopeConfig:
    """Another base where there is a window, and no scaling, unless the config has some."""
    reader = reading.reader
    if kind == FULL:
        return read_rope(reader, dim, parameters=rope_parameters(reader, FULL))
    local = value_or(reader.number("rope_local_base_freq", above=0), 10_000.0)
    by_type = reader.section("rope_parameters")
    own = None if by_type is None else by_type.section(SLIDING)
    if own is None:
        return RopeConfig(dim, local)
    return read_rope(reader, dim, parameters=own.over({"rope_theta": local, **own.raw}))


def _gemma3_attention(reading: Reading) -> dict[str, float | None]:
    return {"attention_multiplier": reading.number("query_pre_attn_scalar", 256) ** -0.5}


GEMMA = Traits(
    defaults={"head_dim": 256, "hidden_act": "gelu_pytorch_tanh"},
    attention=LLAMA_BIASES,
    model_numbers=lambda reading: {"embedding_multiplier": reading.hidden_size**0.5},
    unit_offset=True,
    ignored_keys=_ACTIVATIONS,
).family("gemma")
# Of the second and the third.
_GEMMA_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
}
_GEMMA3 = Traits(
    rules=hf_rules(norms=GEMMA_NORMS),
    defaults={
        **_GEMMA_DEFAULTS,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
    },
    attention={**LLAMA_BIASES, "qk_norm": True},
    attention_numbers=_gemma3_attention,
    model_numbers=_numbers,
    rope=lambda reading, dim, index: _local_rope(reading, dim, _gemma3_type(reading, index)),
    slides=lambda reading, index: _gemma3_type(reading, index) == SLIDING,
    norms="both",
    unit_offset=True,
    activation=_ACTIVATION,
    # the third Gemma does not look at a cap of scores
    ignored_keys=(*_ACTIVATIONS, "attn_logit_softcapping"),
)
GEMMA3 = _GEMMA3.family("gemma3_text")
_GEMMA2 = replace(
    _GEMMA3,
    defaults={
        **_GEMMA_DEFAULTS,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    attention=LLAMA_BIASES,
    attention_numbers=lambda reading: {
        **_gemma3_attention(reading),
        "attn_logit_softcap": reading.optional_number("attn_logit_softcapping"),
    },
    rope=None,
    slides=slides_by_turns,
    ignored_keys=(*_ACTIVATIONS, "sliding_window_size"),
)
GEMMA2 = _GEMMA2.family("gemma2")
VAULTGEMMA = replace(
    _GEMMA2,
    rules=hf_rules(norms={"input": "mixer_norm", "pre_feedforward": "feed_forward_norm"}),
    norms="before",
).family("vaultgemma")


_PARTS = FEED + "parts."
_KEYS_AND_VALUES = re.compile(
    r"(?:.*\.)?layers\.(\d{1,6})\.self_attn\.(?:k_proj|v_proj|k_norm)\.\w+", re.ASCII
)
_OF_TOKENS = [
    Rule("model.embed_tokens_per_layer.weight", "per_layer.embed_tokens.weight"),
    Rule("model.per_layer_model_projection.weight", "per_layer.projection.weight"),
    Rule("model.per_layer_projection_norm.weight", "per_layer.norm.weight"),
    Rule(LAYER + "per_layer_input_gate.weight", OURS + "token_input.gate.weight"),
    Rule(LAYER + "per_layer_projection.weight", OURS + "token_input.projection.weight"),
    Rule(LAYER + "post_per_layer_input_norm.weight", OURS + "token_input.norm.weight"),
]
_NAMES = [*_OF_TOKENS, Rule(LAYER + "layer_scalar", OURS + "output_scale")]
_OF_EXPERTS = [
    Rule(LAYER + "mlp.{p}", _PARTS + "mlp.{p}", p=MLP_NAMES),
    Rule(LAYER + "pre_feedforward_layernorm.weight", FEED + "norms.mlp.weight"),
    Rule(LAYER + "post_feedforward_layernorm_1.weight", FEED + "post_norms.mlp.weight"),
    Rule(LAYER + "pre_feedforward_layernorm_2.weight", _PARTS + "moe.expert_norm.weight"),
    Rule(LAYER + "post_feedforward_layernorm_2.weight", FEED + "post_norms.moe.weight"),
    Rule(LAYER + "router.proj.weight", _PARTS + "moe.router.weight"),
    Rule(LAYER + "router.scale", _PARTS + "moe.router_norm.weight"),
    Rule(LAYER + "router.per_expert_scale", _PARTS + "moe.expert_scale"),
    Rule(
        LAYER + "experts.gate_up_proj",
        gate_and_up(_PARTS + "moe.experts.", "_proj"),
        cut=Cut(1),
    ),
    Rule(LAYER + "experts.down_proj", _PARTS + "moe.experts.down_proj"),
    # by mlx-lm
    Rule(
        LAYER + "experts.{e}.{p}_proj.weight",
        _PARTS + "moe.experts.{p}_proj",
        Stack("e"),
        p=GATE_UP_DOWN,
    ),
]
_DENSE_RULES = hf_rules(_NAMES, GEMMA_NORMS)
_SPARSE_RULES = hf_rules([*_NAMES, *_OF_EXPERTS], GEMMA_NORMS)
_FACTORS = ".altup.correct_output_scale"
_ALTUP, _LAUREL = LAYER + "altup.", LAYER + "laurel."
_GEMMA3N_RULES = hf_rules(
    [
        *_OF_TOKENS,
        Rule("model.altup_projections.{e}.weight", "streams.projections", Stack("e")),
        Rule(
            "model.altup_unembed_projections.{e}.weight", "streams.unembed_projections", Stack("e")
        ),
        Rule(_ALTUP + "prediction_coefs.weight", OURS + "prediction.weight"),
        Rule(_ALTUP + "correction_coefs.weight", OURS + "correction.weight"),
        Rule(_ALTUP + "modality_router.weight", OURS + "stream_router.weight"),
        Rule(_ALTUP + "router_norm.weight", OURS + "router_norm.weight"),
        Rule(_ALTUP + "correct_output_scale", OURS + "correction_scale"),
        Rule(_LAUREL + "linear_left.weight", OURS + "laurel_left.weight"),
        Rule(_LAUREL + "linear_right.weight", OURS + "laurel_right.weight"),
        Rule(_LAUREL + "post_laurel_norm.weight", OURS + "laurel_norm.weight"),
    ],
    GEMMA_NORMS,
)
_ATTENTION: Flags = {**LLAMA_BIASES, "qk_norm": True, "v_norm": True}
_ROTATION: Mapping[str, object] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def _unscaled(reading: Reading) -> dict[str, float | None]:
    """Norms of queries and keys take the place of a scale."""
    del reading
    return {"attention_multiplier": 1.0}


def _owner_of_keys(
    reading: Reading, type_of: Callable[[Reading, int], str], index: int
) -> int | None:
    """The layer whose keys and values a layer attends to; None where these are its own.

    Args:
        reading: The config.
        type_of: The type of a layer.
        index: The layer.

    Raises:
        ConfigError: No layer before has keys for it.
    """
    first = reading.num_layers - _num_shared(reading.reader)
    if index < first:
        return None
    kind = type_of(reading, index)
    owners = (other for other in reversed(range(first)) if type_of(reading, other) == kind)
    owner = next(owners, None)
    if owner is None:
        raise ConfigError(
            f"{reading.reader.source}: layer {index} has no keys to share.",
            found=f"the last {_num_shared(reading.reader)} of {reading.num_layers} layers share",
            expected=f"a layer of type {kind} before them",
        )
    return owner


def _num_shared(reader: ConfigReader, usual: int = 0) -> int:
    return value_or(reader.integer("num_kv_shared_layers"), usual)


def _keys_of_sharing_layers(checkpoint: Checkpoint, usual: int = 0) -> tuple[str, ...]:
    """Tensors of keys and values in layers that attend to those of others.

    Args:
        checkpoint: All tensors.
        usual: How many layers do where the config is silent.
    """
    reader = ConfigReader(checkpoint.config)
    count = value_or(reader.integer("num_hidden_layers"), 0)
    found = (_KEYS_AND_VALUES.fullmatch(name) for name in checkpoint.tensors)
    first = count - _num_shared(reader, usual)
    return tuple(each[0] for each in found if each and first <= int(each[1]) < count)


def _token_input(reading: Reading, norm: NormConfig) -> TokenInputConfig | None:
    """What lets the vectors of tokens into a layer, if there are any."""
    size = _vector_size(reading)
    activation = reading.activation(_ACTIVATION)
    return TokenInputConfig(size=size, activation=activation, norm=norm) if size else None


def _per_layer_embedding(reading: Reading) -> PerLayerEmbeddingConfig | None:
    """What makes these vectors, if there are any."""
    size = _vector_size(reading)
    rows = reading.size("vocab_size_per_layer_input", 262_144)
    if not size:
        return None
    return PerLayerEmbeddingConfig(
        vocab_size=rows,
        hidden_size=reading.hidden_size,
        num_layers=reading.num_layers,
        norm=NormConfig(size, reading.number("rms_norm_eps", 1e-6)),
    )


def _vector_size(reading: Reading) -> int:
    return reading.size("hidden_size_per_layer_input", 0, minimum=0)


def _gemma4_type(reading: Reading, index: int) -> str:
    """The last layer attends to all tokens, whatever is listed."""
    kind = type_by_turns(reading, index, 6)
    return FULL if index == reading.num_layers - 1 else kind


def _gemma4_heads(reading: Reading, kind: str, index: int) -> tuple[int, int]:
    """How many heads of keys and values a layer has, and their size."""
    count, dim = reading.size("num_kv_heads"), reading.size("head_dim")
    reader = reading.reader
    by_layer = reader.section("per_layer_config")
    reader.mark("global_head_dim", "num_global_key_value_heads", "attention_k_eq_v")
    if by_layer is not None:  # as transformers writes it
        own = by_layer.section(str(index)) or ConfigReader({})
        for key in own.raw.keys() - {"head_dim", "num_key_value_heads"}:
            own.expect(key)
        count = value_or(own.integer("num_key_value_heads", minimum=1), count)
        return count, value_or(own.integer("head_dim", minimum=1), dim)
    if kind != FULL:
        return count, dim
    if reading.flag("attention_k_eq_v"):
        count = value_or(reader.integer("num_global_key_value_heads", minimum=1), count)
    return count, reading.size("global_head_dim", 512)


def _gemma4_attention(reading: Reading, norm: NormConfig, index: int) -> AttentionConfig:
    kind = _gemma4_type(reading, index)
    heads = _gemma4_heads(reading, kind, index)
    return replace(
        read_attention(reading, _GEMMA4, norm, index, heads=heads),
        values_are_keys=reading.flag("attention_k_eq_v") and kind == FULL,
        kv_layer=_owner_of_keys(reading, _gemma4_type, index),
    )


def _gemma4_rope(reading: Reading, dim: int, index: int) -> RopeConfig:
    parameters = rope_parameters(reading.reader, _gemma4_type(reading, index))
    return read_rope(reading.reader, dim, parameters=parameters)


def _gemma4_feed(reading: Reading, norm: NormConfig, *, shares: bool) -> FeedForwardConfig:
    is_wide = reading.flag("use_double_wide_mlp") and shares
    mlp = MlpConfig(
        hidden_size=reading.hidden_size,
        intermediate_size=reading.size("intermediate_size") * (2 if is_wide else 1),
        activation=reading.activation(_ACTIVATION),
    )
    if not reading.flag("enable_moe_block"):
        return mlp
    moe = replace(
        read_experts(reading),
        activation=mlp.activation,
        router_norm=norm,
        router_multiplier=reading.hidden_size**-0.5,
        expert_norm=norm,
        expert_scale=True,
    )
    return ParallelFeedForwardConfig(
        (
            FeedForwardPart(name="mlp", feed_forward=mlp, norm=norm, post_norm=norm),
            FeedForwardPart(name="moe", feed_forward=moe, norm=None, post_norm=norm),
        )
    )


def _gemma4_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    mixer = _gemma4_attention(reading, norm, index)
    feed_forward = _gemma4_feed(reading, norm, shares=mixer.kv_layer is not None)
    return LayerConfig(
        mixer=mixer,
        mixer_norm=norm,
        mixer_post_norm=norm,
        feed_forward=feed_forward,
        feed_forward_norm=norm if isinstance(feed_forward, MlpConfig) else None,
        feed_forward_post_norm=norm,
        token_input=_token_input(reading, norm),
        output_scale=True,
    )


def _gemma4_config(own: Mapping[str, object]) -> dict[str, object]:
    """Rotation where none is said, and without what concerns images alone."""
    config = {**own, "rope_parameters": own.get("rope_parameters") or _ROTATION}
    if own.get("use_bidirectional_attention") == "vision":
        del config["use_bidirectional_attention"]
    return config


def _gemma4_rules(checkpoint: Checkpoint) -> RuleBook:
    return _SPARSE_RULES if checkpoint.config.get("enable_moe_block") else _DENSE_RULES


_GEMMA4 = Traits(
    rules=_DENSE_RULES,
    rules_of=_gemma4_rules,
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
    },
    names={"experts_per_tok": ("top_k_experts",)},
    attention=_ATTENTION,
    attention_numbers=_unscaled,
    rope=_gemma4_rope,
    slides=lambda reading, index: _gemma4_type(reading, index) == SLIDING,
    layer=_gemma4_layer,
    prepare=_gemma4_config,
    model_numbers=lambda reading: {
        **_numbers(reading),
        "per_layer": _per_layer_embedding(reading),
    },
    unused=_keys_of_sharing_layers,
    # what dense models say of experts, and a name of the activation that is not looked at
    ignored_keys=("num_experts", "top_k_experts", "moe_intermediate_size", "hidden_act"),
)
GEMMA4_TEXT = _GEMMA4.family("gemma4_text")
GEMMA4_UNIFIED_TEXT = replace(
    _GEMMA4,
    defaults={**_GEMMA4.defaults, "sliding_window": 1024},
    # it has neither vectors of tokens nor experts, whatever its config says
    prepare=lambda own: {
        **_gemma4_config(own),
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": False,
    },
).family("gemma4_unified_text")


def _of_layer(reading: Reading, key: str, index: int) -> float:
    """A number that may be one for each layer.

    Raises:
        ConfigError: It is missing, or the list is too short.
    """
    if not isinstance(reading.reader.raw.get(key), list):
        return reading.number(key)
    listed = reading.reader.numbers(key)
    if listed is None or index >= len(listed.value):
        raise ConfigError(
            f"{reading.reader.source}: {key!r} is too short.",
            expected=f"{reading.num_layers} numbers, one a layer",
        )
    return reading.ledger.record(key, listed.value[index], listed.source)


def _gemma3n_type(reading: Reading, index: int) -> str:
    return type_by_turns(reading, index, 5)


def _sparsity(reading: Reading, index: int) -> float:
    """The share of a layer's gates that are cut off; that of most in the first layers."""
    if reading.reader.numbers("activation_sparsity_pattern") is None:
        return 0.95 if reading.num_layers > 10 > index else 0.0
    share = _of_layer(reading, "activation_sparsity_pattern", index)
    if not 0 <= share < 1:
        raise ConfigError(
            f"{reading.reader.source}: the share of gates that are cut off is out of range.",
            found=f"{share:g} in layer {index}, by activation_sparsity_pattern",
            expected="from 0 to less than 1",
        )
    return share


def _gemma3n_layer(reading: Reading, norm: NormConfig, index: int) -> LayerConfig:
    streams = reading.size("altup_num_inputs", 4)
    active = reading.size("altup_active_idx", 0, minimum=0)
    if active >= streams:
        raise ConfigError(
            f"{reading.reader.source}: there is no such stream as altup_active_idx says.",
            found=str(active),
            expected=f"0 to {streams - 1}",
        )
    reading.size("hidden_size_per_layer_input")  # no layer is without them
    return AltUpLayerConfig(
        mixer=replace(
            read_attention(reading, _GEMMA3N, norm, index),
            kv_layer=_owner_of_keys(reading, _gemma3n_type, index),
        ),
        mixer_norm=norm,
        mixer_post_norm=norm,
        feed_forward=MlpConfig(
            hidden_size=reading.hidden_size,
            intermediate_size=reading.derived(
                "intermediate_size", _of_layer(reading, "intermediate_size", index)
            ),
            activation=reading.activation(_ACTIVATION),
            sparsity=_sparsity(reading, index),
        ),
        feed_forward_norm=norm,
        feed_forward_post_norm=norm,
        token_input=_token_input(reading, norm),
        num_streams=streams,
        active=active,
        norm=norm,
        laurel_rank=reading.size("laurel_rank", 64),
        scales_correction=reading.flag("altup_correct_scale"),
    )


_GEMMA3N_SHARED = 15  # layers, where the config is silent


def _gemma3n_unused(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Keys of layers that share others, and factors that the config tells not to apply."""
    found = _keys_of_sharing_layers(checkpoint, _GEMMA3N_SHARED)
    if checkpoint.config.get("altup_correct_scale", True):
        return found
    return (*found, *(name for name in checkpoint.tensors if name.endswith(_FACTORS)))


_GEMMA3N = Traits(
    rules=_GEMMA3N_RULES,
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": _GEMMA3N_SHARED,
        "final_logit_softcapping": 30.0,
        "altup_correct_scale": True,
        "intermediate_size": 16_384,
        "rope_theta": 1_000_000.0,
    },
    attention=_ATTENTION,
    attention_numbers=_unscaled,
    rope=lambda reading, dim, index: _local_rope(reading, dim, _gemma3n_type(reading, index)),
    slides=lambda reading, index: _gemma3n_type(reading, index) == SLIDING,
    layer=_gemma3n_layer,
    model_numbers=lambda reading: {
        **_numbers(reading),
        "per_layer": _per_layer_embedding(reading),
        "streams": StreamsConfig(reading.hidden_size, reading.size("altup_num_inputs", 4)),
    },
    unused=_gemma3n_unused,
    # clips in training alone, and a scale that this Gemma does not look at
    ignored_keys=("altup_coef_clip", "hidden_act", "query_pre_attn_scalar"),
)
GEMMA3N_TEXT = _GEMMA3N.family("gemma3n_text")
