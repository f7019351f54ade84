"""Hugging Face decoders: what their configs say, as differences from Llama.

config.json is believed, as it does not go stale here; the plan of the load compares every size with
the tensors. Keys that nobody has read are dealt with in `unread`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.families.base import (
    HF_ALIASES,
    ConfigReader,
    Derivation,
    Family,
    Ledger,
    Setting,
    Source,
    V,
    read_max_seq_len,
    split_layers,
    value_or,
)
from blazr.models.families.hf.names import LLAMA_RULES
from blazr.models.families.hf.rope import read_rope
from blazr.models.families.rules import MTP, RuleBook
from blazr.models.families.unread import check_unread
from blazr.nn.layers.attention import AttentionConfig
from blazr.nn.layers.base import FeedForwardConfig, LayerConfig, MixerConfig, NormConfig
from blazr.nn.layers.mlp import MlpConfig
from blazr.nn.layers.mtp import MtpConfig
from blazr.nn.layers.rope import RopeConfig

BESIDE, BEHIND = MTP + "layers.0.", ""  # see `Traits.mtp`
_MTP_PROJECTIONS = ("eh_proj", "nextn.eh_proj", "input_proj")
Flag = bool | str

# Kinds of layers in lists of these.
LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"
MAX_EXTRA_LAYERS = 16
MAX_SIZE = 2**28
SILU = ("silu", "swish")  # both names mean one activation
ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


class Reading:
    """One config while it is read: its values, and where each came from.

    Args:
        reader: config.json over the type's defaults.
        tensors: What the file holds, where several forms of one type go by one config.
        ledger: Where values are noted; None for a new one.
    """

    def __init__(
        self,
        reader: ConfigReader,
        tensors: Mapping[str, TensorInfo],
        ledger: Ledger | None = None,
    ) -> None:
        self.reader = reader
        self.tensors = tensors
        self.ledger = ledger or Ledger()
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

    def mlp_type(self, index: int) -> str | None:
        """``"dense"`` or ``"sparse"``, as ``mlp_layer_types`` says; see `layer_type`."""
        return self.layer_type(index, ("dense", "sparse"), "mlp_layer_types")

    def layer_type(
        self,
        index: int,
        known: Collection[str] = (FULL, SLIDING),
        key: str = "layer_types",
    ) -> str | None:
        """What a list of the layers' types says about a layer, or None where there is no list.

        Args:
            index: The layer.
            known: Types that may be there.
            key: Where the list is.

        Raises:
            ConfigError: The list is too short, or holds something unknown.
        """
        types = self.reader.texts(key)
        if types is None:
            return None
        if len(types.value) < self.num_layers:
            raise ConfigError(
                f"{types.source} is too short.",
                found=f"{len(types.value)} types",
                expected=f"{self.num_layers}, one a layer",
            )
        kind = types.value[index]
        if kind not in known:
            raise ConfigError(
                f"{types.source}: layers of this type are not supported here.",
                found=repr(kind)[:100],
                expected=", ".join(known),
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

    def derived(self, name: str, value: float) -> int:
        """A size that follows from others.

        Raises:
            ConfigError: It is none.
        """
        if not 1 <= value <= MAX_SIZE:
            raise ConfigError(
                f"{self.reader.source}: what follows for {name!r} is out of range.",
                found=f"{value:g}"[:100],
                expected=f"1 to {MAX_SIZE:,}",
            )
        return int(value)

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
Settings = Callable[[Reading], Mapping[str, object]]
Flags = Mapping[str, Flag]
Norms = Literal["before", "behind", "both"]
NormKind = Literal["rms", "layer"]


def attends(reading: Reading, index: int, *, by_turns: bool, other: str = LINEAR) -> bool:
    """Whether a layer attends to tokens.

    Args:
        reading: The config.
        index: The layer.
        by_turns: Whether it does where types are not listed.
        other: The type of those that do not.
    """
    kind = reading.layer_type(index, (other, FULL))
    return by_turns if kind is None else kind == FULL


def every_slides(reading: Reading, index: int) -> bool:
    """Every layer has the window."""
    del reading, index
    return True


def qwen_slides(reading: Reading, index: int) -> bool:
    """Where the window is enabled: by ``layer_types``, or from ``max_window_layers`` on."""
    first = value_or(reading.reader.integer("max_window_layers"), 0)
    if not reading.flag("use_sliding_window"):
        return False
    kind = reading.layer_type(index)
    return kind == SLIDING if kind else index >= first


def no_rope(reading: Reading, dim: int, index: int) -> RopeConfig | None:
    """Positions are told otherwise."""
    del reading, dim, index
    return None


def interleaved_rope(reading: Reading, dim: int, index: int) -> RopeConfig:
    """The channels of a pair lie side by side."""
    del index
    return read_rope(reading.reader, dim, interleaved=True)


def counted_rope(reading: Reading, dim: int, index: int) -> RopeConfig:
    """The rotated channels are counted: ``rotary_dim`` (MiniMax).

    Raises:
        ConfigError: They do not fit the heads.
    """
    del index
    rope = read_rope(reading.reader, dim)
    rotated = reading.reader.integer("rotary_dim", minimum=1)
    if rotated is None:
        return rope
    if rotated.value % 2 or rotated.value > dim:
        raise ConfigError(
            f"{rotated.source}: the rotated channels do not fit the heads.",
            found=f"{rotated.value} of {dim}",
            expected="an even number, at most all",
        )
    return replace(rope, dim=rotated.value)


def type_by_turns(reading: Reading, index: int, every: int = 2, *, last: bool = True) -> str:
    """By ``layer_types``, or a window in all of every n layers but the last, or the first."""
    return reading.layer_type(index) or (SLIDING if (index + last) % every else FULL)


def slides_by_turns(reading: Reading, index: int) -> bool:
    """The same, or a window in every second layer."""
    return type_by_turns(reading, index) == SLIDING


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
        model_numbers: Numbers and parts of ModelConfig, by field.
        residual_multiplier: What both halves of a layer are multiplied with, or its key.
        empty_layers: Layers that have no tensors, where a type may have such.
        layer: A whole layer, where its halves do not look like Llama's.
        mixer: A layer's mixer, or None where it is attention.
        feed_forward: A layer's feed-forward, where it is not an MLP.
        rope: A layer's rotation from its head size and index, where that differs by layer.
        slides: Whether a layer has the sliding window, if the config has one; None for no layer.
        norms: Whether norms stand before, behind, or on both sides of a layer's halves, or what
            says so.
        norm_kind: RMSNorm or LayerNorm.
        eps: Key of the norms' eps.
        norm_of: Says both, where a config does.
        unit_offset: Whether norms store their weights less one.
        norm_weight: Whether norms have weights.
        norm_bias: Whether LayerNorms have biases.
        parallel: Whether both halves of a layer see its input.
        has_own_norm: Whether the second half does through a norm of its own.
        activation: Key of the activation.
        expects: The only values of keys whose others would compute something else.
        prepare: Puts an older spelling of the config in today's.
        ignored_keys: Keys of the config that change nothing here.
        names: Keys of a value, the first to look for first, where they differ from HF_ALIASES.
        rules_of: Tensor names of one checkpoint, where they differ by layer.
        unused: What the names of tensors begin with that the network has no place for.
        buffers: What the names of tensors end with that hold nothing learned.
        mtp: What the names of the layer of a module for multi-token prediction begin with, if the
            type may have one: BESIDE, BEHIND for one more layer behind the others, or something
            else.
        mtp_layer: That layer; None for the type's own, with attention.
    """

    rules: RuleBook = LLAMA_RULES
    defaults: Mapping[str, object] = field(default_factory=dict)
    attention: Flags = field(default_factory=dict)
    attention_numbers: Numbers | None = None
    mlp: Flags = field(default_factory=dict)
    model_numbers: Settings | None = None
    residual_multiplier: str | Callable[[Reading], float] | None = None
    empty_layers: Callable[[Reading], list[int]] | None = None
    layer: Callable[[Reading, NormConfig, int], LayerConfig] | None = None
    mixer: Callable[[Reading, NormConfig, int], MixerConfig | None] | None = None
    feed_forward: Callable[[Reading, int], FeedForwardConfig | None] | None = None
    rope: Callable[[Reading, int, int], RopeConfig | None] | None = None
    slides: Callable[[Reading, int], bool] | None = None
    norms: Norms | Callable[[Reading], Norms] = "before"
    norm_kind: NormKind = "rms"
    eps: str = "rms_norm_eps"
    norm_of: Callable[[Reading], tuple[NormKind, str]] | None = None
    unit_offset: bool = False
    norm_weight: Flag = True
    norm_bias: bool = True
    parallel: Flag = False
    has_own_norm: Flag = False
    activation: str = "hidden_act"
    expects: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    prepare: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None
    ignored_keys: tuple[str, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules_of: Callable[[Checkpoint], RuleBook] | None = None
    unused: Callable[[Checkpoint], tuple[str, ...]] = lambda _: ()
    buffers: tuple[str, ...] = ()
    mtp: str | None = None
    mtp_layer: Callable[[Reading, NormConfig], LayerConfig] | None = None

    def family(self, name: str) -> Family:
        """A family for checkpoints whose config.json has this ``model_type``.

        Args:
            name: That type.
        """
        names = {**HF_ALIASES, **self.names}

        def derive(checkpoint: Checkpoint) -> Derivation:
            reader = ConfigReader(checkpoint.config, "config.json", names)
            own = Source(reader=reader, tensors=checkpoint.tensors, rules=self.rules)
            prepared = reader.over(self.prepare(reader.raw)) if self.prepare else reader
            found = derive_from(replace(own, reader=prepared), self, Ledger())
            rules = self.rules_of(checkpoint) if self.rules_of else self.rules
            if found.config.mtp is not None:
                rules = rules.with_mtp(_mtp_layer(own, self, len(found.config.layers)))
            unused = (*self.unused(checkpoint), *_extra_layers(own))
            return replace(found, rules=rules, unused=unused)

        return Family(
            name=name,
            matches=lambda checkpoint: model_type(checkpoint) == name,
            derive=derive,
            derive_from=lambda source: derive_from(source, self),
            rules=self.rules,
            ignored=(".rotary_emb.inv_freq", *self.buffers),
            keys=names,
        )


def count_of(config: Mapping[str, object], key: str) -> int:
    """A whole number; where it is something else the config has been refused before."""
    found = config.get(key)
    return found if isinstance(found, int) else 1


def model_type(checkpoint: Checkpoint) -> str | None:
    """What config.json calls the model, or None."""
    found = checkpoint.config.get("model_type")
    return found if isinstance(found, str) else None


def derive_from(source: Source, traits: Traits, ledger: Ledger | None = None) -> Derivation:
    """The config of a model in any dialect.

    Args:
        source: What its files say.
        traits: How its type differs from Llama.
        ledger: Where values are noted, and keys of config.json that nobody reads; None for a new
            one, and any key may be left unread.

    Raises:
        CheckpointError: Layers are missing.
        ConfigError: A value is missing, wrong, or asks for what is not implemented.
    """
    own = source.reader.raw
    # a default does not hold for a value that the config has under another of its names
    known = {
        key
        for keys in source.reader.names.values()
        if any(own.get(key) is not None for key in keys)
        for key in keys
    }
    known.update(source.without_defaults)
    defaults = {key: value for key, value in traits.defaults.items() if key not in known}
    reader = source.reader.over({**defaults, **own})
    reading = Reading(reader, source.tensors, ledger)
    extra = _extra_layers(replace(source, reader=reader))
    in_layers = {n: info for n, info in source.tensors.items() if not n.startswith(extra)}
    empty = traits.empty_layers(reading) if traits.empty_layers else ()
    num_found = len(split_layers(in_layers, _layers_begin(source), empty=empty))
    if num_found != reading.num_layers:
        raise CheckpointError(
            "the file does not hold all layers.",
            found=f"{num_found} layers",
            expected=f"{reading.num_layers}, by {reader.source}",
            hint="copy or download it again",
        )
    reader.mark(*traits.ignored_keys)
    for key, allowed in traits.expects.items():
        reader.expect(key, *allowed)
    kind, eps = traits.norm_of(reading) if traits.norm_of else (traits.norm_kind, traits.eps)
    norm = NormConfig(
        reading.hidden_size,
        reading.number(eps, 1e-6),
        kind,
        unit_offset=traits.unit_offset,
        has_weight=reading.flag(traits.norm_weight),
        has_bias=traits.norm_bias,
    )
    head, is_there = _tensor_name(source, "lm_head.weight")
    numbers: dict[str, Any] = dict(traits.model_numbers(reading)) if traits.model_numbers else {}
    # the embedding's rows tell, as fine-tuning may have changed their number
    vocab_size = reader.integer("vocab_size", minimum=1)
    embedding = source.tensors.get(_tensor_name(source, "embed_tokens.weight")[0])
    if embedding is None or len(embedding.shape) != 2:  # the plan reports it
        num_tokens = reading.ledger.choose("vocab_size", vocab_size, 1)
    else:
        num_tokens = reading.ledger.reconcile(
            "vocab_size", embedding.shape[0], embedding.name, vocab_size
        )
    config = ModelConfig(
        vocab_size=num_tokens,
        hidden_size=reading.hidden_size,
        max_seq_len=read_max_seq_len(reader, reading.ledger),
        layers=tuple(_layer(reading, traits, norm, i) for i in range(reading.num_layers)),
        final_norm=norm,
        tie_word_embeddings=reading.ledger.reconcile(
            "tie_word_embeddings",
            not is_there,
            head if is_there else f"{head} (absent)",
            reader.boolean("tie_word_embeddings"),
        ),
        head_bias=_tensor_name(source, "head_bias")[1],
        mtp=_mtp(reading, source, traits, norm),
    )
    if ledger is not None:
        check_unread(reader, ledger)
    return reading.ledger.derivation(replace(config, **numbers), source.rules)


def _tensor_name(source: Source, parameter: str) -> tuple[str, bool]:
    """The name of a parameter's tensor, and whether it is there."""
    names = source.rules.sources(parameter)
    found = next((name for name in names if name in source.tensors), None)
    return found or next(iter(names), parameter), found is not None


def _extra_layers(source: Source) -> tuple[str, ...]:
    """Behind the last layer: heads that predict further tokens."""
    reader = source.reader
    count = reader.integer("num_layers")
    extra = reader.integer("num_nextn_predict_layers")
    if count is None or extra is None:
        return ()
    first = count.value
    number = min(extra.value, MAX_EXTRA_LAYERS)
    return tuple(f"{_layers_begin(source)}{first + index}." for index in range(number))


def _mtp(reading: Reading, source: Source, traits: Traits, norm: NormConfig) -> MtpConfig | None:
    """The module for multi-token prediction, if the file has one that uses the model's embedding.

    Its layer may be the only one of its kind, so it is not counted where layers take turns.
    """
    if traits.mtp is None or MTP + "embed_tokens.weight" in source.tensors:
        return None
    layer = _mtp_layer(source, traits, reading.num_layers)
    names = (MTP + "fc", *(layer + each for each in _MTP_PROJECTIONS))
    if not any(f"{name}.weight" in source.tensors for name in names):
        return None
    if traits.mtp_layer is not None:
        return MtpConfig(layer=traits.mtp_layer(reading, norm), norm=norm)
    is_behind = traits.mtp == BEHIND
    traits = traits if is_behind else replace(traits, mixer=None)
    index = reading.num_layers if is_behind else 0
    return MtpConfig(layer=_layer(reading, traits, norm, index), norm=norm)


def _mtp_layer(source: Source, traits: Traits, num_layers: int) -> str:
    """What the names of the tensors of its layer begin with."""
    is_behind = traits.mtp == BEHIND
    return f"{_layers_begin(source)}{num_layers}." if is_behind else traits.mtp or ""


def _layers_begin(source: Source) -> str:
    """What the names of layers begin with, in models that also see images as well."""
    beginnings = source.rules.layer_beginnings
    found = (each for each in beginnings if any(name.startswith(each) for name in source.tensors))
    return next(found, beginnings[0])


def _layer(reading: Reading, traits: Traits, norm: NormConfig, index: int) -> LayerConfig:
    if traits.layer is not None:
        return traits.layer(reading, norm, index)
    feed_forward = traits.feed_forward(reading, index) if traits.feed_forward else None
    mixer = traits.mixer(reading, norm, index) if traits.mixer else None
    norms = traits.norms(reading) if callable(traits.norms) else traits.norms
    before = norm if norms != "behind" else None
    behind = norm if norms != "before" else None
    factor = traits.residual_multiplier
    if isinstance(factor, str):
        factor = partial(Reading.number, name=factor, default=1.0)
    is_parallel = reading.flag(traits.parallel)
    shares_norm = is_parallel and not reading.flag(traits.has_own_norm)
    return LayerConfig(
        mixer=mixer or read_attention(reading, traits, norm, index),
        mixer_norm=before,
        mixer_post_norm=behind,
        feed_forward=feed_forward or read_mlp(reading, traits.mlp, traits.activation),
        feed_forward_norm=None if shares_norm else before,
        feed_forward_post_norm=behind,
        residual_multiplier=factor(reading) if factor else 1.0,
        is_parallel=is_parallel,
    )


def read_attention(
    reading: Reading,
    traits: Traits,
    norm: NormConfig,
    index: int,
    *,
    heads: tuple[int, int] | None = None,
    count: int | None = None,
) -> AttentionConfig:
    """Attention as the config and the traits have it.

    Args:
        reading: The config.
        traits: How its type differs from Llama.
        norm: For the eps of norms of queries and keys.
        index: The layer.
        heads: How many heads of keys and values it has, and their size, where layers differ.
        count: How many heads of queries it has, where layers differ.

    Raises:
        ConfigError: Something is missing, contradicts itself, or is of an unknown kind.
    """
    count = count or reading.size("num_attention_heads")
    kv_heads, dim = heads or (
        reading.size("num_kv_heads", count),
        reading.size("head_dim", reading.hidden_size // count or 1),
    )
    if count % kv_heads:
        raise ConfigError(
            f"{reading.reader.source}: {count} heads cannot share {kv_heads} key/value heads.",
            expected='a "num_key_value_heads" that divides "num_attention_heads"',
        )
    rope = traits.rope(reading, dim, index) if traits.rope else read_rope(reading.reader, dim)
    window = reading.reader.integer("sliding_window") if traits.slides else None
    slides = traits.slides is not None and traits.slides(reading, index)
    config = AttentionConfig(
        hidden_size=reading.hidden_size,
        num_heads=count,
        num_kv_heads=kv_heads,
        head_dim=dim,
        rope=rope,
        norm_eps=norm.eps,
        norm_unit_offset=norm.unit_offset,
        sliding_window=window.value or None if window and slides else None,
    )
    if rope is not None:
        reading.ledger.record("rope_theta", rope.theta, reading.reader.source.partition(":")[0])
    numbers = traits.attention_numbers(reading) if traits.attention_numbers else {}
    changes: dict[str, Any] = {**_flags(reading, traits.attention), **numbers}
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
