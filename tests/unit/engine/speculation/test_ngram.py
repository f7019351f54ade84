"""What followed the last tokens before is proposed again."""

from __future__ import annotations

import pytest

from blazr.engine.speculation.ngram import NgramDrafter
from tests.support.drafts import running_sequence

pytestmark = pytest.mark.smoke


def propose(tokens: list[int], most: int = 4) -> tuple[int, ...] | None:
    draft = NgramDrafter().propose(running_sequence(tokens), most)
    return None if draft is None else draft.token_ids


def test_what_followed_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 1, 2]) == (3, 4, 5, 6)
    assert propose([1, 2, 3, 4, 5, 6, 1, 2], most=2) == (3, 4)


def test_the_place_with_most_in_common_counts_and_of_equals_the_latest() -> None:
    assert propose([9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2], most=1) == (3,)
    assert propose([9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], most=1) == (4,)


def test_what_repeats_goes_on_repeating() -> None:
    assert propose([1, 2, 3, 1, 2, 3, 1, 2], most=7) == (3, 1, 2, 3, 1, 2, 3)
    assert propose([5, 5, 5], most=3) == (5, 5, 5)


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 2, 3, 4]])
def test_of_what_is_new_nothing_is_known(tokens: list[int]) -> None:
    assert propose(tokens) is None


def test_a_single_token_counts_where_no_more_is_known() -> None:
    assert propose([1, 2, 3, 2], most=2) == (3, 2)
    assert propose([1, 2, 3, 4, 2, 5, 6, 1, 2], most=1) == (3,)
    several, single = kinds([1, 2, 3, 1, 2], most=1), kinds([1, 2, 3, 4, 2], most=1)
    assert several != single
    assert kinds([1, 2, 3, 4, 2, 3, 5, 2], most=1) not in (several, single)


def kinds(tokens: list[int], most: int = 4) -> list[str]:
    """Of each token that is proposed."""
    draft = NgramDrafter().propose(running_sequence(tokens), most)
    assert draft is not None
    count = len(draft.token_ids)
    return [draft.kind if place < draft.num_first else draft.kind_behind for place in range(count)]


def test_what_followed_at_two_places_is_another_kind() -> None:
    """As far as it did; what follows behind it may be another name."""
    apart, also = list(range(20, 30)), list(range(30, 40))
    once = kinds([1, 2, 3, 4, 5, 6, 1, 2])
    agreed = kinds([1, 2, 3, 4, 5, 6, *apart, 1, 2, 3, 4, 5, 6, *also, 1, 2])
    partly = kinds([1, 2, 3, 4, *apart, 1, 2, 3, 4, *also, 1, 2])
    never = kinds([1, 2, *apart, 1, 2, *also, 1, 2])
    assert [len(set(each)) for each in (once, agreed, partly, never)] == [1, 1, 2, 1]
    assert partly == [*agreed[:2], *never[:2]]
    assert len({once[0], agreed[0], never[0]}) == 3


def test_longer_matches_are_of_other_kinds() -> None:
    text = [*range(1, 20)]
    found = [kinds([*text, 50, *text[:match]], most=1)[0] for match in range(1, 15)]
    assert found == sorted(found, key=found.index)  # each kind is of consecutive lengths
    assert len(set(found)) == 6
    assert found[0] != found[1] != found[2]


def test_another_name_is_put_in_and_is_another_kind() -> None:
    text = [1, 2, 30, 3, 4, 30, 5, 6, 1, 2, 40, 3, 4]
    assert propose(text, most=2) == (40, 5)
    assert kinds(text) != kinds([3, 4, 30, 5, 6, 3, 4])
