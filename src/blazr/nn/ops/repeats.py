"""Where the last tokens of a text stood before."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

LONGEST_MATCH = 32  # tokens that are compared
MOST_CANDIDATES = 64  # places that are compared, the latest first
NOWHERE = -1


def find_repeat(tokens: array[int], most: int) -> tuple[int, int, int]:
    """The place in a text behind most of its last tokens, the latest of equals.

    Places behind two of them are compared, or, where there is none, those behind one.

    Args:
        tokens: The text.
        most: As many tokens behind the place are compared with those behind another.

    Returns:
        How many tokens come before the place, or NOWHERE; how many of these are the last ones, up
        to LONGEST_MATCH; how many tokens behind it are those behind the latest other place, or
        NOWHERE if there is none. Behind the end, what follows the place comes again.
    """
    text = np.frombuffer(tokens, np.int32)
    length = len(text)
    places = _places(text, 2) or _places(text, 1)
    if not places:
        return NOWHERE, 0, NOWHERE
    matches = [_match(text, place) for place in places]
    match = max(matches)
    place = places[matches.index(match)]
    others = [each for each in places[:2] if each != place]
    if not others:
        return place, match, NOWHERE
    num_agreed, other = 0, others[0]
    while (
        num_agreed < min(most, length - other)
        and text[place + num_agreed % (length - place)] == text[other + num_agreed]
    ):
        num_agreed += 1
    return place, match, num_agreed


def _places(text: np.ndarray, count: int) -> list[int]:
    """Places behind tokens that are like the last ones, the latest first."""
    num_places = max(len(text) - count, 0)
    is_like = np.ones(num_places, bool)
    for each in range(count if num_places else 0):
        is_like &= text[each : each + num_places] == text[num_places + each]
    found: list[int] = (np.flatnonzero(is_like)[: -MOST_CANDIDATES - 1 : -1] + count).tolist()
    return found


def _match(text: np.ndarray, place: int) -> int:
    """How many tokens before a place are the last ones."""
    most = min(place, LONGEST_MATCH)
    differ = np.flatnonzero(text[place - most : place] != text[len(text) - most :])
    return most if not len(differ) else most - 1 - int(differ[-1])


def repeat_finder() -> Callable[[array[int], int], tuple[int, int, int]]:
    """`find_repeat` at the least cost a step; to be used by one thread."""
    # these import torch, and who reads options knows drafters without it
    from blazr.nn.kernels.cpu.compiled import missing
    from blazr.nn.kernels.cpu.repeats import RepeatFinder

    return find_repeat if missing() else RepeatFinder(LONGEST_MATCH, MOST_CANDIDATES)
