"""Where the last tokens of a text stood before."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from blazr.nn.ops.repeats import (
    LONGEST_MATCH,
    MOST_CANDIDATES,
    NOWHERE,
    find_repeat,
    repeat_finder,
)

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], (NOWHERE, 0, NOWHERE)),
        ([1], (NOWHERE, 0, NOWHERE)),
        ([1, 2, 3, 4], (NOWHERE, 0, NOWHERE)),
        ([5, 5], (1, 1, NOWHERE)),
        ([1, 2, 3, 2], (2, 1, NOWHERE)),
        ([1, 2, 3, 1, 2], (2, 2, NOWHERE)),
        ([2, 3, 7, 2, 3, 8, 2], (4, 1, 1)),  # of single tokens the latest, with 3 behind both
        ([9, 1, 2, 3, 8, 1, 2, 3, 9, 1, 2], (3, 3, 1)),  # not the latest: 9 stands before that one
        ([1, 2, 3, 1, 2, 4, 1, 2], (5, 2, 0)),
        ([1, 2, 1, 2, 1, 2], (4, 4, 4)),  # behind the end, 1 2 comes again
    ],
)
def test_the_place_behind_most_of_the_last_tokens_is_found(
    tokens: list[int], expected: tuple[int, int, int]
) -> None:
    assert find_repeat(array("i", tokens), 5) == expected
    assert repeat_finder()(array("i", tokens), 5) == expected


@pytest.mark.parametrize("num_kinds", [2, 3, 9, 300])
def test_kernel_and_reference_agree(num_kinds: int) -> None:
    rng, find = Random(num_kinds), repeat_finder()
    for _ in range(300):
        tokens = array("i", [rng.randrange(num_kinds) for _ in range(rng.randrange(400))])
        if rng.random() < 0.5:  # what repeats for long
            tokens += tokens[rng.randrange(len(tokens) + 1) :]
            tokens += tokens[: rng.randrange(80)]
        most = rng.randint(1, 20)
        assert find(tokens, most) == find_repeat(tokens, most)
        place, match, _ = find_repeat(tokens, most)
        if place == NOWHERE:
            assert not tokens or tokens[-1] not in tokens[:-1]
        else:
            assert 0 < match <= place < len(tokens)
            assert tokens[place - match : place] == tokens[-match:]


def test_what_is_compared_has_limits() -> None:
    match = find_repeat(array("i", [*range(100), *range(100)]), 4)[1]
    assert match == LONGEST_MATCH
    far = [9, 1, 2, *([7, 1, 2] * MOST_CANDIDATES), 9, 1, 2]
    for find in (find_repeat, repeat_finder()):
        assert find(array("i", far), 1)[1] == 2
        assert find(array("i", far[:3] + far[6:]), 1)[1] == 3
