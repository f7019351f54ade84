"""The seed of a run: ``pytest --seed N`` draws other random models and other random inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

_CHOSEN = [0]


def choose(number: int) -> None:
    """Let this be the seed of the run; 0, which changes no seed, where none is chosen."""
    _CHOSEN[0] = number


def run_seed(seed: int = 0) -> int:
    """The seed in this run of what has this one in a usual run."""
    return (seed + 1_000_003 * _CHOSEN[0]) % 2**32


def examples(count: int) -> int:
    """How many examples Hypothesis draws: `count` in a run with a seed, else a quarter of them."""
    return count if _CHOSEN[0] else max(count // 4, 5)


def some_of(choices: Sequence[T], data: st.DataObject) -> Sequence[T]:
    """What an example of Hypothesis tries: all in a run with a seed, else one that is drawn."""
    return choices if _CHOSEN[0] else [data.draw(st.sampled_from(choices))]
