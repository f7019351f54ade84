"""Typed reads of a foreign config.json, under all the names a value goes by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from blazr.core.errors import ConfigError

T = TypeVar("T")

# What each value may be called beside its own name; a dot leads into a nested object.
ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
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
)
# The same for configs of the transformers library: its own names come first, and the words for a
# sampler's settings mean that.
HF_ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{name: (name, *others) for name, others in ALIASES.items()},
        "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
        "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "kv_heads"),
        "max_seq_len": ("max_position_embeddings", "max_seq_len"),
        "experts_per_tok": ("num_experts_per_tok", "experts_per_tok"),
        "kv_latent_dim": ("kv_lora_rank",),
        "q_latent_dim": ("q_lora_rank",),
        "d_rope": ("qk_rope_head_dim",),
        "moe_intermediate_size": ("moe_intermediate_size", "intermediate_size"),
    }
)
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


class ConfigReader:
    """Reads values by the first of their names; null counts as absent.

    Args:
        raw: The parsed file, or None where there is none.
        source: Its name, for messages.
        names: Every name of a value, the first to look for first; None for a value's own name
            and then those of ``ALIASES``.
    """

    def __init__(
        self,
        raw: Mapping[str, object] | None,
        source: str = "config.json",
        names: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.raw = raw or {}
        self.source = source
        self.unknown: dict[str, object] = {}  # keys of sections that nobody knows, with their path
        self._asked: set[str] = set()
        self.names = names

    def names_of(self, name: str) -> tuple[str, ...]:
        """Every key that a value may be under, the first to look for first."""
        if self.names is not None:
            return self.names.get(name, (name,))
        return (name, *ALIASES.get(name, ()))

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

    def mark(self, key: str) -> None:
        """Note that somebody has dealt with a key."""
        self._asked.add(key)

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
        keys = self.names_of(name)
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
