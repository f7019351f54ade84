"""Llama and its relatives with one MLP a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.families.base import value_or
from blazr.models.families.hf.derive import (
    FULL,
    SLIDING,
    Flags,
    Reading,
    Traits,
    every_slides,
    interleaved_rope,
    qwen_slides,
    read_attention,
    read_mlp,
    type_by_turns,
)
from blazr.models.families.hf.names import GLM_NORMS, LAYER, OLMO_NORMS, hf_rules
from blazr.models.families.hf.rope import read_rope, rope_parameters, unless_said
from blazr.models.families.rules import FEED, MIXER, OURS, Rule
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import NormConfig
from blazr.nn.layers.mlp import XIELU, MlpConfig
from blazr.nn.layers.rope import RopeConfig

LLAMA_BIASES: Flags = {"qkv_bias": "attention_bias", "o_bias": "attention_bias"}
_SCALARS = ("alpha_p", "alpha_n", "beta", "eps")  # of Apertus's activation


def _olmo3_rope(reading: Reading, dim: int, index: int) -> RopeConfig:
    """No scaling where there is a window."""
    kind = type_by_turns(reading, index, 4)
    parameters = rope_parameters(reading.reader, kind)
    rope = read_rope(reading.reader, dim, parameters=parameters)
    is_new = reading.reader.section("rope_parameters") is not None
    return rope if is_new or kind == FULL else RopeConfig(dim, rope.theta)


def has_rope(reading: Reading, index: int) -> bool:
    """By ``no_rope_layers``, or in all layers but every n-th."""
    listed = reading.reader.integers("no_rope_layers")  # ones are layers that do have it
    every = value_or(reading.reader.integer("no_rope_layer_interval", minimum=1), 4)
    if listed is not None and index < len(listed.value):
        return bool(listed.value[index])
    return (index + 1) % every != 0


def _smollm3_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    rope = read_rope(reading.reader, dim)
    return rope if has_rope(reading, index) else None


def _smollm3_slides(reading: Reading, index: int) -> bool:
    """Where types are listed they decide alone, as the library masks by them."""
    is_enabled = reading.flag("use_sliding_window")
    default = SLIDING if is_enabled and not has_rope(reading, index) else FULL
    return (reading.layer_type(index) or default) == SLIDING


def _exaone_slides(reading: Reading, index: int) -> bool:
    """By ``layer_types``, or by a pattern such as ``LLLG`` or its length."""
    if kind := reading.layer_type(index):
        return kind == SLIDING
    reader = reading.reader
    if isinstance(reader.raw.get("sliding_window_pattern"), str):
        pattern = value_or(reader.text("sliding_window_pattern"), "")
        return bool(pattern) and pattern[index % len(pattern)] == "L"
    every = value_or(reader.integer("sliding_window_pattern", minimum=1), 4)
    return (index + 1) % every != 0


def _exaone_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    """Where some layers have a window, the others have no rotation."""
    has_window = reading.reader.integer("sliding_window") is not None
    rope = read_rope(reading.reader, dim)
    return rope if not has_window or _exaone_slides(reading, index) else None


def with_bare_norms(config: AttentionConfig) -> AttentionConfig:
    """Attention whose queries and keys have norms without weights behind the rotation.

    These take away what the rotation multiplies with, and need not stand behind it: a rotation
    does not change how long a vector is.
    """
    rope, eps = config.rope, config.norm_eps
    if rope is not None and rope.scaling is not None:
        eps /= rope.scaling.attention_factor**2
        rope = replace(rope, scaling=replace(rope.scaling, attention_factor=1.0))
    return replace(config, rope=rope, norm_eps=eps, qk_norm=True, qk_norm_weight=False)


def granite_swa_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    """A base for each layer, or 0 for none.

    Raises:
        ConfigError: There is none for this layer, or it cannot be one.
    """
    rope = read_rope(reading.reader, dim)
    listed = reading.reader.numbers("layer_rope_theta")
    if listed is None:
        return rope
    theta = listed.value[index] if index < len(listed.value) else None
    if theta is None or 0 != theta <= 1:
        raise ConfigError(
            f"{listed.source} does not fit the layers.",
            found=f"{len(listed.value)} numbers" if theta is None else f"{theta:g}",
            expected=f"a number above 1, or 0, for each of {reading.num_layers} layers",
        )
    return replace(rope, theta=theta) if theta else None


def slides_but_every_fourth(reading: Reading, index: int) -> bool:
    """By ``layer_types``, or all layers but every fourth from the first on."""
    return type_by_turns(reading, index, 4, last=False) == SLIDING


def _apertus_mlp(reading: Reading, index: int) -> MlpConfig:
    """One whose activation is learned, or another."""
    del index
    found = reading.reader.text("hidden_act")
    is_learned = found is None or found.value == XIELU
    return MlpConfig(
        hidden_size=reading.hidden_size,
        intermediate_size=reading.size("intermediate_size"),
        activation=XIELU if is_learned else reading.activation("hidden_act"),
        gated=False,
    )


def _bitnet_mlp(reading: Reading, index: int) -> MlpConfig:
    """One with a norm of its inner channels."""
    del index
    return replace(read_mlp(reading, {}), norm_eps=reading.number("rms_norm_eps", 1e-6))


def _apertus_config(own: Mapping[str, object]) -> Mapping[str, object]:
    """With the rotation that a silent one stands for.

    Raises:
        ConfigError: It has a base alone. Older versions of the library scaled nothing then, and
            newer ones take another base.
    """
    prepared = _scale_apertus(own)
    if prepared is not own and own.get("rope_theta") is not None:
        raise ConfigError(
            "config.json: whether this rotation is scaled is missing.",
            found="rope_theta, and nothing about a scaling",
            expected="rope_parameters",
            hint='write "rope_type": "default" there beside "rope_theta" for none',
        )
    return prepared


def _nanochat_rope(reading: Reading, dim: int, index: int) -> RopeConfig:
    del index
    return replace(read_rope(reading.reader, dim), backwards=True)


def _nanochat_numbers(reading: Reading) -> dict[str, object]:
    norm = NormConfig(reading.hidden_size, reading.number("rms_norm_eps", 1e-6), has_weight=False)
    return {
        "embedding_norm": norm,
        "logit_softcap": reading.optional_number("final_logit_softcapping"),
    }


_scale_apertus = unless_said(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)


LLAMA = Traits(
    attention=LLAMA_BIASES,
    mlp={"bias": "mlp_bias"},
    ignored_keys=("sliding_window",),  # Llama has none, whatever its config says
).family("llama")
CWM = Traits(
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "sliding_window": 8192,
    },
    mlp={"bias": "mlp_bias"},
    slides=slides_but_every_fourth,
    prepare=unless_said(
        rope_type="llama3",
        factor=16.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    ),
    expects={"attention_bias": (False,)},
).family("cwm")
INTERNLM3 = Traits(
    names={"attention_bias": ("attention_bias", "qkv_bias"), "mlp_bias": ("mlp_bias", "bias")},
    defaults={"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5},
    # by its own code; in the library both are one
    attention={"qkv_bias": "attention_bias", "o_bias": "mlp_bias"},
    mlp={"bias": "mlp_bias"},
).family("internlm3")
IQUESTCODER = Traits(
    defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5},
    attention=LLAMA_BIASES,
    mlp={"bias": "mlp_bias"},
    expects={"clip_qkv": (None,), "use_sliding_window": (False,)},
    ignored_keys=("sliding_window",),
).family("iquestcoder")
JAIS2 = Traits(
    defaults={
        "hidden_act": "relu2",
        "layer_norm_eps": 1e-5,
        "attention_bias": True,
        "mlp_bias": True,
    },
    attention=LLAMA_BIASES,
    mlp={"bias": "mlp_bias", "gated": False},
    norm_kind="layer",
    eps="layer_norm_eps",
    ignored_keys=("rms_norm_eps",),
).family("jais2")
APERTUS = Traits(
    rules=hf_rules(
        [Rule(LAYER + "mlp.act_fn.{p}", FEED + "xielu.{p}", p=_SCALARS)],
        norms={"attention": "mixer_norm", "feedforward": "feed_forward_norm"},
    ),
    defaults={"hidden_act": XIELU, "rms_norm_eps": 1e-5, "rope_theta": 12_000_000.0},
    attention={**LLAMA_BIASES, "qk_norm": True},
    feed_forward=_apertus_mlp,
    prepare=_apertus_config,
    expects={"mlp_bias": (False,), "post_norm": (False,), "qk_norm": (True,)},
).family("apertus")
_NANOCHAT = Traits(
    rules=hf_rules(
        [
            Rule(LAYER + "mlp.fc1.weight", FEED + "up_proj.weight"),
            Rule(LAYER + "mlp.fc2.weight", FEED + "down_proj.weight"),
        ]
    ),
    defaults={"hidden_act": "relu2", "final_logit_softcapping": 15.0},
    attention=LLAMA_BIASES,
    mlp={"gated": False},
    model_numbers=_nanochat_numbers,
    norm_weight=False,
    rope=_nanochat_rope,
)
NANOCHAT = replace(
    _NANOCHAT,
    mixer=lambda reading, norm, index: with_bare_norms(
        read_attention(reading, _NANOCHAT, norm, index)
    ),
).family("nanochat")
ARCEE = Traits(
    defaults={"hidden_act": "relu2", "rms_norm_eps": 1e-5},
    attention=LLAMA_BIASES,
    mlp={"bias": "mlp_bias", "gated": False},
).family("arcee")
SEED_OSS = Traits(
    defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    attention={"qkv_bias": "attention_bias", "o_bias": "attention_out_bias"},
    mlp={"bias": "mlp_bias"},
).family("seed_oss")
ERNIE = Traits(
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
    },
    attention={"qkv_bias": "use_bias", "o_bias": "use_bias"},
    mlp={"bias": "use_bias"},
    rope=interleaved_rope,
)
ERNIE4_5 = ERNIE.family("ernie4_5")
HELIUM = Traits(
    defaults={
        "num_key_value_heads": 20,
        "head_dim": 128,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100_000.0,
    },
    attention={"qkv_bias": "attention_bias"},
    mlp={"bias": "mlp_bias"},
    rope=interleaved_rope,
).family("helium")
_MISTRAL = Traits(
    defaults={"sliding_window": 4096, "num_key_value_heads": 8},
    slides=every_slides,
)
_MINISTRAL_DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5}
MISTRAL = _MISTRAL.family("mistral")
MINISTRAL3 = replace(_MISTRAL, defaults=_MINISTRAL_DEFAULTS).family("ministral3")
MINISTRAL = replace(
    _MISTRAL,
    slides=lambda reading, index: reading.layer_type(index) != FULL,
).family("ministral")
_QWEN2 = Traits(
    defaults={"sliding_window": 4096, "max_window_layers": 28},
    attention={"qkv_bias": True},
    slides=qwen_slides,
)
QWEN2 = _QWEN2.family("qwen2")
MIMO = replace(
    _QWEN2,
    ignored_keys=("attention_bias",),  # as Qwen 2 has them, whatever it says
    unused=lambda _: ("model.mtp_layers.",),
    mtp="model.mtp_layers.0.",
).family("mimo")
QWEN3 = replace(
    _QWEN2,
    defaults={**_QWEN2.defaults, "head_dim": 128},
    attention={**LLAMA_BIASES, "qk_norm": True},
).family("qwen3")
PHI3 = Traits(
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    slides=every_slides,
).family("phi3")
OLMO2_TRAITS = Traits(
    rules=hf_rules(norms=OLMO_NORMS),
    defaults={"rms_norm_eps": 1e-5},
    attention={**LLAMA_BIASES, "qk_norm": True, "qk_norm_all_heads": True},
    norms="behind",
)
OLMO2 = OLMO2_TRAITS.family("olmo2")
OLMO3 = replace(
    OLMO2_TRAITS,
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 500_000.0},
    rope=_olmo3_rope,
    slides=lambda reading, index: type_by_turns(reading, index, 4) == SLIDING,
).family("olmo3")
OLMO = Traits(
    defaults={"layer_norm_eps": 1e-5},  # which no config says
    attention=LLAMA_BIASES,
    attention_numbers=lambda reading: {"clip_qkv": reading.optional_number("clip_qkv")},
    norm_kind="layer",
    norm_weight=False,
    eps="layer_norm_eps",
).family("olmo")
EXAONE4_TRAITS = Traits(
    rules=hf_rules(norms=OLMO_NORMS),
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096},
    attention={"qk_norm": True},
    rope=_exaone_rope,
    slides=_exaone_slides,
    norms="behind",
    ignored_keys=("sliding_window_pattern",),  # where the types of layers are listed
)
EXAONE4 = EXAONE4_TRAITS.family("exaone4")
SMOLLM3 = Traits(
    defaults={"num_key_value_heads": 4, "rope_theta": 2_000_000.0},
    attention=LLAMA_BIASES,
    mlp={"bias": "mlp_bias"},
    rope=_smollm3_rope,
    slides=_smollm3_slides,
).family("smollm3")
BITNET = Traits(
    rules=hf_rules(
        [
            Rule(LAYER + "self_attn.attn_sub_norm.weight", MIXER + "out_norm.weight"),
            Rule(LAYER + "mlp.ffn_sub_norm.weight", FEED + "inner_norm.weight"),
        ]
    ),
    defaults={
        "num_key_value_heads": 5,
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
    },
    attention={**LLAMA_BIASES, "out_norm": True},
    feed_forward=_bitnet_mlp,
).family("bitnet")
STARCODER2 = Traits(
    defaults={
        "use_bias": True,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
    },
    attention={"qkv_bias": "use_bias", "o_bias": "use_bias"},
    mlp={"bias": "use_bias", "gated": False},
    slides=every_slides,
    norm_kind="layer",
    eps="norm_epsilon",
).family("starcoder2")
NEMOTRON = Traits(
    defaults={"hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    attention=LLAMA_BIASES,
    mlp={"bias": "mlp_bias", "gated": False},
    norm_kind="layer",
    eps="norm_eps",
    unit_offset=True,
).family("nemotron")
_GLM4V_DEFAULTS = {"partial_rotary_factor": 0.5, "attention_bias": True, "rms_norm_eps": 1e-5}
_GLM_DEFAULTS = {**_GLM4V_DEFAULTS, "head_dim": 128, "rms_norm_eps": 1.5625e-7}
_GLM = Traits(
    defaults=_GLM_DEFAULTS,
    attention={"qkv_bias": "attention_bias"},
    rope=interleaved_rope,
)
_GLM4 = replace(_GLM, rules=hf_rules(norms=GLM_NORMS), norms="both")
GLM = _GLM.family("glm")
GLM4 = _GLM4.family("glm4")
GLM4V_TEXT = replace(_GLM4, defaults=_GLM4V_DEFAULTS).family("glm4v_text")
GRANITE_TRAITS = Traits(
    attention=LLAMA_BIASES,
    attention_numbers=lambda reading: {
        "attention_multiplier": reading.number("attention_multiplier", 1.0)
    },
    mlp={"bias": "mlp_bias"},
    model_numbers=lambda reading: {
        name: reading.number(name, 1.0) for name in ("embedding_multiplier", "logits_scaling")
    },
    residual_multiplier="residual_multiplier",
)
GRANITE = GRANITE_TRAITS.family("granite")
GRANITE_SWA = replace(
    GRANITE_TRAITS,
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "sliding_window": 128},
    attention={**LLAMA_BIASES, "sinks": True},
    rope=granite_swa_rope,
    slides=slides_but_every_fourth,
).family("granite_swa")
HYPERCLOVAX = replace(
    GRANITE_TRAITS,
    rules=hf_rules(
        [
            Rule(LAYER + "post_norm1.weight", OURS + "mixer_post_norm.weight"),
            Rule(LAYER + "post_norm2.weight", OURS + "feed_forward_post_norm.weight"),
        ]
    ),
    defaults={"use_post_norm": True},
    attention_numbers=lambda reading: {
        "attention_multiplier": reading.optional_number("attention_multiplier")
    },
    # Granite divides by what this multiplies with
    model_numbers=lambda reading: {
        "embedding_multiplier": reading.number("embedding_multiplier", 1.0),
        "logits_scaling": 1 / reading.number("logits_scaling", 1.0),
    },
    norms=lambda reading: "both" if reading.flag("use_post_norm") else "before",
).family("hyperclovax")
