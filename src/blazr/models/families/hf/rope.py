"""Rotary position embedding as Hugging Face configs describe it, in the old spelling and the new.

Old: ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor`` beside everything else. New:
all of it in ``rope_parameters``, once or per type of layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from blazr.core.errors import ConfigError
from blazr.models.families.base import ConfigReader, Setting, value_or
from blazr.nn.layers.rope import RopeConfig, RopeScaling, ScalingKind
from blazr.nn.operands.attention import AttentionTemperature

Preparation = Callable[[Mapping[str, object]], Mapping[str, object]]
PROPORTIONAL = "proportional"
KINDS: dict[str, ScalingKind | None] = {
    "default": None,
    "mrope": None,  # text has one position, whatever images have
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
    "llama3": "llama3",
    "factors": "factors",  # of GGUF files: any of the above that divides frequencies
    PROPORTIONAL: "factors",  # of Gemma 4 and LFM3: the slow ones stand still
}
DEFAULT_THETA = 10000.0
# What some configs repeat here, and what only other kinds look at.
_NEUTRAL = {
    "max_position_embeddings",
    "finetuned",
    "factor",
    "original_max_position_embeddings",
}
# Types whose axes take turns, whether or not a config says so.
_MIXED_AXES = ("qwen3_vl", "qwen3_5")


def rope_parameters(reader: ConfigReader, layer_type: str | None = None) -> ConfigReader:
    """The part of a config that is about rotation, for layers of one type.

    Args:
        reader: The whole config.
        layer_type: A key of ``rope_parameters``, where these differ by layer.

    Raises:
        ConfigError: The old spelling and the new contradict each other.
    """
    new = reader.section("rope_parameters")
    old = reader.section("rope_scaling")
    if new is not None and old is not None and reader.raw.get("rope_scaling"):
        # of those that differ by layer the old one is about layers without a window
        whole = new.section("full_attention") or new
        if not _in_new_words(old).items() <= _in_new_words(whole).items():
            raise ConfigError(
                f"{reader.source}: rope_scaling and rope_parameters contradict each other.",
                found=f"{old.raw} and {new.raw}"[:100],
                expected="one of them",
                hint="put the scaling into rope_parameters, beside its rope_theta",
            )
    if new is not None and layer_type is not None and layer_type in new.raw:
        inner = new.section(layer_type)
        return inner or ConfigReader({}, f"{new.source}: {layer_type}")
    return new or old or ConfigReader({}, f"{reader.source}: rope_scaling")


def unless_said(**scaling: object) -> Preparation:
    """What puts a scaling into configs that say nothing about rotation, as transformers does.

    Args:
        scaling: What these take.
    """

    def prepare(own: Mapping[str, object]) -> Mapping[str, object]:
        if own.get("rope_parameters") is not None or own.get("rope_scaling"):
            return own
        return {**own, "rope_scaling": scaling}

    return prepare


def plain_rope_by_type(**parts: Mapping[str, float]) -> Preparation:
    """What gives silent configs a plain rotation for each type of layer, as transformers does.

    Args:
        parts: Its numbers, by type.
    """

    def prepare(own: Mapping[str, object]) -> Mapping[str, object]:
        if own.get("rope_parameters") is not None:
            return own
        by_type = {kind: {"rope_type": "default", **part} for kind, part in parts.items()}
        return {**own, "rope_parameters": by_type}

    return prepare


def rope_of_type(
    reader: ConfigReader,
    layer_type: str,
    head_dim: int,
    *,
    defaults: Mapping[str, object] | None = None,
) -> RopeConfig:
    """The rotation in layers of one type, for each of which the config has a part.

    Args:
        reader: The whole config.
        layer_type: The type.
        head_dim: Channels of a head.
        defaults: What holds where that part is silent.

    Raises:
        ConfigError: There is no part for this type, or something is wrong there.
    """
    by_type = reader.section("rope_parameters")
    own = None if by_type is None else by_type.section(layer_type)
    if own is None:
        raise ConfigError(
            f"{reader.source}: how layers of a type are rotated is missing.",
            expected=f"{layer_type!r} in rope_parameters",
        )
    return read_rope(reader, head_dim, parameters=own.over({**(defaults or {}), **own.raw}))


def _in_new_words(parameters: ConfigReader) -> dict[str, object]:
    own = dict(parameters.raw)
    return {"rope_type": own.pop("type", "default"), **own}


def read_rope(
    reader: ConfigReader,
    head_dim: int,
    *,
    parameters: ConfigReader | None = None,
    interleaved: bool = False,
) -> RopeConfig:
    """The rotation of the channels of a head.

    Args:
        reader: The whole config.
        head_dim: Channels of a head.
        parameters: The part about rotation; None looks for it.
        interleaved: Whether the channels of a pair lie side by side.

    Raises:
        ConfigError: Something is missing, contradicts itself, or is of an unknown kind.
    """
    if parameters is None:
        parameters = rope_parameters(reader)
    theta = _either(parameters, reader, "rope_theta")
    if parameters.raw.get("rope_type") == PROPORTIONAL:
        return _proportional(parameters, head_dim, value_or(theta, DEFAULT_THETA))
    share = _either(parameters, reader, "partial_rotary_factor")
    dim = int(head_dim * value_or(share, 1))
    rope = RopeConfig(dim, value_or(theta, DEFAULT_THETA), None, interleaved)
    if not 0 < dim <= 2 * rope.num_pairs <= head_dim:
        raise ConfigError(
            f"{reader.source}: the rotated channels do not fit the heads.",
            found=f"{dim} of {head_dim}",
            expected="at least 1, in pairs, and at most all",
        )
    scaling = _scaling(reader, parameters, rope)
    axes = _axes(reader, parameters, rope.num_pairs)
    temperature = None
    if reader.raw.get("model_type") == "ministral3":  # others do not look at it
        beta = parameters.number("llama_4_scaling_beta")
        trained = parameters.integer("original_max_position_embeddings", minimum=1)
        if beta is None or trained is None:
            raise ConfigError(
                f"{parameters.source}: how scores grow with the position is missing.",
                expected="llama_4_scaling_beta and original_max_position_embeddings",
            )
        temperature = AttentionTemperature(beta.value, trained.value) if beta.value else None
    for key, value in parameters.unread().items():
        if value is not None and key not in _NEUTRAL and not isinstance(value, dict):
            section = parameters.source.removeprefix(reader.source + ": ")
            reader.unknown[f"{section}.{key}"] = value
    return RopeConfig(dim, rope.theta, scaling, interleaved, temperature, axes)


def _either(parameters: ConfigReader, reader: ConfigReader, name: str) -> Setting[float] | None:
    """A number of the part about rotation, or else of the config.

    Both are looked at, as a key that nobody has looked at counts as unknown.
    """
    inner, outer = (each.number(name, above=0) for each in (parameters, reader))
    return inner or outer


def _proportional(parameters: ConfigReader, head_dim: int, theta: float) -> RopeConfig:
    """Whole heads in pairs, of which the slower ones stand still (Gemma 4, LFM3)."""
    parameters.mark("rope_type")
    share = number_or(parameters, "partial_rotary_factor", 1.0)
    factor = number_or(parameters, "factor", 1.0)
    rope = RopeConfig(head_dim, theta)
    turned = int(share * head_dim // 2)
    if turned > rope.num_pairs:
        raise ConfigError(
            f"{parameters.source}: 'partial_rotary_factor' is out of range.",
            found=f"{share:g}",
            expected="at most 1",
        )
    still = rope.num_pairs - turned
    factors = (factor,) * turned + (math.inf,) * still
    return replace(rope, scaling=RopeScaling(kind="factors", factors=factors))


def mscale(factor: float, weight: float = 1.0) -> float:
    """How much larger scores are to become when the context is stretched [arXiv:2309.00071]."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _scaling(
    reader: ConfigReader, parameters: ConfigReader, rope: RopeConfig
) -> RopeScaling | None:
    old = parameters.text("type")
    kind = parameters.text("rope_type") or old
    if kind is None:
        return None
    if kind.value not in KINDS:
        raise ConfigError(
            f"{parameters.source}: this kind of RoPE scaling is not supported.",
            found=repr(kind.value)[:100],
            expected=", ".join(KINDS),
        )
    known = KINDS[kind.value]
    original = reader.integer("original_max_position_embeddings", minimum=1)
    original = original or parameters.integer("original_max_position_embeddings", minimum=1)
    whole = value_or(reader.integer("max_seq_len", minimum=1), 2048)
    trained = value_or(original, whole)
    factor = parameters.number("factor", above=0)
    if known is None:
        return None
    if known in {"linear", "dynamic", "llama3"}:
        if factor is None:
            raise ConfigError(
                f"{parameters.source}: 'factor' is missing.", expected="a number above 0"
            )
        scaling = RopeScaling(kind=known, factor=factor.value)
        if known == "dynamic":
            scaling = replace(scaling, original_max_seq_len=whole)
        return with_llama3_factors(parameters, scaling, trained) if known == "llama3" else scaling
    if known == "factors":
        return RopeScaling(kind="factors", factors=_factors(parameters, "factors", rope))
    stretch = _yarn if known == "yarn" else _longrope
    return stretch(parameters, value_or(factor, whole / trained), trained, rope)


def _axes(reader: ConfigReader, parameters: ConfigReader, num_pairs: int) -> tuple[int, ...]:
    """Which of a token's three positions turns each pair; see `RopeConfig`."""
    sections = parameters.numbers("mrope_section")
    is_mixed = value_or(parameters.boolean("mrope_interleaved"), default=False)
    if sections is None:
        return ()
    sizes = [int(each) for each in sections.value[:3]]
    if len(sizes) < 3 or min(sizes) < 0 or sum(sizes) != num_pairs:
        raise ConfigError(
            f"{parameters.source}: 'mrope_section' does not fit the heads.",
            found=str(sections.value)[:100],
            expected=f"three numbers that add up to {num_pairs}",
        )
    kind = reader.raw.get("model_type")
    if is_mixed or str(kind).startswith(_MIXED_AXES):
        # height and width take every third pair each, as far as their sections reach
        return tuple(
            pair % 3 if pair % 3 and pair < 3 * sizes[pair % 3] else 0 for pair in range(num_pairs)
        )
    return tuple(axis for axis, size in enumerate(sizes) for _ in range(size))


def number_or(parameters: ConfigReader, name: str, default: float) -> float:
    """A number above 0, or the default."""
    return value_or(parameters.number(name, above=0), default)


def with_llama3_factors(
    parameters: ConfigReader, scaling: RopeScaling, trained: int
) -> RopeScaling:
    """A scaling with the bounds between the frequencies that Llama 3 keeps and those it divides.

    Args:
        parameters: The part of a config that is about rotation.
        scaling: The rest of it.
        trained: Tokens of the context before it was stretched.

    Raises:
        ConfigError: The bounds are not in order.
    """
    low = number_or(parameters, "low_freq_factor", 1.0)
    high = number_or(parameters, "high_freq_factor", 4.0)
    if high < low:
        raise ConfigError(
            f"{parameters.source}: high_freq_factor must not be below low_freq_factor.",
            found=f"{high:g} and {low:g}",
        )
    return replace(
        scaling, low_freq_factor=low, high_freq_factor=high, original_max_seq_len=trained
    )


def _yarn(parameters: ConfigReader, factor: float, trained: int, rope: RopeConfig) -> RopeScaling:
    over = value_or(parameters.number("mscale"), 0.0)
    all_dim = value_or(parameters.number("mscale_all_dim"), 0.0)
    divisor = mscale(factor, all_dim)
    if rope.theta == 1 or rope.dim % 2:
        raise ConfigError(
            f"{parameters.source}: yarn needs another theta than 1, and an even size.",
            found=f"theta {rope.theta:g}, {rope.dim} channels",
        )
    if not divisor:
        raise ConfigError(
            f"{parameters.source}: mscale_all_dim would divide scores by zero.",
            found=f"{all_dim:g}, with factor {factor:g}",
            expected="a weight above 0",
        )
    usual = mscale(factor, over) / divisor if over and all_dim else mscale(factor)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_seq_len=trained,
        beta_fast=number_or(parameters, "beta_fast", 32.0),
        beta_slow=number_or(parameters, "beta_slow", 1.0),
        truncate=parameters.is_true("truncate", default=True),
        attention_factor=number_or(parameters, "attention_factor", usual),
    )


def _longrope(
    parameters: ConfigReader, factor: float, trained: int, rope: RopeConfig
) -> RopeScaling:
    wider = factor > 1 and trained > 1
    usual = math.sqrt(1 + math.log(factor) / math.log(trained)) if wider else 1.0
    return RopeScaling(
        kind="longrope",
        factor=factor,
        original_max_seq_len=trained,
        attention_factor=number_or(parameters, "attention_factor", usual),
        factors=_factors(parameters, "short_factor", rope),
        long_factors=_factors(parameters, "long_factor", rope),
    )


def phimoe_rope(reader: ConfigReader, head_dim: int) -> RopeConfig:
    """LongRoPE with a factor of cosine and sine for short sequences, and one for long ones.

    Raises:
        ConfigError: They are missing, or it is another kind of scaling.
    """
    parameters = rope_parameters(reader)
    short, long = (parameters.number(f"{name}_mscale", above=0) for name in ("short", "long"))
    rope = read_rope(reader, head_dim, parameters=parameters)
    if rope.scaling is None:
        return rope
    if rope.scaling.kind != "longrope" or short is None or long is None:
        raise ConfigError(
            f"{parameters.source}: this rotation is not supported.",
            found=rope.scaling.kind,
            expected="longrope with short_mscale and long_mscale",
        )
    scaling = replace(rope.scaling, attention_factor=short.value, long_attention_factor=long.value)
    return replace(rope, scaling=scaling)


def _factors(parameters: ConfigReader, name: str, rope: RopeConfig) -> tuple[float, ...]:
    """A divisor for each frequency."""
    found = parameters.numbers(name)
    if found is None or len(found.value) != rope.num_pairs or min(found.value) <= 0:
        raise ConfigError(
            f"{parameters.source}: {name!r} does not fit the heads.",
            found=f"{len(found.value)} numbers" if found else "nothing",
            expected=f"{rope.num_pairs} numbers above 0",
        )
    return tuple(found.value)
