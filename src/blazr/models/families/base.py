"""What a family is, typed reads of its config, and the record of where each value came from."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.families.rules import RuleBook

Scalar = int | float | bool | str
T = TypeVar("T")
D = TypeVar("D")
V = TypeVar("V", int, float, bool, str)

_LAYER_NUMBER = re.compile(r"(0|[1-9]\d{0,8})\.", re.ASCII)
DEFAULT_MAX_SEQ_LEN = 4096
MAX_MAX_SEQ_LEN = 2**26
# What each value may be called beside its own name; a dot leads into a nested object.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("d_model", "n_embd"),
    "num_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_heads", "n_heads", "attention.num_heads"),
    "num_kv_heads": ("num_key_value_heads", "kv_heads", "attention.num_kv_heads"),
    "head_dim": ("attention.head_dim",),
    "max_seq_len": ("max_position_embeddings",),
    "rope_theta": ("attention.rope_theta", "rope_parameters.rope_theta"),
    "rope_scaling": ("attention.rope_scaling", "rope_parameters"),
    "mamba2_num_heads": ("ssm.num_heads",),
    "mamba2_head_dim": ("ssm.head_dim", "ssm_cfg.headdim"),
    "mamba2_state_size": ("ssm.state_size", "ssm_cfg.d_state"),
    "mamba2_expand": ("ssm.expand",),
    "mamba2_chunk_size": ("ssm.chunk_size",),
    "mamba2_conv_kernel": ("ssm.conv_kernel",),
    "mamba2_n_groups": ("ssm.n_groups", "ssm_cfg.ngroups"),
    "mamba3_complex_rope": ("ssm.complex_rope",),
    "mamba3_mimo_rank": ("ssm.mimo_rank",),
    "mamba3_use_conv": ("ssm.use_conv",),
    "kv_latent_dim": ("kv_lora_rank", "attention.kv_latent_dim"),
    "q_latent_dim": ("q_lora_rank", "attention.q_latent_dim"),
    "d_rope": ("qk_rope_head_dim", "attention.d_rope"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe.num_experts"),
    "experts_per_tok": (
        "num_experts_per_tok",
        "top_k",
        "moe.experts_per_tok",
        "moe.num_experts_per_tok",
    ),
    "shared_expert_enabled": ("moe.shared_expert_enabled", "moe.shared_expert"),
    "moe_intermediate_size": ("moe.intermediate_size", "intermediate_size"),
    "mamba_layers": ("hybrid_layers.ssm_layers",),
}
ALL_NAMES = {name: (name, *others) for name, others in ALIASES.items()}
# The same for configs of the transformers library: its own names come first, and the words for a
# sampler's settings mean that.
HF_ALIASES: Mapping[str, tuple[str, ...]] = {
    **ALL_NAMES,
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "kv_heads"),
    "max_seq_len": ("max_position_embeddings", "max_seq_len"),
    "experts_per_tok": ("num_experts_per_tok", "experts_per_tok"),
    "kv_latent_dim": ("kv_lora_rank",),
    "q_latent_dim": ("q_lora_rank",),
    "d_rope": ("qk_rope_head_dim",),
    "moe_intermediate_size": ("moe_intermediate_size", "intermediate_size"),
}
MAX_INTEGER = 2**40


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A value, the key it was found under, and in which file."""

    value: T
    key: str
    file: str

    @property
    def source(self) -> str:
        """``"config.json: rope_theta"``."""
        return f"{self.file}: {self.key}"


def value_or(found: Setting[T] | None, default: D) -> T | D:
    """What was found, or else something."""
    return default if found is None else found.value


class ConfigReader:
    """Reads values by the first of their names; null counts as absent, but see `is_true`.

    Args:
        raw: The parsed file; empty where there is none.
        source: Its name, for messages.
        names: Every name of a value, the first to look for first; by default a value's own name
            and then those of ``ALIASES``.
    """

    def __init__(
        self,
        raw: Mapping[str, object],
        source: str = "config.json",
        names: Mapping[str, tuple[str, ...]] = ALL_NAMES,
    ) -> None:
        self.raw = raw
        self.source = source
        self.unknown: dict[str, object] = {}  # keys of sections that nobody knows, with their path
        self._asked: set[str] = set()
        self.names = names

    def over(self, raw: Mapping[str, object]) -> ConfigReader:
        """The same names over other values."""
        return ConfigReader(raw, self.source, self.names)

    def integer(self, name: str, *, minimum: int = 0) -> Setting[int] | None:
        """A whole number from ``minimum`` to 2**40.

        Raises:
            ConfigError: It is something else; the message names the key.
        """
        return self._read(name, f"a whole number from {minimum}", lambda v: _integer(v, minimum))

    def number(self, name: str, *, above: float | None = None) -> Setting[float] | None:
        """A finite number, larger than ``above`` where that is given.

        Raises:
            ConfigError: It is something else; the message names the key.
        """
        wanted = "a number" if above is None else f"a number above {above:g}"
        return self._read(name, wanted, lambda v: _number(v, above))

    def boolean(self, name: str) -> Setting[bool] | None:
        """True or false.

        Raises:
            ConfigError: It is something else; the message names the key.
        """
        return self._read(name, "true or false", lambda v: v if isinstance(v, bool) else None)

    def is_true(self, name: str, *, default: bool) -> bool:
        """Whether a setting is true; null is not, to programs that ask whether it is.

        Args:
            name: The setting.
            default: What holds where the config is silent.

        Raises:
            ConfigError: It is something else than true, false or null; the message names the key.
        """
        found = self.boolean(name)
        is_null = any(key in self.raw for key in self.names.get(name, (name,)))
        return found.value if found else default and not is_null

    def text(self, name: str) -> Setting[str] | None:
        """A string.

        Raises:
            ConfigError: It is something else; the message names the key.
        """
        return self._read(name, "a string", _text)

    def integers(self, name: str) -> Setting[list[int]] | None:
        """A list of whole numbers.

        Raises:
            ConfigError: It is something else; the message names the key.
        """
        return self._read(name, "a list of whole numbers", lambda v: _list(v, _whole))

    def texts(self, name: str) -> Setting[list[str]] | None:
        """A list of strings.

        Raises:
            ConfigError: It is something else; the message names the key.
        """
        return self._read(name, "a list of strings", lambda v: _list(v, _text))

    def numbers(self, name: str) -> Setting[list[float]] | None:
        """A list of finite numbers.

        Raises:
            ConfigError: It is something else; the message names the key.
        """
        return self._read(name, "a list of numbers", lambda v: _list(v, _number))

    def mark(self, *keys: str) -> None:
        """Note that somebody has dealt with keys."""
        self._asked.update(keys)

    def expect(self, key: str, *allowed: object) -> None:
        """Refuse a key that holds anything but null or one of these values.

        Raises:
            ConfigError: It does.
        """
        self.mark(key)
        found = self.raw.get(key)
        if found is not None and found not in allowed:
            raise ConfigError(
                f"{self.source}: {key!r} is not supported.",
                found=repr(found)[:100],
                expected=", ".join(repr(value) for value in allowed),
            )

    def unread(self) -> dict[str, object]:
        """What is there that nobody has asked for, by key."""
        return {key: value for key, value in self.raw.items() if key not in self._asked}

    def section(self, name: str) -> ConfigReader | None:
        """A nested object, with a reader of its own.

        Raises:
            ConfigError: It is something else; the message names the key.
        """
        found = self._read(name, "an object", lambda v: v if isinstance(v, Mapping) else None)
        return ConfigReader(found.value, f"{self.source}: {found.key}") if found else None

    def _read(
        self, name: str, wanted: str, convert: Callable[[object], T | None]
    ) -> Setting[T] | None:
        keys = self.names.get(name, (name,))
        for position, key in enumerate(keys):
            outer, _, inner = key.partition(".")
            self._asked.add(outer)
            raw = self.raw.get(outer)
            if inner:
                raw = raw.get(inner) if isinstance(raw, Mapping) else None
            if raw is None:
                continue
            value = convert(raw)
            if value is None:
                raise ConfigError(
                    f"{self.source}: {key!r} has a wrong value.",
                    found=repr(raw)[:100],
                    expected=wanted,
                )
            for other in keys[position + 1 :]:
                if self.raw.get(other) == raw:  # another name for the same, and no stray
                    self._asked.add(other)
            return Setting(value, key, self.source)
        return None


def _integer(value: object, minimum: int) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    number = _whole(value)
    return number if number is not None and minimum <= number <= MAX_INTEGER else None


def _number(value: object, above: float | None = None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and (above is None or number > above) else None


def _list(value: object, convert: Callable[[object], T | None]) -> list[T] | None:
    """A list of what every item becomes; None where one becomes nothing, or there is no list."""
    if not isinstance(value, list):
        return None
    found = [item for each in value if (item := convert(each)) is not None]
    return found if len(found) == len(value) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Size:
    """A size and the first tensor that has it."""

    value: int
    source: str


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that share the beginning of their names.

    Args:
        prefix: That beginning, for example ``"layers.0."``.
        tensors: By the rest of the name.
    """

    prefix: str
    tensors: Mapping[str, TensorInfo]

    def has(self, beginning: str) -> bool:
        """Whether any name goes on like this."""
        return any(name.startswith(beginning) for name in self.tensors)

    def size(self, *witnesses: tuple[str, int], hint: int | None = None) -> Size:
        """The size that most of the witnesses agree on.

        Args:
            witnesses: Names and dimensions that should have it.
            hint: Decides where as many say one thing as another.

        Raises:
            CheckpointError: None of the tensors is there, or they are empty.
        """
        found = [
            Size(info.shape[dim], self.prefix + name)
            for name, dim in witnesses
            if (info := self.tensors.get(name)) is not None and dim < len(info.shape)
        ]
        if not found:
            raise self.missing(name for name, _ in witnesses)
        votes = Counter(size.value for size in found)
        best = max(votes.values())
        tied = [size for size in found if votes[size.value] == best]
        chosen = next((size for size in tied if size.value == hint), tied[0])
        if not chosen.value:
            raise CheckpointError(f"tensor {chosen.source} is empty.")
        return chosen

    def missing(self, names: Iterable[str]) -> CheckpointError:
        """The error for a group that holds none of these names."""
        near = sorted(self.tensors)[:8]
        return CheckpointError(
            f"{self.prefix}{next(iter(names))} is missing, and nothing else tells its size.",
            found=", ".join(name[:60] for name in near) or "no tensors",
            hint="the file is incomplete, or of a kind that blazr does not know",
        )


def split_layers(
    tensors: Mapping[str, TensorInfo], beginning: str, *, empty: Iterable[int] = ()
) -> list[TensorGroup]:
    """The tensors of each layer, in order.

    Args:
        tensors: All tensors.
        beginning: Of the names of those of layers, up to the number: ``"model.layers."``.
        empty: Layers that have none.

    Raises:
        CheckpointError: There are no layers, or their numbers have a gap.
    """
    groups: dict[int, dict[str, TensorInfo]] = {}
    start = len(beginning)
    for name, info in tensors.items():
        found = _LAYER_NUMBER.match(name, start) if name.startswith(beginning) else None
        if found:
            groups.setdefault(int(found[1]), {})[name[found.end() :]] = info
    if not groups:
        names = ", ".join(name[:60] for name in list(tensors)[:4])
        inside = next((name for name in tensors if beginning in name), None)
        raise CheckpointError(
            "there are no layers.",
            found=f"tensors such as {names}" if tensors else "no tensors",
            expected=f"tensors {beginning}0.*",
            hint=(
                f"a program has put {inside.partition(beginning)[0][:40]!r} before the names: save"
                " the model that it wrapped"
            )
            if inside is not None
            else "",
        )
    for number in empty:
        groups.setdefault(number, {})
    for expected, number in enumerate(sorted(groups)):
        if number != expected:
            raise CheckpointError(
                f"layer {expected} is missing.",
                found=f"{len(groups)} layers, the last of them {max(groups)}",
                expected=f"{beginning}{expected}.*",
                hint="the file is incomplete: copy or download it again",
            )
    return [TensorGroup(f"{beginning}{i}.", groups[i]) for i in range(len(groups))]


@dataclass(frozen=True, slots=True)
class Derived:
    """One value of the model's config and where it came from.

    Args:
        name: Its canonical key, for example ``"num_attention_heads"``.
        value: What it is.
        source: ``"tensor layers.0.mamba2.mixer.A_log"``, ``"config.json: rope_theta"``,
            ``"default"`` or ``"assumed"``.
        note: Anything a reader should know.
    """

    name: str
    value: Scalar
    source: str
    note: str = ""

    @property
    def is_assumed(self) -> bool:
        """Whether neither the tensors nor a file says so."""
        return self.source == "assumed"


@dataclass(slots=True)
class Ledger:
    """Collects values and warnings while a config is derived; equal entries are kept once."""

    values: dict[tuple[str, Scalar], Derived] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    def record(self, name: str, value: V, source: str, note: str = "") -> V:
        """Note where a value came from, and hand it on."""
        self.values.setdefault((name, value), Derived(name, value, source, note))
        return value

    def warn(self, message: str) -> None:
        """Note something the user should know."""
        self.warnings.setdefault(message)

    def reconcile(self, name: str, value: V, source: str, declared: Setting[V] | None) -> V:
        """Take what the tensors say; warn, once for all layers, where config.json disagrees."""
        note = ""
        if declared is not None and declared.value != value:
            note = f"config.json says {declared.key} = {declared.value}"
            if (name, value) not in self.values:  # not yet said of another layer
                self.warn(f"{note}, the tensors say {value} ({source}); the tensors win.")
        return self.record(name, value, f"tensor {source}", note)

    def size(
        self, group: TensorGroup, reader: ConfigReader, name: str, *witnesses: tuple[str, int]
    ) -> int:
        """The size that most tensors have; where they are divided, config.json decides.

        Args:
            group: The tensors.
            reader: config.json.
            name: Its canonical key.
            witnesses: Names and dimensions that should have it.

        Raises:
            CheckpointError: None of the tensors is there, or they are empty.
            ConfigError: config.json has a wrong value.
        """
        declared = reader.integer(name)
        found = group.size(*witnesses, hint=value_or(declared, None))
        return self.reconcile(name, found.value, found.source, declared)

    def derivation(self, config: ModelConfig, rules: RuleBook) -> Derivation:
        """All that was found."""
        return Derivation(config, tuple(self.values.values()), tuple(self.warnings), rules)

    def choose(self, name: str, declared: Setting[V] | None, default: V) -> V:
        """Take what config.json says, or the default, for what tensors cannot tell."""
        if declared is None:
            return self.record(name, default, "default")
        return self.record(name, declared.value, declared.source)


def read_max_seq_len(reader: ConfigReader, ledger: Ledger) -> int:
    """The context in tokens.

    Raises:
        ConfigError: It is beyond reason.
    """
    declared = reader.integer("max_seq_len", minimum=1)
    if declared is not None and declared.value > MAX_MAX_SEQ_LEN:
        raise ConfigError(
            f"{declared.source} is out of range.",
            found=f"{declared.value:,} tokens",
            expected=f"at most {MAX_MAX_SEQ_LEN:,}",
        )
    return ledger.choose("max_seq_len", declared, DEFAULT_MAX_SEQ_LEN)


@dataclass(frozen=True, slots=True)
class Derivation:
    """A model's config and how it was found.

    Args:
        config: The config.
        values: Where each of its values came from.
        warnings: What the user should know.
        rules: Tensor names to parameter names.
        unused: What the names of tensors begin with that the network has no place for.
    """

    config: ModelConfig
    values: tuple[Derived, ...]
    warnings: tuple[str, ...]
    rules: RuleBook
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """What every layer's derivation needs.

    Args:
        reader: config.json.
        training: The training run's notes, where they are about this model.
        ledger: Where values and warnings are noted.
        layers: All layers' tensors.
        hidden_size: C.
        eps: Of the RMSNorms.
        sliding_window: Tokens that a query of attention sees, or None for all.
    """

    reader: ConfigReader
    training: ConfigReader
    ledger: Ledger
    layers: Sequence[TensorGroup]
    hidden_size: int
    eps: float
    sliding_window: int | None = None

    def reconcile(self, name: str, value: int, source: str) -> int:
        """Take the whole number that the tensors say; see `Ledger.reconcile`."""
        return self.ledger.reconcile(name, value, source, self.reader.integer(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A config and tensors, under Hugging Face's names or those of another dialect.

    Args:
        reader: The config, under the names that its values have there.
        tensors: The tensors.
        rules: Their names.
        without_defaults: Keys for which the family's defaults do not hold: where the dialect does
            not name a value, it means its own.
    """

    reader: ConfigReader
    tensors: Mapping[str, TensorInfo]
    rules: RuleBook
    without_defaults: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Translates one kind of checkpoint.

    Args:
        name: As users see it.
        matches: Whether a checkpoint is of this kind, from its tensor names.
        derive: Finds the config, and the rules of one checkpoint.
        rules: Tensor names to parameter names, as far as they do not depend on the checkpoint.
        ignored: Suffixes of tensors that hold nothing to load.
        keys: Names of each value in config.json, the usual one first.
        derive_from: Finds the config from the same words in another dialect.
        takes: What such a model reads beside text: ``image``, ``video`` or ``audio``.
        has_bidirectional_prompts: Whether each token of a prompt with images attends to all of it.
    """

    name: str
    matches: Callable[[Checkpoint], bool]
    derive: Callable[[Checkpoint], Derivation]
    rules: RuleBook
    ignored: tuple[str, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    derive_from: Callable[[Source], Derivation] | None = None
    takes: frozenset[str] = frozenset()
    has_bidirectional_prompts: bool = False
