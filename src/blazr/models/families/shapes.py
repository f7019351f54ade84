"""What tensor names and shapes alone say about a model's layers.

Several tensors bear witness to most sizes; the majority is believed, so that one tensor of a wrong
shape is reported as that and does not spoil the size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blazr.core.errors import CheckpointError
from blazr.models.checkpoint.base import TensorInfo

_NUMBER = re.compile(r"(0|[1-9]\d{0,8})\.", re.ASCII)


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
