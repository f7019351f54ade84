"""SentencePiece's byte-pair encoding: the best-scoring neighbours are merged first."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

SPACE = "▁"
_WORDS = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_CACHED_CHARACTERS = 48
_CACHED_WORDS = 2**16


class SentencePieceBpe:
    """Encodes text in which spaces are written ``▁``.

    Neighbours whose union is a piece are merged, the highest score first, the leftmost where scores
    are equal. A character that is no piece is spelled in bytes.

    Args:
        scores: Of each piece.
        ids: Of each piece.
        byte_ids: Of each byte; what has none becomes ``unknown_id``.
        unknown_id: None leaves out what cannot be spelled.

    Source: Kudo and Richardson 2018, arXiv:1808.06226.
    """

    def __init__(
        self,
        scores: Mapping[str, float],
        ids: Mapping[str, int],
        *,
        byte_ids: Mapping[int, int],
        unknown_id: int | None,
    ) -> None:
        self._scores = scores
        self._ids = ids
        self._byte_ids = byte_ids
        self._unknown = () if unknown_id is None else (unknown_id,)
        # where no piece crosses into the next word, words can be merged one by one
        crosses = re.compile(f"[^{SPACE}]{SPACE}")
        self._has_words = not any(crosses.search(piece) for piece in ids)
        self._cached: Callable[[str], tuple[int, ...]] = lru_cache(_CACHED_WORDS)(self._merge)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        found: list[int] = []
        for word in _WORDS.findall(text) if self._has_words else (text,):
            found += self._cached(word) if len(word) <= _CACHED_CHARACTERS else self._merge(word)
        return found

    def _merge(self, word: str) -> tuple[int, ...]:
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
        return tuple(token for piece in pieces if piece for token in self._spell(piece))

    def _spell(self, piece: str) -> tuple[int, ...]:
        found = self._ids.get(piece)
        if found is not None:
            return (found,)
        spelled = [self._byte_ids.get(byte) for byte in piece.encode()]
        known = tuple(each for each in spelled if each is not None)
        return known if len(known) == len(spelled) else self._unknown
