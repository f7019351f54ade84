"""One Hugging Face config while it is read: sizes, numbers and flags, and where each came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TypeVar

from blazr.core.errors import ConfigError
from blazr.models.checkpoint.base import TensorInfo
from blazr.models.families.base import Ledger
from blazr.models.families.config_reader import ConfigReader, Setting

V = TypeVar("V", int, float, bool, str)
Flag = bool | str

MAX_SIZE = 2**28
SILU = ("silu", "swish")  # both names mean one activation
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

    def window(self) -> int | None:
        """The sliding window, or None where there is none."""
        found = self.reader.integer("sliding_window")
        return found.value if found and found.value else None

    def layer_type(
        self,
        index: int,
        known: Collection[str] = ("full_attention", "sliding_attention"),
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

    def expect(self, name: str, *allowed: object) -> None:
        """Refuse a key that holds anything but null or one of these values.

        Raises:
            ConfigError: It does.
        """
        self.reader.mark(name)
        found = self.reader.raw.get(name)
        if found is not None and found not in allowed:
            raise ConfigError(
                f"{self.reader.source}: {name!r} is not supported.",
                found=repr(found)[:100],
                expected=", ".join(repr(value) for value in allowed),
            )

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
