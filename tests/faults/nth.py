"""Fail the n-th call of something, for every n, in the manner of SQLite's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

R = TypeVar("R")


class Nth:
    """Counts calls and fails one of them.

    Args:
        n: Which one, from 1 on.
        error: Makes what is raised.
    """

    def __init__(self, n: int, error: Callable[[], BaseException]) -> None:
        self.n = n
        self.passed = 0
        self.is_over = False  # whether nothing is to fail any more
        self._error = error

    @property
    def was_hit(self) -> bool:
        """Whether there was an n-th call."""
        return self.passed >= self.n

    def check(self) -> None:
        """Count a call.

        Raises:
            BaseException: It is the n-th.
        """
        if self.is_over:
            return
        self.passed += 1
        if self.passed == self.n:
            raise self._error()

    def around(self, call: Callable[..., R]) -> Callable[..., R]:
        """The same function, but its n-th call fails."""

        def counted(*args, **kwargs) -> R:
            self.check()
            return call(*args, **kwargs)

        return counted


def every_nth(
    error: Callable[[], BaseException], *, first: int = 1, step: int = 1, most: int = 10**6
) -> Iterator[Nth]:
    """One fault after the other, until the last one was not reached any more.

    Args:
        error: Makes what is raised.
        first: The first call to fail.
        step: How many calls further the next one is.
        most: The last n, where they are too many.
    """
    for n in range(first, most + 1, step):
        nth = Nth(n, error)
        yield nth
        if not nth.was_hit:
            return
