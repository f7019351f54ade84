"""The one registry type: rows by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Generic, Protocol, TypeVar

from blazr.core.errors import UnknownNameError


class Named(Protocol):
    """A row that knows its name."""

    @property
    def name(self) -> str:
        """What it is called."""


N = TypeVar("N", bound=Named)
V = TypeVar("V")


class Table(Mapping[str, V], Generic[V]):
    """Rows by name; an unknown name is answered with the known ones and the closest.

    A row that needs an optional or heavy import is written as a string ``"package.module:name"``
    in ``lazy`` and imported when it is first asked for.

    Args:
        name: What a row is called in messages, for example ``"vocabulary"``.
        rows: Rows by name, in the order they are tried.
        lazy: Rows to import on first use.
    """

    def __init__(
        self, name: str, rows: Mapping[str, V], *, lazy: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._rows = dict(rows)
        self._lazy = dict(lazy or {})
        # resolving a lazy row must not change the order
        self._names = tuple(dict.fromkeys((*self._rows, *self._lazy)))

    @staticmethod
    def of(name: str, rows: Iterable[N]) -> Table[N]:
        """A table of rows that know their names, in the order they are tried."""
        return Table(name, {row.name: row for row in rows})

    def __getitem__(self, key: str) -> V:
        if key in self._rows:
            return self._rows[key]
        if key in self._lazy:
            module, _, attribute = self._lazy[key].partition(":")
            row: V = getattr(import_module(module), attribute)
            self._rows[key] = row
            return row
        raise self.unknown(key)

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def unknown(self, key: str, *, instead: str = "") -> UnknownNameError:
        """The error for a name that is no row's.

        Args:
            key: The name.
            instead: What could have stood there besides a row's name.
        """
        close = get_close_matches(str(key), list(self), n=1)
        expected = ", ".join(self) or "(the table is empty)"
        return UnknownNameError(
            f"unknown {self.name} {str(key)[:100]!r}.",
            expected=f"{expected}, or {instead}" if instead else expected,
            hint=f"did you mean {close[0]!r}?" if close else "",
        )
