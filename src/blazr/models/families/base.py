"""What a family is, and the record of where each value of a config came from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.causal_lm import ModelConfig
from blazr.models.checkpoint.base import Checkpoint, TensorInfo
from blazr.models.families.config_reader import ConfigReader, Setting
from blazr.models.families.rules import RuleBook

Scalar = int | float | bool | str
V = TypeVar("V", int, float, bool, str)

_NUMBER = re.compile(r"(0|[1-9]\d{0,8})\.", re.ASCII)
DEFAULT_MAX_SEQ_LEN = 4096
MAX_MAX_SEQ_LEN = 2**26


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


def split_layers(tensors: Mapping[str, TensorInfo], beginning: str) -> list[TensorGroup]:
    """The tensors of each layer, in order.

    Args:
        tensors: All tensors.
        beginning: Of the names of those of layers, up to the number: ``"model.layers."``.

    Raises:
        CheckpointError: There are no layers, or their numbers have a gap.
    """
    groups: dict[int, dict[str, TensorInfo]] = {}
    start = len(beginning)
    for name, info in tensors.items():
        found = _NUMBER.match(name, start) if name.startswith(beginning) else None
        if found:
            groups.setdefault(int(found[1]), {})[name[found.end() :]] = info
    if not groups:
        raise CheckpointError("there are no layers.", expected=f"tensors {beginning}0.*")
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

    def settle(self, name: str, value: V, source: str, declared: Setting[V] | None) -> V:
        """Take what the tensors say; warn, once for all layers, where config.json disagrees."""
        note = ""
        if declared is not None and declared.value != value:
            note = f"config.json says {declared.key} = {declared.value}"
            if (name, value) not in self.values:  # not yet said of another layer
                self.warn(f"{note}, the tensors say {value} ({source}); the tensors win.")
        return self.record(name, value, f"tensor {source}", note)

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
    """

    reader: ConfigReader
    training: ConfigReader
    ledger: Ledger
    layers: Sequence[TensorGroup]
    hidden_size: int
    eps: float


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
    """

    name: str
    matches: Callable[[Checkpoint], bool]
    derive: Callable[[Checkpoint], Derivation]
    rules: RuleBook
    ignored: tuple[str, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    derive_from: Callable[[Source], Derivation] | None = None
