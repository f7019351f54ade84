"""Stop strings across any cut of the text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.text.stop import StopMatcher

pytestmark = pytest.mark.smoke


def run(parts: list[str], stop: list[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stop, include_stop=include_stop)
    text = "".join([matcher.push(part) for part in parts])
    text += matcher.flush()
    return text, matcher.matched


def expected(text: str, stop: list[str], *, include_stop: bool) -> tuple[str, str | None]:
    """The law, read off the whole text: the earliest begins first; of those, the shortest."""
    found = [(text.find(each), len(each), each) for each in stop if each in text]
    if not found:
        return text, None
    start, length, matched = min(found)
    return text[: start + length if include_stop else start], matched


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[left:right] for left, right in pairwise(edges)]


@given(
    text=st.text("ab", max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    places=st.lists(st.integers(0, 100), max_size=10),
    include_stop=st.booleans(),
)
def test_any_cut_gives_what_the_whole_text_gives(
    text: str, stop: list[str], places: list[int], include_stop: bool
) -> None:
    parts = cut(text, places)
    assert "".join(parts) == text
    assert run(parts, stop, include_stop=include_stop) == expected(
        text, stop, include_stop=include_stop
    )


@given(
    text=st.text("ab", max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    places=st.lists(st.integers(0, 100), max_size=10),
    num_free=st.integers(0, 10),
    include_stop=st.booleans(),
)
def test_none_ends_where_none_may(
    text: str, stop: list[str], places: list[int], num_free: int, include_stop: bool
) -> None:
    """What ends there is text, what begins there counts, and nothing more is held back for it."""
    parts = cut(text, places)
    free = sum(map(len, parts[:num_free]))
    matcher = StopMatcher(stop, include_stop=include_stop)
    shown = ""
    for number, part in enumerate(parts):
        shown += matcher.push(part, may_end=number >= num_free)
        so_far = "".join(parts[: number + 1])
        if number < num_free and not any(
            each.startswith(so_far[-n:]) for each in stop for n in range(1, len(so_far) + 1)
        ):
            assert shown.endswith(part)
    shown += matcher.flush()
    found = [
        (at, len(each), each)
        for each in stop
        if (at := text.find(each, max(free - len(each) + 1, 0))) >= 0
    ]
    start, length, matched = min(found, default=(len(text), 0, None))
    assert matcher.matched == matched
    assert shown == text[: start + length if include_stop else start]


@given(
    text=st.text("ab", max_size=20),
    stop=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stop: list[str]) -> None:
    matcher = StopMatcher(stop)
    passed = ""
    for length in range(1, len(text) + 1):
        passed += matcher.push(text[length - 1])
        if matcher.matched is not None:
            break
        so_far = text[:length]
        # all before the first place where a match begins or may begin, and nothing of it
        begun = [start for start in range(length) if _begins(so_far[start:], stop)]
        assert passed == so_far[: min(begun, default=length)]


def _begins(text: str, stop: list[str]) -> bool:
    return any(each.startswith(text) or text.startswith(each) for each in stop)


def test_text_without_stop_strings_passes_at_once() -> None:
    matcher = StopMatcher([])
    assert matcher.push("any") == "any"
    assert matcher.flush() == ""


def test_text_that_can_be_no_stop_string_passes_at_once() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the E") == "the "
    assert matcher.push("N") == ""
    assert matcher.push("d") == "ENd"
    assert matcher.push("E") == ""
    assert matcher.flush() == "E"


@pytest.mark.parametrize("include_stop", [False, True])
def test_nothing_comes_after_the_stop(include_stop: bool) -> None:
    matcher = StopMatcher(["END"], include_stop=include_stop)
    text = matcher.push("aEN") + matcher.push("Dbc")
    assert text == ("aEND" if include_stop else "a")
    assert matcher.matched == "END"
    assert matcher.push("more") == matcher.flush() == ""


def test_an_earlier_beginning_wins_over_an_earlier_end() -> None:
    assert run(["x", "ab", "cd", "e"], ["bc", "abcd"]) == ("x", "abcd")
    assert run(["x", "ab", "c"], ["bc", "abcd"]) == ("xa", "bc")


def test_a_false_start_begins_again_inside_itself() -> None:
    assert run(list("aaab"), ["aab"]) == ("a", "aab")
    assert run(["\n", "\n", "\n"], ["\n\n"]) == ("", "\n\n")
