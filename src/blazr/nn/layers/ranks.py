"""A network over several processes, its ranks: what each of them holds, and how they add up.

Each rank has a part of every layer: some heads, channels or experts. A matrix that makes such
channels is cut by rows; one that reads them is cut by columns, and what the ranks make of it adds
up to its product. In between nobody has to know of the others, but for means over all channels.

Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from blazr.core.errors import ConfigError

Runs = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """These rows of a matrix, and of its bias; or these elements of a vector, experts of a stack.

    Args:
        runs: Which.
        dim: The dimension that counts them.
    """

    runs: Runs
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """These columns of a matrix. Its bias is the first rank's, as outputs are added up.

    Args:
        runs: Which.
    """

    runs: Runs


@dataclass(frozen=True, slots=True)
class FirstRank:
    """The first rank has it, others have zeros: it is added to what is added up."""


Held = Rows | Columns | FirstRank
Parts = Mapping[str, Held]
"""What a rank holds, by the names of parameters or of the modules that own them.

What is not named is whole on every rank.
"""


@dataclass(frozen=True, slots=True)
class Rank:
    """One of several ranks.

    Args:
        number: From 0 on.
        count: How many ranks there are, at least 1.
    """

    number: int = 0
    count: int = 1

    def run(self, size: int, what: str, *, unit: int = 1) -> range:
        """Its run of ``size`` things; runs differ by one unit at most.

        Args:
            size: How many there are.
            what: What they are, for people.
            unit: So many stay together.

        Raises:
            ConfigError: There are fewer units than ranks.
        """
        units = size // unit
        if size % unit or units < self.count:
            raise ConfigError(
                f"{what} cannot be cut in {self.count}.",
                found=f"{size} {what}",
                expected="at least one for each rank",
            )
        first, last = (units * number // self.count for number in (self.number, self.number + 1))
        return range(first * unit, last * unit)

    def equal_run(self, size: int, what: str) -> range:
        """The same where all must hold equally many, because they remember something of each.

        Raises:
            ConfigError: They cannot.
        """
        if size % self.count:
            raise ConfigError(
                f"{what} cannot be cut in {self.count} equal parts.",
                found=f"{size} {what}",
                expected=f"a multiple of {self.count}",
            )
        return self.run(size, what)

    def shared_run(self, size: int, users: int, what: str) -> range:
        """Its run of things that equally many users each share, one behind the other.

        Where there are fewer of them than ranks, several ranks have the same one.

        Args:
            size: How many there are.
            users: How many use them; they are cut in equal runs.
            what: What they are, for people.

        Raises:
            ConfigError: Neither all have equally many, nor equally many have each.
        """
        if users % self.count == 0 and size % self.count == 0:
            return self.run(size, what)
        if users % self.count == 0 and self.count % size == 0:
            own = self.number * size // self.count
            return range(own, own + 1)
        raise ConfigError(
            f"{what} cannot be cut in {self.count}.",
            found=f"{size} {what}, used by {users} heads",
            expected=f"both multiples of {self.count}, or {size} a divisor of it",
        )


def channels_of(run: range, size: int, offset: int = 0) -> range:
    """The channels of a run of heads, in a row that holds the channels of all heads in order.

    Args:
        run: The heads.
        size: Channels per head.
        offset: Channels before those of head 0.
    """
    return range(offset + run.start * size, offset + run.stop * size)


def whole_blocks(size: int, count: int) -> int:
    """How many channels to keep together, so that blocks of packed weights are cut at their edges.

    Args:
        size: Channels.
        count: Ranks.
    """
    return next((unit for unit in (256, 32) if size % unit == 0 and size // unit >= count), 1)


def under(prefix: str, parts: Parts) -> dict[str, Held]:
    """Parts of a module as those of the module it is in."""
    return {f"{prefix}.{name}": held for name, held in parts.items()}


class Ranks:
    """Communication of a rank's network with the other ranks.

    This class is the case of a single rank, where every operation returns its input.

    Attributes:
        rank: The rank that this process is.
    """

    rank = Rank()

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors on every rank (all-reduce)."""
        return x

    def join_columns(self, x: Tensor, columns: tuple[range, ...]) -> Tensor:
        """Return all ranks' columns in order, (..., all columns), on every rank.

        Args:
            x: (..., own columns).
            columns: Those of each rank.
        """
        del columns
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """Return each rank's tensor, all of one shape, on every rank (all-gather)."""
        return [x]

    def send(self, x: Tensor, number: int) -> None:
        """Send a tensor to the rank of this number, which calls `receive`."""

    def receive(self, like: Tensor, number: int) -> Tensor:
        """Receive a tensor from another rank.

        Args:
            like: A tensor of its shape and dtype.
            number: The rank that sends.
        """
        del number
        return like


ALONE = Ranks()


class Joined:
    """A module that computes together with the same module on other ranks.

    Attributes:
        ranks: The communication with them.
    """

    ranks: Ranks = ALONE


def mean_square(x: Tensor, ranks: Ranks, groups: int = 1) -> Tensor:
    """The mean of the squares over channels of which each rank has equally many.

    Args:
        x: (..., own channels), float32.
        ranks: The communication with the ranks that hold the others.
        groups: Number of equal groups of channels, of which each has a mean of its own. A group may
            be spread over several ranks.

    Returns:
        (..., 1), float32, the mean of the group that the channels belong to.
    """
    rank = ranks.rank
    size = rank.count // gcd(rank.count, groups)  # ranks that share a group
    first = rank.number // size * size
    sums = ranks.gather(x.square().sum(-1, keepdim=True))[first : first + size]
    return torch.stack(sums).sum(0) / (size * x.shape[-1])
