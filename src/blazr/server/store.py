"""What clients ask the server to keep: by key and id; too much throws the oldest out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")

MAX_KEPT = 1000
MAX_KEPT_BYTES = 64_000_000


class Store(Generic[V]):
    """A bounded store; each key of the server sees its own entries.

    Args:
        max_entries: Most entries.
        max_bytes: Most bytes, as those who put entries count them.
    """

    def __init__(self, max_entries: int = MAX_KEPT, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, str], tuple[V, int]] = OrderedDict()
        self._num_bytes = 0

    def put(self, tenant: str, name: str, value: V, *, num_bytes: int) -> None:
        """Keep an entry, or replace it; it is now the youngest."""
        self.pop(tenant, name)
        self._entries[tenant, name] = value, num_bytes
        self._num_bytes += num_bytes
        while len(self._entries) > self._max_entries or self._num_bytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self._num_bytes -= freed

    def get(self, tenant: str, name: str) -> V | None:
        """An entry, if it is there."""
        found = self._entries.get((tenant, name))
        return None if found is None else found[0]

    def entries(self) -> Iterator[tuple[tuple[str, str], V, int]]:
        """Everything that is there, the oldest first: key and name, value, bytes."""
        for key, (value, num_bytes) in self._entries.items():
            yield key, value, num_bytes

    def pop(self, tenant: str, name: str) -> V | None:
        """Take an entry out, if it is there."""
        found = self._entries.pop((tenant, name), None)
        if found is None:
            return None
        self._num_bytes -= found[1]
        return found[0]
