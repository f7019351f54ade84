"""Drafts from the text itself and from other replies: what followed the same tokens there.

Source: Oliaro et al. 2024, "SuffixDecoding", arXiv:2411.04975; for its trees of suffixes stand
tables of where a few tokens have stood.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from typing_extensions import override

from blazr.engine.cache.prefix import salt_key
from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Draft
from blazr.engine.speculation.ngram import NgramDrafter

LEAST_MATCH = 4  # tokens
LONGEST_MATCH = 32  # tokens that are compared
MOST_CANDIDATES = 8  # places that are compared, the latest first
LONGEST_REPLY = 1 << 12  # tokens at its end that are remembered, in about two milliseconds
MOST_TOKENS = 1 << 16  # of all replies that are remembered; each takes about 230 bytes
_PLACES = 1 << 32  # in a reply, at most
NOWHERE = -1


class SuffixDrafter(NgramDrafter):
    """Looks for the last tokens in the prompt, the reply, and the latest replies that have ended.

    The place counts where most tokens before it are the same; of equals, one in the same text. Only
    replies of the same salt are looked at, as for reuse.
    """

    def __init__(self) -> None:
        super().__init__()
        self._replies = _Replies()
        self._followed: dict[Sequence, _Followed] = {}

    @override
    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        followed = self._followed.get(sequence)
        if followed is None or followed.num_dropped != sequence.num_dropped:
            followed = self._followed[sequence] = _Followed(self._replies, sequence)
        followed.extend()
        least = max(min(followed.match, LONGEST_MATCH), 1)
        own = self.propose_beyond(least - 1, sequence, most)
        if own is not None or not followed.match:
            return own
        drafts = tuple(followed.reply[followed.place : followed.place + most])
        return Draft(drafts, f"suffix {min(followed.match, LONGEST_MATCH).bit_length()}")

    @override
    def forget(self, sequence: Sequence) -> None:
        super().forget(sequence)
        followed = self._followed.pop(sequence, None)
        if followed is not None:
            first = max(sequence.num_prompt_left, len(sequence.tokens) - LONGEST_REPLY)
            self._replies.add(followed.salt, sequence.tokens[first:])


class _Reply(NamedTuple):
    """A reply that has ended.

    Args:
        salt: Of its request, as 16 bytes.
        tokens: What it says, or the end of it.
        before: By place, where the LEAST_MATCH tokens before it stood the time before.
    """

    salt: bytes
    tokens: array[int]
    before: array[int]


class _Replies:
    """The latest replies, and where each LEAST_MATCH tokens of them have stood.

    A place is the number of a reply and how many of its tokens come before, in one integer.
    """

    def __init__(self) -> None:
        self._replies: OrderedDict[int, _Reply] = OrderedDict()
        self._last: dict[bytes, int] = {}  # by salt and tokens, the latest place behind them
        self._num_added = self._num_tokens = 0

    def add(self, salt: bytes, tokens: array[int]) -> None:
        """Remember a reply, and forget the oldest for it."""
        if len(tokens) <= LEAST_MATCH:
            return
        reply = _Reply(salt, tokens, array("q", [NOWHERE] * LEAST_MATCH))
        for place, key in _keys(reply):
            reply.before.append(self._last.get(key, NOWHERE))
            self._last[key] = self._num_added * _PLACES + place
        self._replies[self._num_added] = reply
        self._num_added += 1
        self._num_tokens += len(tokens)
        while self._num_tokens > MOST_TOKENS:
            self._forget_oldest()

    def find(self, salt: bytes, tokens: array[int]) -> tuple[array[int], int, int]:
        """A reply, the place in it behind most of the last tokens, and how many these are, or 0."""
        found: tuple[array[int], int, int] = (tokens, len(tokens), 0)
        at = self._last.get(salt + tokens[-LEAST_MATCH:].tobytes(), NOWHERE)
        for _ in range(MOST_CANDIDATES):
            number, place = divmod(at, _PLACES)
            reply = self._replies.get(number)
            if reply is None:  # there is none, or it is forgotten, as all before it are
                break
            match = _count_common(reply.tokens, place, tokens)
            if match > found[2]:
                found = reply.tokens, place, match
            at = reply.before[place]
        return found

    def _forget_oldest(self) -> None:
        number, reply = self._replies.popitem(last=False)
        self._num_tokens -= len(reply.tokens)
        for place, key in _keys(reply):
            if self._last.get(key) == number * _PLACES + place:
                del self._last[key]


def _keys(reply: _Reply) -> Iterator[tuple[int, bytes]]:
    """Each place that something follows, and what stands before it."""
    for place in range(LEAST_MATCH, len(reply.tokens)):
        yield place, reply.salt + reply.tokens[place - LEAST_MATCH : place].tobytes()


def _count_common(text: array[int], place: int, tokens: array[int]) -> int:
    """How many tokens before a place of a text are the last ones of others, up to LONGEST_MATCH.

    Args:
        text: The text.
        place: How many of its tokens come before.
        tokens: The others, of which the last LEAST_MATCH are the same.
    """
    length, end = LEAST_MATCH, len(tokens)
    most = min(place, end, LONGEST_MATCH)
    while length < most and text[place - length - 1] == tokens[end - length - 1]:
        length += 1
    return length


class _Followed:
    """The place in another reply that is behind the last tokens of a sequence.

    Args:
        replies: Where to look.
        sequence: Its tokens are looked for.

    Attributes:
        salt: Of its request, as 16 bytes.
        num_dropped: Tokens that the sequence has forgotten; with others, its end may be another.
        reply: The other one.
        place: How many of its tokens come before; one more follows where there is a match.
        match: How many tokens are the same, at least LEAST_MATCH, or 0.
    """

    def __init__(self, replies: _Replies, sequence: Sequence) -> None:
        salt = salt_key(sequence.request.cache_salt)
        self.salt = blake2b(salt, digest_size=16).digest()  # each key holds it
        self.num_dropped = sequence.num_dropped
        self.reply: array[int] = array("i")
        self.place = self.match = 0
        self._replies = replies
        self._sequence = sequence
        self._length = 0

    def extend(self) -> None:
        """Take in the tokens that have come."""
        tokens = self._sequence.tokens
        for token in tokens[self._length :]:
            if not self.match or self.reply[self.place] != token:
                self.match = 0
                break
            self.place += 1
            self.match = 0 if self.place == len(self.reply) else self.match + 1
        self._length = len(tokens)
        if not self.match and len(tokens) >= LEAST_MATCH:
            self.reply, self.place, self.match = self._replies.find(self.salt, tokens)
