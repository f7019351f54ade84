"""SentencePiece's two ways to cut text into pieces: by merging neighbours, or by likelihood."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from blazr.text.tokenizer import longest_of
from blazr.text.tokenizers.hf import encode_plain

SPACE = "▁"
_WORDS = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_CACHED_CHARACTERS = 48
_CACHED_WORDS = 2**16
# The score of a user-defined piece among likelihoods: next to nothing, as SentencePiece has it.
_WHOLE_SCORE = -0.1


class Fallback:
    """What stands for a character that is no piece.

    Args:
        byte_ids: The token of each byte, where there is one.
        unknown_id: The token of characters with a byte that has none, one for all that follow each
            other. None leaves them out.
    """

    def __init__(self, byte_ids: Mapping[int, int], unknown_id: int | None) -> None:
        self._byte_ids = byte_ids
        self._unknown = () if unknown_id is None else (unknown_id,)

    def spell(self, character: str) -> Sequence[int]:
        """The ids of a character's bytes, else the unknown token."""
        ids = [self._byte_ids.get(byte) for byte in character.encode()]
        known = [each for each in ids if each is not None]
        return known if len(known) == len(ids) else self._unknown

    def fuse(self, ids: list[int]) -> list[int]:
        """Ids with a single unknown token for several in a row."""
        if not self._unknown or self._unknown[0] not in ids:
            return ids
        pairs = zip(ids, (None, *ids), strict=False)
        return [each for each, last in pairs if each != last or each not in self._unknown]


class SentencePieceBpe:
    """Encodes text in which spaces are written ``▁`` by merging neighbours whose union is a piece.

    The highest score comes first, the leftmost where scores are equal. This is not left to the
    `tokenizers` package: it ranks pairs and knows no scores, so that it cannot hold pieces with
    equal ones, and to list the pairs of each piece takes longer than all else of loading a file.

    Source: Kudo and Richardson 2018, arXiv:1808.06226.

    Args:
        scores: The score of each piece.
        ids: The token of each piece.
        fallback: Stands for what is no piece.
        whole: Pieces that are taken wherever they stand.
    """

    def __init__(
        self,
        scores: Mapping[str, float],
        ids: Mapping[str, int],
        *,
        fallback: Fallback,
        whole: Collection[str] = (),
    ) -> None:
        self._scores = scores
        self._ids = ids
        self._fallback = fallback
        self._whole = longest_of(whole) if whole else None
        # where no piece crosses into the next word, words can be cut one by one
        crosses = re.compile(f"[^{SPACE}]{SPACE}")
        self._has_words = not any(crosses.search(each) for each in ids if each not in whole)
        self._cached: Callable[[str], tuple[int, ...]] = lru_cache(_CACHED_WORDS)(self._encode)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids: list[int] = []
        for at, part in enumerate(self._whole.split(text) if self._whole else (text,)):
            if at % 2:
                ids.append(self._ids[part])
                continue
            for word in _WORDS.findall(part) if self._has_words else (part,):
                ids += self._cached(word) if len(word) <= _CACHED_CHARACTERS else self._encode(word)
        return self._fallback.fuse(ids)

    def _encode(self, word: str) -> tuple[int, ...]:
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
            pieces[left] = whole
            pieces[right] = ""
            end = ends[left] = ends[right]
            if end < len(word):
                starts[end] = left
                offer(left, end)
            if starts[left] >= 0:
                offer(starts[left], left)
        found: list[int] = []
        for piece in filter(None, pieces):
            token_id = self._ids.get(piece)
            found += self._fallback.spell(piece) if token_id is None else (token_id,)
        return tuple(found)


class SentencePieceUnigram:
    """Encodes text in which spaces are written ``▁`` as its likeliest pieces.

    The `tokenizers` package finds them. Bytes are spelled here, since it would take the text
    ``<0x41>`` for a byte, too.

    Source: Kudo 2018, arXiv:1804.10959.

    Args:
        scores: The logarithm of how likely each piece is.
        ids: The token of each piece.
        fallback: Stands for what is no piece.
        whole: Pieces that are taken nearly wherever they stand.
    """

    def __init__(
        self,
        scores: Mapping[str, float],
        ids: Mapping[str, int],
        *,
        fallback: Fallback,
        whole: Collection[str] = (),
    ) -> None:
        from tokenizers import Tokenizer, models

        self._fallback = fallback
        self._unknown = max(ids.values(), default=-1) + 1
        # no text has spaces any more, so that these names are never found
        pieces = [(f" {token_id}", 0.0) for token_id in range(self._unknown + 1)]
        for piece, token_id in ids.items():
            pieces[token_id] = piece, _WHOLE_SCORE if piece in whole else scores[piece]
        self._backend: Any = Tokenizer(models.Unigram(pieces, self._unknown))

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        found = encode_plain(self._backend, text)
        ids: list[int] = found.ids
        if self._unknown not in ids:
            return ids
        spelled: list[int] = []
        for token_id, (start, end) in zip(ids, found.offsets, strict=True):
            if token_id != self._unknown:
                spelled.append(token_id)
                continue
            for character in text[start:end]:
                spelled += self._fallback.spell(character)
        return self._fallback.fuse(spelled)
