"""What followed the last tokens of a text where they, or tokens like them, stood before."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

LONGEST_MATCH = 64  # tokens that are the same; no more are compared
MOST_CANDIDATES = 64  # places that are compared, the latest first
WIDEST = 6  # tokens that stand for others, and these
MOST_REPLACED = 4  # different replacements that are followed
REPLACED_COST = 2  # what each counts against a place, in tokens that are the same
RECENT = 24  # tokens at the end, of those compared, among which none is that others stand for
NONE = -1

_LIMITS = (LONGEST_MATCH, MOST_CANDIDATES, WIDEST, MOST_REPLACED, REPLACED_COST, RECENT)


# Tokens that may follow a text, and what is known of where they come from; see `find_repeat`.
Repeat = tuple[tuple[int, ...], int, int, bool]


def find_repeat(tokens: array[int], most: int) -> Repeat:
    """What followed a place in a text that is most like its end.

    Places behind its last two tokens are compared or, where there is none, those behind the last
    one. What comes before a place and what comes before the end are compared backwards. Where they
    differ, a few tokens may stand for a few others, as one name does for another, if the two tokens
    before both are the same. The place counts where most tokens are the same, less what
    replacements cost; of equals the latest. In what follows it tokens are replaced likewise.

    Args:
        tokens: The text.
        most: Tokens that are wanted, at least 1. Behind the end, what follows the place comes
            again.

    Returns:
        The tokens, none where the last one stood nowhere before; how many before the place are the
        last ones, up to LONGEST_MATCH; how many of the tokens are what follows the latest other
        place, or NONE where there is no other; whether any others may stand for some of them.
    """
    text = tokens.tolist()
    places = _places(text, 2) or _places(text, 1)
    if not places:
        return (), 0, NONE, False
    found = [_align(text, place) for place in places]
    best = max(found, key=lambda each: each.score)
    recent = text[max(best.start, len(text) - RECENT) :]
    replaced = [pair for pair in best.replaced if not _is_in(pair[0], recent)]
    following = _replace(text[best.place :], replaced, most)
    others = [place for place in places[:2] if place != best.place]
    num_agreed = NONE
    if others:
        num_agreed, known = 0, text[others[0] :]
        while num_agreed < min(most, len(known)) and following[num_agreed] == known[num_agreed]:
            num_agreed += 1
    return tuple(following), best.match, num_agreed, bool(replaced)


_Pair = tuple[list[int], list[int]]  # tokens, and those that stand for them


class _Alignment(NamedTuple):
    """How like a place is the end of the text.

    Args:
        place: How many tokens come before it.
        match: How many of these are the last ones.
        num_same: How many are the same, behind replacements too.
        start: How many tokens come before those at the end of the text that were compared.
        replaced: What is not the same, the last first.
    """

    place: int
    match: int
    num_same: int
    start: int
    replaced: list[_Pair]

    @property
    def score(self) -> int:
        return self.num_same - REPLACED_COST * len(self.replaced)


def _places(text: list[int], count: int) -> list[int]:
    """Places behind tokens that are like the last ones, the latest first."""
    last = text[len(text) - count :]
    before = range(len(text) - 1, count - 1, -1)
    found = [place for place in before if text[place - count : place] == last]
    return found[:MOST_CANDIDATES]


def _align(text: list[int], place: int) -> _Alignment:
    there, here = place, len(text)
    num_same = match = 0
    replaced: list[_Pair] = []
    while True:
        while there and num_same < LONGEST_MATCH and text[there - 1] == text[here - 1]:
            there, here, num_same = there - 1, here - 1, num_same + 1
        match = match if replaced else num_same
        pair = _pair_before(text, place, there, here, replaced)
        if num_same == LONGEST_MATCH or pair is None:
            return _Alignment(place, match, num_same, here, replaced)
        if pair not in replaced:
            replaced.append(pair)
        there, here = there - len(pair[0]), here - len(pair[1])


def _pair_before(
    text: list[int], place: int, there: int, here: int, replaced: list[_Pair]
) -> _Pair | None:
    """The tokens before one place, and those before another that stand for them; the fewest.

    Args:
        text: The text.
        place: These come behind it.
        there: The one place.
        here: The other.
        replaced: What is known. Before these, one token that is the same is enough.
    """
    options: list[tuple[int, int, _Pair | None]] = [(len(a), len(b), (a, b)) for a, b in replaced]
    if len(replaced) < MOST_REPLACED:
        options += [(*widths, None) for widths in _widths()]
    for num_those, num_these, known in options:
        before, behind = there - num_those, here - num_these
        count = 2 if known is None else 1
        if before < count or behind <= place:
            continue
        pair = text[before:there], text[behind:here]
        is_same = text[before - count : before] == text[behind - count : behind]
        if is_same and known in (None, pair):
            return pair
    return None


def _widths() -> Iterator[tuple[int, int]]:
    """Numbers of tokens and of those that stand for them, the least in all first."""
    for both in range(2, 2 * WIDEST + 1):
        for one in range(max(1, both - WIDEST), min(WIDEST, both - 1) + 1):
            yield one, both - one


def _is_in(tokens: list[int], text: list[int]) -> bool:
    starts = range(len(text) - len(tokens) + 1)
    return any(text[start : start + len(tokens)] == tokens for start in starts)


def _replace(source: list[int], replaced: list[_Pair], most: int) -> list[int]:
    """So many tokens of a text that comes again and again, with others for some of them."""
    source = source * (WIDEST * (most + 1) // len(source) + 1)
    following: list[int] = []
    at = 0
    while len(following) < most:
        for those, these in replaced:
            if source[at : at + len(those)] == those:
                following += these
                at += len(those)
                break
        else:
            following.append(source[at])
            at += 1
    return following[:most]


def repeat_finder() -> Callable[[array[int], int], Repeat]:
    """`find_repeat` at the least cost a step; to be used by one thread."""
    # these import torch, and who reads options knows drafters without it
    from blazr.nn.kernels.cpu.compiled import missing
    from blazr.nn.kernels.cpu.repeats import RepeatFinder

    return find_repeat if missing() else RepeatFinder(_LIMITS)
