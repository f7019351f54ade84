"""Where the last tokens of a text stood before."""

from __future__ import annotations

from array import array
from itertools import chain, islice
from random import Random

import pytest

from blazr.nn.ops.repeats import (
    LONGEST_MATCH,
    MOST_CANDIDATES,
    MOST_REPLACED,
    NONE,
    RECENT,
    WIDEST,
    find_repeat,
    repeat_finder,
)

pytestmark = pytest.mark.smoke

NOTHING = ((), 0, NONE, False)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], NOTHING),
        ([1], NOTHING),
        ([1, 2, 3, 4], NOTHING),
        ([5, 5], ((5, 5, 5), 1, NONE, False)),
        ([1, 2, 3, 2], ((3, 2, 3), 1, NONE, False)),
        ([1, 2, 3, 1, 2], ((3, 1, 2), 2, NONE, False)),
        # of single tokens the latest, with 3 behind both
        ([2, 3, 7, 2, 3, 8, 8, 2], ((3, 8, 8), 1, 1, True)),
        # not the latest: 9 stands before that one
        ([9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], ((3, 8, 1), 3, 0, False)),
        ([1, 2, 3, 1, 2, 4, 1, 2], ((4, 1, 2), 2, 0, False)),
        ([1, 2, 1, 2, 1, 2], ((1, 2, 1), 4, 3, False)),  # behind the end, 1 2 comes again
    ],
)
def test_what_followed_the_place_behind_most_of_the_last_tokens_is_found(
    tokens: list[int], expected: object
) -> None:
    assert find_repeat(array("i", tokens), 3) == expected
    assert repeat_finder()(array("i", tokens), 3) == expected


def finds(tokens: list[int], most: int) -> tuple[tuple[int, ...], bool]:
    """What follows, and whether tokens may have been replaced in it."""
    following, _, _, is_edited = find_repeat(array("i", tokens), most)
    return following, is_edited


def test_one_name_stands_for_another() -> None:
    get, name, other, called, end = [1, 2], [30], [40, 41], [5, 6, 7], [8, 9]
    before = [*get, *name, *called, *name, *end]
    assert finds([*before, *get, *other, *called], 4) == ((*other, *end), True)
    assert finds([*before, *get, *name, *called], 3) == ((*name, *end), False)


def test_several_names_stand_for_others_and_are_known_again() -> None:
    row = [1, 2, 30, 3, 4, 31, 5, 6, 30, 7, 8, 31, 9]
    other = [{30: 40, 31: 41}.get(each, each) for each in row]
    for known in (7, 8, 10, 11):  # a name just begun may also be that of another place
        following, is_edited = finds([*row, *other[:known]], len(row) - known)
        assert (list(following), is_edited) == (other[known:], True)


def test_what_also_stands_as_it_is_stays() -> None:
    row, other = [1, 2, 30, 3, 4, 5, 30, 6], [1, 2, 40, 3, 4, 5]
    assert finds([*row, *other], 2) == ((40, 6), True)
    assert finds([*row, *other[:3], 3, 30, 3, 4, 5], 2) == ((30, 6), False)
    far = list(range(100, 100 + RECENT))
    row, other = [*row[:5], *far, 30, 6], [1, 2, 40, 3, 4, *far]
    assert finds([*row, 30, *other], 2) == ((40, 6), True)


def test_the_place_most_like_the_end_counts_where_names_differ() -> None:
    """Not the latest, nor the one behind most of the last tokens."""
    text = [1, 2, 3, 30, 6, 7, 50, 9, 9, 8, 6, 7, 60, 1, 2, 3, 40, 6, 7]
    assert finds(text, 1) == ((50,), True)


@pytest.mark.parametrize(("width", "is_found"), [(1, True), (WIDEST, True), (WIDEST + 1, False)])
def test_what_stands_for_others_has_a_limit(width: int, is_found: bool) -> None:
    name, other = list(range(30, 30 + width)), list(range(60, 60 + width))
    text = [1, 2, *name, 3, 4, *name, 5, 1, 2, *other, 3, 4]
    expected = (other if is_found else name)[0]
    assert finds(text, 1) == ((expected,), is_found)


def test_so_many_differences_are_followed() -> None:
    """The place with one more that is the same before the last difference would count otherwise."""
    for num, expected in ((MOST_REPLACED, 70), (MOST_REPLACED + 1, 71)):
        names = range(20, 20 + num)
        row = [each for name in names for each in (1, 2, name)]
        other = [each + 20 if each >= 20 else each for each in row]
        long, short = [5, 6, *row, 3, 4, 70], [*row[3:], 3, 4, 71]
        following, _ = finds([*long, *short, 5, 6, *other, 3, 4], 1)
        assert following == (expected,)


@pytest.mark.parametrize("num_kinds", [2, 3, 9, 300])
def test_kernel_and_reference_agree(num_kinds: int) -> None:
    rng, find = Random(num_kinds), repeat_finder()
    num_edited = 0
    for _ in range(300):
        tokens = array("i", [rng.randrange(num_kinds) for _ in range(rng.randrange(400))])
        if rng.random() < 0.7:  # what repeats for long, with changes
            again = tokens[rng.randrange(len(tokens) + 1) :]
            for _ in range(rng.randrange(4)):
                start = rng.randrange(len(again) + 1)
                new = [rng.randrange(num_kinds) for _ in range(rng.randrange(WIDEST + 2))]
                again[start : start + rng.randrange(WIDEST + 2)] = array("i", new)
            tokens += again + again[: rng.randrange(80)]
        most = rng.randint(1, 20)
        found = find(tokens, most)
        assert found == find_repeat(tokens, most)
        following, match, num_agreed, is_edited = found
        num_edited += is_edited
        assert len(following) == (most if match else 0)
        assert bool(match) == (len(tokens) > 0 and tokens[-1] in tokens[:-1])
        assert NONE <= num_agreed <= most
    assert num_edited


def test_what_is_compared_has_limits() -> None:
    for find in (find_repeat, repeat_finder()):
        assert find(array("i", [*range(100), *range(100)]), 4)[1] == LONGEST_MATCH
    unlike = iter(range(100, 1000))
    others = [[*islice(unlike, WIDEST + 1), 1, 2] for _ in range(MOST_CANDIDATES)]
    for find in (find_repeat, repeat_finder()):
        assert find(array("i", [9, 1, 2, *chain(*others), 9, 1, 2]), 1)[1] == 2
        assert find(array("i", [9, 1, 2, *chain(*others[1:]), 9, 1, 2]), 1)[1] == 3
