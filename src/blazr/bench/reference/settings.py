"""What a config.json or a GGUF file's metadata can say, and taking it as what it has to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

from blazr.bench.reference.refusal import NoReferenceError

# A boolean or an integer is a float, too.
Setting: TypeAlias = "str | float | Sequence[Setting] | Mapping[str, Setting] | None"
Settings: TypeAlias = Mapping[str, Setting]
T = TypeVar("T")
_KINDS = ((int, float), str, (list, tuple), Mapping)


def as_like(value: Setting, like: T, key: str) -> T:
    """A value, if it is a number where ``like`` is one, a text, a list, or a section.

    Raises:
        NoReferenceError: It is something else.
    """
    kind = next(kind for kind in _KINDS if isinstance(like, kind))
    if not isinstance(value, kind):
        raise NoReferenceError(f"a model whose {key!r} is {str(value)[:60]!r}")
    return cast("T", value)


def number(value: Setting, key: str) -> float | None:
    """A number, or None where nothing is said."""
    return None if value is None else as_like(value, 0.0, key)


def text(value: Setting, key: str) -> str | None:
    """A text, or None where nothing is said."""
    return None if value is None else as_like(value, "", key)


def section(value: Setting, key: str) -> Settings:
    """What a section says, or nothing where there is none."""
    empty: Settings = {}
    return as_like(value or empty, empty, key)
