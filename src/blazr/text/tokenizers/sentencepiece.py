"""SentencePiece's two ways to cut text into pieces: by merging neighbours, or by likelihood."""

from __future__ import annotations

import heapq
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from math import inf
from typing import ClassVar

SPACE = "▁"
_WORDS = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_CACHED_CHARACTERS = 48
_CACHED_WORDS = 2**16


def longest_of(names: Iterable[str]) -> re.Pattern[str]:
    """Finds the longest of some names, of which there is one at least, as its only group."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})")


class SentencePiece(ABC):
    """Encodes text in which spaces are written ``▁``. A row cuts a word into pieces.

    A character that is no piece is spelled in bytes.

    Args:
        scores: Of each piece.
        ids: Of each piece.
        byte_ids: Of each byte; what has none becomes ``unknown_id``, as one token where several
            such characters follow each other.
        unknown_id: None leaves out what cannot be spelled.
        whole: Pieces that are taken wherever they stand.
    """

    cuts_out_whole: ClassVar[bool]

    def __init__(
        self,
        scores: Mapping[str, float],
        ids: Mapping[str, int],
        *,
        byte_ids: Mapping[int, int],
        unknown_id: int | None,
        whole: Collection[str] = (),
    ) -> None:
        self._scores = scores
        self._ids = ids
        self._whole = whole
        self._byte_ids = byte_ids
        self._unknown = () if unknown_id is None else (unknown_id,)
        # where no piece crosses into the next word, words can be cut one by one
        crosses = re.compile(f"[^{SPACE}]{SPACE}")
        cut_out = whole if self.cuts_out_whole else ()
        self._has_words = not any(crosses.search(each) for each in ids if each not in cut_out)
        self._cached: Callable[[str], tuple[int, ...]] = lru_cache(_CACHED_WORDS)(self._encode)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        found: list[int] = []
        for word in _WORDS.findall(text) if self._has_words else (text,):
            found += self._cached(word) if len(word) <= _CACHED_CHARACTERS else self._encode(word)
        if self._unknown and self._unknown[0] in found:
            pairs = zip(found, (None, *found), strict=False)
            found = [each for each, last in pairs if each != last or each not in self._unknown]
        return found

    def _encode(self, word: str) -> tuple[int, ...]:
        return tuple(token for piece in self._cut(word) for token in self._spell(piece))

    @abstractmethod
    def _cut(self, word: str) -> Iterable[str]:
        """The pieces of a word, in order."""

    def _spell(self, piece: str) -> tuple[int, ...]:
        found = self._ids.get(piece)
        if found is not None:
            return (found,)
        spelled = [self._byte_ids.get(byte) for byte in piece.encode()]
        known = tuple(each for each in spelled if each is not None)
        return known if len(known) == len(spelled) else self._unknown


class SentencePieceBpe(SentencePiece):
    """Neighbours whose union is a piece are merged.

    The highest score comes first, the leftmost where scores are equal.

    Source: Kudo and Richardson 2018, arXiv:1808.06226.
    """

    cuts_out_whole = True

    def encode(self, text: str) -> list[int]:
        """See `SentencePiece.encode`."""
        if self._whole_found is None:
            return super().encode(text)
        found: list[int] = []
        for at, part in enumerate(self._whole_found.split(text)):
            found += [self._ids[part]] if at % 2 else super().encode(part)
        return found

    @cached_property
    def _whole_found(self) -> re.Pattern[str] | None:
        return longest_of(self._whole) if self._whole else None

    def _cut(self, word: str) -> Iterable[str]:
        pieces: list[str] = list(word)
        ends = list(range(1, len(word) + 1))  # where the piece that begins here ends
        starts = list(range(-1, len(word) - 1))  # where the piece before it begins
        queue: list[tuple[float, int, str]] = []

        def offer(left: int, right: int) -> None:
            whole = pieces[left] + pieces[right]
            score = self._scores.get(whole)
            if score is not None:
                heapq.heappush(queue, (-score, left, whole))

        for place in range(len(pieces) - 1):
            offer(place, place + 1)
        while queue:
            _, left, whole = heapq.heappop(queue)
            right = ends[left]
            # an offer is void once either side has been merged otherwise
            if right == len(word) or not pieces[left] or pieces[left] + pieces[right] != whole:
                continue
            pieces[left], pieces[right] = whole, ""
            end = ends[left] = ends[right]
            if end < len(word):
                starts[end] = left
                offer(left, end)
            if starts[left] >= 0:
                offer(starts[left], left)
        return filter(None, pieces)


class SentencePieceUnigram(SentencePiece):
    """The pieces whose scores have the largest sum, each the logarithm of how likely its piece is.

    Source: Kudo 2018, arXiv:1804.10959.
    """

    cuts_out_whole = False

    def _cut(self, word: str) -> Iterable[str]:
        best = [0.0, *[-inf] * len(word)]  # sum of scores up to here
        starts = [0] * (len(word) + 1)  # where the last piece before here begins
        for start, end, score in self._pieces_in(word):
            if best[start] + score > best[end]:
                best[end], starts[end] = best[start] + score, start
        pieces, end = list[str](), len(word)
        while end:
            pieces.append(word[starts[end] : end])
            end = starts[end]
        return reversed(pieces)

    def _pieces_in(self, word: str) -> Iterator[tuple[int, int, float]]:
        """Where the pieces of a word begin and end, and their scores, from left to right."""
        scores, unknown = self._all_scores, self._unknown_score
        for start in range(len(word)):
            yield start, start + 1, scores.get(word[start], unknown)
            for end in (start + length for length in self._lengths):
                score = scores.get(word[start:end]) if end <= len(word) else None
                if score is not None:
                    yield start, end, score

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(piece) for piece in self._scores} - {0, 1})

    @cached_property
    def _unknown_score(self) -> float:
        """That of a character that is no piece."""
        learned = (score for piece, score in self._scores.items() if piece not in self._whole)
        return min(learned, default=0.0) - 10

    @cached_property
    def _all_scores(self) -> Mapping[str, float]:
        """With those of whole pieces: next to nothing, as SentencePiece has it."""
        return {**self._scores, **dict.fromkeys(self._whole, -0.1)}
