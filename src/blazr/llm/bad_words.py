"""Texts that samplers know, as token ids."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from blazr.text.tokenizer import Tokenizer


def spellings(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The ids of texts, at the beginning of a line and within it, where they differ.

    Within a line a word begins with a space, and is another token.
    """
    found = {
        tuple(tokenizer.encode(each)) for text in texts for each in (text, f" {text.lstrip()}")
    }
    return tuple(sorted(ids for ids in found if ids))


@lru_cache(maxsize=64)
def containing(tokenizer: Tokenizer, texts: tuple[str, ...]) -> frozenset[int]:
    """The ids of all tokens that any of these texts is part of."""
    parts = [text.encode() for text in texts]
    found = set()
    for token_id in range(tokenizer.size):
        data = tokenizer.token_bytes(token_id)
        if any(part in data for part in parts):
            found.add(token_id)
    return frozenset(found)
