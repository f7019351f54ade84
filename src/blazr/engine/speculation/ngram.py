"""Drafts from the text itself: what followed the last tokens where they stood before.

Source: Saxena 2023, "Prompt Lookup Decoding", github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from array import array

from typing_extensions import override

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Draft, Drafter, count_equal

LEAST_MATCH = 2  # tokens
LONGEST_MATCH = 32  # tokens that are compared
MOST_CANDIDATES = 8  # places that are compared, the latest first
_NOWHERE = -1


class NgramDrafter(Drafter):
    """Looks for the last tokens earlier in prompt and reply, and proposes what followed them.

    Of the latest places the one is taken where most tokens before it are the same, and the latest
    of equals. As far as the same followed at the latest other place, drafts are kept more often:
    these are of a kind of their own. So are those of a text's only place.
    """

    def __init__(self) -> None:
        self._indices: dict[Sequence, _Index] = {}

    @override
    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        tokens, index = sequence.tokens, self.index(sequence)
        place, other = index.place, index.other
        if place == _NOWHERE:
            return None
        # a place so near the end that the draft would go beyond it: what repeats goes on repeating
        drafts = tuple(tokens[place : place + most])
        if len(drafts) < most:
            drafts = (drafts * (most // len(drafts) + 1))[:most]
        if other == _NOWHERE:
            return Draft(drafts, "ngram")
        num_agreed = count_equal(drafts, tokens[other : other + most])
        if not num_agreed:
            return Draft(drafts, "ngram alone")
        return Draft(drafts, "ngram agreed", num_first=num_agreed, kind_behind="ngram alone")

    def index(self, sequence: Sequence) -> _Index:
        """Where the tokens of a sequence have stood, up to its last ones."""
        index = self._indices.get(sequence)
        if index is None or index.num_dropped != sequence.num_dropped:
            index = self._indices[sequence] = _Index(sequence.num_dropped)
        index.extend(sequence.tokens)
        return index

    @override
    def forget(self, sequence: Sequence) -> None:
        self._indices.pop(sequence, None)


class _Index:
    """Where each LEAST_MATCH tokens of a text have stood, and where its last ones did.

    Attributes:
        place: Behind the tokens that are like the last ones, or _NOWHERE.
        match: How many tokens are, at least LEAST_MATCH; 0 for none.
        other: Behind the latest other ones of which LEAST_MATCH are, or _NOWHERE.

    Args:
        num_dropped: Tokens that the sequence has forgotten; with others, places are others.
    """

    def __init__(self, num_dropped: int) -> None:
        self.num_dropped = num_dropped
        self.place = _NOWHERE
        self.match = 0
        self.other = _NOWHERE
        self._length = 0  # of the text
        self._last: dict[bytes, int] = {}  # by the tokens, the latest place behind them
        # by place, the one before behind the same tokens
        self._before = array("i", [_NOWHERE] * LEAST_MATCH)

    def extend(self, tokens: array[int]) -> None:
        """Take in the tokens that have come."""
        end = len(tokens)
        for at in range(self._length, end):
            if self.place == _NOWHERE or tokens[self.place] != tokens[at]:
                self.place = _NOWHERE
                break
            self.place += 1
            self.match += 1
        self._length = end
        for place in range(len(self._before), end + 1):
            key = tokens[place - LEAST_MATCH : place].tobytes()
            self._before.append(self._last.get(key, _NOWHERE))
            self._last[key] = place
        if self.place == _NOWHERE:
            self._find(tokens)
        self.other = self._before[end]
        if self.other == self.place != _NOWHERE:
            self.other = self._before[self.other]

    def _find(self, tokens: array[int]) -> None:
        """Look for the place behind most of the last tokens."""
        end = len(tokens)
        place = self._before[end]
        longest = 0
        for _ in range(MOST_CANDIDATES):
            if place == _NOWHERE:
                break
            # with another token there, no more can be the same
            if not longest or tokens[max(place - longest - 1, 0)] == tokens[end - longest - 1]:
                length = count_common(tokens, place, tokens, LEAST_MATCH)
                if length > longest:
                    self.place, longest = place, length
            place = self._before[place]
        self.match = longest


def count_common(text: array[int], place: int, tokens: array[int], known: int) -> int:
    """How many tokens before a place of a text are the last ones of others, up to LONGEST_MATCH.

    Args:
        text: The text.
        place: How many of its tokens come before.
        tokens: The others, which go on beyond that place where they are the same text.
        known: As many are the same, at least.
    """
    length, end = known, len(tokens)
    most = min(place, end, LONGEST_MATCH)
    while length < most and text[place - length - 1] == tokens[end - length - 1]:
        length += 1
    return length
