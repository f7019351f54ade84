"""Hugging Face decoders: what their configs say, as differences from Llama.

config.json is believed, as it does not go stale here; the plan of the load compares every size with
the tensors. A key that nobody has read is refused unless it is known to change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.checkpoint.base import Checkpoint
from blazr.models.config import ModelConfig
from blazr.models.families.base import Derivation, Family, Ledger
from blazr.models.families.config_reader import ConfigReader, Setting
from blazr.models.families.hf.names import HEADS, PREFIXES
from blazr.models.families.hf.neutral import is_neutral
from blazr.models.families.hf.rope import read_rope
from blazr.models.families.oxidizr import read_max_seq_len
from blazr.models.families.oxidizr_shapes import split_layers
from blazr.models.families.rules import RuleBook
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, MixerConfig
from blazr.nn.layers.decoder_layer import LayerConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.norm import NormConfig
from blazr.nn.layers.rope import RopeConfig

V = TypeVar("V", int, float, bool, str)
Flag = bool | str

MAX_SIZE = 2**28
MAX_EXTRA_LAYERS = 16
# What the names of tensors that see images begin with.
SIGHT = tuple(
    before + part
    for before in ("", "model.")
    for part in ("vision_tower.", "multi_modal_projector.", "vision_model.")
)
ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "relu2": "relu2",
    }
)


class Reading:
    """One config while it is read.

    Args:
        reader: config.json over the type's defaults.
    """

    def __init__(self, reader: ConfigReader) -> None:
        self.reader = reader
        self.ledger = Ledger()
        self.num_layers = self.size("num_layers")
        self.hidden_size = self.size("hidden_size")

    def size(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A size.

        Raises:
            ConfigError: It is missing, or no size.
        """
        found = self.reader.integer(name, minimum=minimum)
        if found is not None and found.value > MAX_SIZE:
            raise ConfigError(
                f"{found.source} is out of range.",
                found=f"{found.value:,}",
                expected=f"at most {MAX_SIZE:,}",
            )
        return self._choose(name, found, default)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0.

        Raises:
            ConfigError: It is missing or something else.
        """
        return self._choose(name, self.reader.number(name, above=0), default)

    def optional_number(self, name: str) -> float | None:
        """A number above 0, or None where the config is silent."""
        found = self.reader.number(name, above=0)
        return self.ledger.choose(name, found, 0.0) if found else None

    def flag(self, name: Flag) -> bool:
        """True or false, itself or by the key that says so; silence is false."""
        if isinstance(name, bool):
            return name
        found = self.reader.boolean(name)
        return self.ledger.choose(name, found, default=False) if found else False

    def window(self) -> int | None:
        """The sliding window, or None where there is none."""
        found = self.reader.integer("sliding_window")
        return found.value if found and found.value else None

    def layer_type(self, index: int) -> str | None:
        """What ``layer_types`` says about a layer, or None.

        Raises:
            ConfigError: The list is too short.
        """
        types = self.reader.texts("layer_types")
        if types is None:
            return None
        if len(types.value) < self.num_layers:
            raise ConfigError(
                f"{types.source} is too short.",
                found=f"{len(types.value)} types",
                expected=f"{self.num_layers}, one a layer",
            )
        kind = types.value[index]
        if kind not in {"full_attention", "sliding_attention"}:
            raise ConfigError(
                f"{types.source}: layers of this type are not supported here.",
                found=repr(kind)[:100],
                expected="full_attention, sliding_attention",
            )
        return kind

    def activation(self, name: str) -> str:
        """The activation by its name in ACTIVATIONS.

        Raises:
            ConfigError: It is unknown.
        """
        found = self.reader.text(name)
        if found is None:
            return "silu"
        if found.value not in ACTIVATIONS:
            raise ConfigError(
                f"{found.source} is not supported.",
                found=repr(found.value)[:100],
                expected=", ".join(ACTIVATIONS),
            )
        return ACTIVATIONS[found.value]

    def refuse(self, name: str, why: str) -> None:
        """Refuse a key that holds anything but null, false or zero.

        Raises:
            ConfigError: It does.
        """
        self.reader.mark(name)
        if value := self.reader.raw.get(name):
            raise ConfigError(
                f"{self.reader.source}: {name!r} is not supported: {why}.",
                found=repr(value)[:100],
                expected="null",
            )

    def _choose(self, name: str, found: Setting[V] | None, default: V | None) -> V:
        if found is not None:
            return self.ledger.record(name, found.value, found.source)
        if default is None:
            raise ConfigError(
                f"{self.reader.source}: {name!r} is missing.",
                hint="copy config.json from the original model beside the weights",
            )
        return self.ledger.record(name, default, "default")


Numbers = Callable[[Reading], Mapping[str, float | None]]
Flags = Mapping[str, Flag]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How a type of model differs from Llama.

    A flag is itself, or the key of config.json that says so.

    Args:
        rules: Its tensor names.
        defaults: What holds where config.json is silent.
        attention: Flags of AttentionConfig, by field.
        attention_numbers: Numbers of AttentionConfig, by field.
        mlp: Flags of MlpConfig, by field.
        model_numbers: Numbers of ModelConfig, by field.
        residual_multiplier: Key of what both halves of a layer are multiplied with.
        mixer: A layer's mixer, where it is not attention.
        feed_forward: A layer's feed-forward, where it is not an MLP.
        rope: A layer's rotation from its head size and index, where that differs by layer.
        window: A layer's sliding window.
        norms: Whether norms stand before, behind, or on both sides of a layer's halves.
        norm_kind: RMSNorm or LayerNorm.
        eps: Key of the norms' eps.
        unit_offset: Whether norms store their weights less one.
        activation: Key of the activation.
        check: Refuses what would compute something else.
    """

    rules: RuleBook
    defaults: Mapping[str, object] = field(default_factory=dict)
    attention: Flags = field(default_factory=dict)
    attention_numbers: Numbers | None = None
    mlp: Flags = field(default_factory=dict)
    model_numbers: Numbers | None = None
    residual_multiplier: str | None = None
    mixer: Callable[[Reading, int], MixerConfig] | None = None
    feed_forward: Callable[[Reading, int], FeedForwardConfig | None] | None = None
    rope: Callable[[Reading, int, int], RopeConfig | None] | None = None
    window: Callable[[Reading, int], int | None] | None = None
    norms: Literal["before", "behind", "both"] = "before"
    norm_kind: Literal["rms", "layer"] = "rms"
    eps: str = "rms_norm_eps"
    unit_offset: bool = False
    activation: str = "hidden_act"
    check: Callable[[Reading], None] | None = None


def hf_family(name: str, traits: Traits, *, section: str = "") -> Family:
    """A family for checkpoints whose config.json has this ``model_type``.

    Args:
        name: That type.
        traits: How it differs from Llama.
        section: Key of the language model's own config, in models that also see images.
    """
    return Family(
        name=name,
        matches=lambda checkpoint: model_type(checkpoint) == name,
        derive=lambda checkpoint: _derive(checkpoint, traits, section),
        rules=traits.rules,
        ignored=(".rotary_emb.inv_freq",),
        unused=lambda checkpoint: (*_extra_layers(checkpoint), *(SIGHT if section else ())),
    )


def model_type(checkpoint: Checkpoint) -> str | None:
    """What config.json calls the model, or None."""
    found = (checkpoint.config or {}).get("model_type")
    return found if isinstance(found, str) else None


def _derive(checkpoint: Checkpoint, traits: Traits, section: str) -> Derivation:
    own, source = checkpoint.config or {}, "config.json"
    if section:
        part = ConfigReader(own).section(section)
        own, source = part.raw if part else {}, f"{source}: {section}"
    reader = ConfigReader({**traits.defaults, **own}, source)
    reading = Reading(reader)
    ledger = reading.ledger
    if section:
        ledger.warn("the parts of the model that see images are left out: it reads text alone.")
    _check_layers(checkpoint, reading)
    if traits.check is not None:
        traits.check(reading)
    norm = NormConfig(
        reading.hidden_size,
        reading.number(traits.eps, 1e-6),
        traits.norm_kind,
        unit_offset=traits.unit_offset,
    )
    tied = not any(head in checkpoint.tensors for head in HEADS)
    source = "lm_head.weight" + (" (absent)" if tied else "")
    numbers: dict[str, Any] = {}
    if traits.model_numbers is not None:
        numbers.update(traits.model_numbers(reading))
    config = ModelConfig(
        vocab_size=_vocab_size(checkpoint, reading),
        hidden_size=reading.hidden_size,
        max_seq_len=read_max_seq_len(reader, ledger),
        layers=tuple(_layer(reading, traits, norm, i) for i in range(reading.num_layers)),
        final_norm=norm,
        tie_word_embeddings=ledger.settle(
            "tie_word_embeddings", tied, source, reader.boolean("tie_word_embeddings")
        ),
    )
    _refuse_unread(reader)
    return Derivation(
        replace(config, **numbers), tuple(ledger.values.values()), tuple(ledger.warnings)
    )


def _vocab_size(checkpoint: Checkpoint, reading: Reading) -> int:
    """By the embedding's rows, which fine-tuning may have changed."""
    declared = reading.reader.integer("vocab_size", minimum=1)
    info = checkpoint.tensors.get(_prefix(checkpoint) + "embed_tokens.weight")
    if info is None or len(info.shape) != 2:  # the plan reports it
        return reading.ledger.choose("vocab_size", declared, 1)
    return reading.ledger.settle("vocab_size", info.shape[0], info.name, declared)


def _extra_layers(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Behind the last layer: heads that predict further tokens."""
    reader = ConfigReader(checkpoint.config)
    count, extra = reader.integer("num_layers"), reader.integer("num_nextn_predict_layers")
    if count is None or extra is None:
        return ()
    first, number = count.value, min(extra.value, MAX_EXTRA_LAYERS)
    return tuple(f"{PREFIXES[0]}layers.{first + index}." for index in range(number))


def _prefix(checkpoint: Checkpoint) -> str:
    """What the names of the language model begin with."""
    for prefix in PREFIXES:
        if prefix + "embed_tokens.weight" in checkpoint.tensors:
            return prefix
    return PREFIXES[0]


def _check_layers(checkpoint: Checkpoint, reading: Reading) -> None:
    extra = _extra_layers(checkpoint)
    own = {n: info for n, info in checkpoint.tensors.items() if not n.startswith(extra)}
    reading.reader.mark("num_nextn_predict_layers")
    found = len(split_layers(own, _prefix(checkpoint)))
    if found != reading.num_layers:
        raise CheckpointError(
            "the file does not hold all layers.",
            found=f"{found} layers",
            expected=f"{reading.num_layers}, by {reading.reader.source}",
            hint="copy or download it again",
        )


def _layer(reading: Reading, traits: Traits, norm: NormConfig, index: int) -> LayerConfig:
    feed_forward = traits.feed_forward(reading, index) if traits.feed_forward else None
    mixer = traits.mixer or (lambda reading, index: _attention(reading, traits, norm, index))
    before = norm if traits.norms != "behind" else None
    behind = norm if traits.norms != "before" else None
    key = traits.residual_multiplier
    return LayerConfig(
        mixer=mixer(reading, index),
        mixer_norm=before,
        mixer_post_norm=behind,
        feed_forward=feed_forward or read_mlp(reading, traits.mlp, traits.activation),
        feed_forward_norm=before,
        feed_forward_post_norm=behind,
        residual_multiplier=reading.number(key, 1.0) if key else 1.0,
    )


def _attention(reading: Reading, traits: Traits, norm: NormConfig, index: int) -> AttentionConfig:
    heads = reading.size("num_attention_heads")
    kv_heads = reading.size("num_kv_heads", heads)
    dim = reading.size("head_dim", reading.hidden_size // heads or 1)
    if heads % kv_heads:
        raise ConfigError(
            f"{reading.reader.source}: {heads} heads cannot share {kv_heads} key/value heads.",
            expected='a "num_key_value_heads" that divides "num_attention_heads"',
        )
    rope = traits.rope(reading, dim, index) if traits.rope else read_rope(reading.reader, dim)
    config = AttentionConfig(
        hidden_size=reading.hidden_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        rope=rope,
        norm_eps=norm.eps,
        norm_unit_offset=norm.unit_offset,
        sliding_window=traits.window(reading, index) if traits.window else None,
    )
    if rope is not None:
        reading.ledger.record("rope_theta", rope.theta, "config.json")
    changes = _flags(reading, traits.attention)
    if traits.attention_numbers is not None:
        changes.update(traits.attention_numbers(reading))
    return replace(config, **changes)


def read_mlp(reading: Reading, flags: Flags, activation: str = "hidden_act") -> MlpConfig:
    """An MLP of ``intermediate_size``."""
    config = MlpConfig(
        hidden_size=reading.hidden_size,
        intermediate_size=reading.size("intermediate_size"),
        activation=reading.activation(activation),
    )
    return replace(config, **_flags(reading, flags))


def _flags(reading: Reading, flags: Flags) -> dict[str, Any]:
    return {name: reading.flag(value) for name, value in flags.items()}


def _refuse_unread(reader: ConfigReader) -> None:
    types = reader.raw.get("layer_types")
    if isinstance(types, list) and all(kind == "full_attention" for kind in types):
        reader.mark("layer_types")
    for key, value in reader.unread().items():
        if not is_neutral(key, value):
            raise ConfigError(
                f"{reader.source}: {key[:60]!r} is not known for this type of model.",
                found=repr(value)[:100],
                hint="take it out of config.json if it does not change what the model computes",
            )
