"""A model's tensors in one floating type, by the names that formulas use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from blazr.bench.reference.refusal import NoReferenceError

Rows = slice | Tensor | None


class Source(Protocol):
    """A file, or several, that hold tensors."""

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""

    def read(self, name: str, rows: Rows = None) -> Tensor:
        """A tensor, or some of its rows, in a floating type that holds its numbers exactly."""

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""


class Renamed:
    """The tensors of a source under other names.

    Args:
        source: Where they are read.
        names: The source's names by ours, of all tensors.
    """

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        self._source = source
        self._own = names

    @property
    def names(self) -> Collection[str]:
        """Of all tensors."""
        return self._own.keys()

    def read(self, name: str, rows: Rows = None) -> Tensor:
        """A tensor, or some of its rows."""
        return self._source.read(self._own[name], rows)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self._source.shape(self._own[name])


@dataclass(frozen=True)
class Weights:
    """A view of the tensors whose names begin alike.

    ``weights["q_proj.weight"]`` is the tensor of that name behind ``prefix``. What a file calls
    otherwise stands in ``aliases``: whole names, or what is before the last dot.

    Args:
        source: Where tensors are read.
        dtype: What tensors come in: float64, or float32 to see what that loses.
        prefix: How the names begin.
        aliases: The file's names by ours.
    """

    source: Source
    dtype: torch.dtype = torch.float64
    prefix: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)

    def under(self, prefix: str, aliases: Mapping[str, str] | None = None) -> Weights:
        """The tensors whose names go on like this."""
        return replace(
            self,
            prefix=self.prefix + prefix,
            aliases=self.aliases if aliases is None else aliases,
        )

    @property
    def names(self) -> Collection[str]:
        """All names of the file."""
        return self.source.names

    def name(self, name: str) -> str:
        """What the file calls a tensor.

        Raises:
            NoReferenceError: The file has no such tensor.
        """
        found = self._spelled(name)
        if found not in self.names:
            raise NoReferenceError(f"a model without the tensor {found[:60]!r}")
        return found

    def _spelled(self, name: str) -> str:
        stem, dot, part = name.rpartition(".")
        own = self.aliases.get(name) or self.aliases.get(stem, stem) + dot + part
        return self.prefix + own

    def __contains__(self, name: str) -> bool:
        return self._spelled(name) in self.names

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name, None)

    def rows(self, name: str, rows: Rows) -> Tensor:
        """Some rows of a tensor: a slice, or int64 numbers."""
        return self.source.read(self.name(name), rows).to(self.dtype)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self.source.shape(self.name(name))

    def get(self, name: str) -> Tensor | None:
        """A tensor, or None where there is none."""
        if name not in self:
            return None
        return self[name]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """``x W^T + b``, without ``b`` where the file has none: (..., in) to (..., out)."""
    y = x @ weights[name + ".weight"].T
    bias = weights.get(name + ".bias")
    return y if bias is None else y + bias
