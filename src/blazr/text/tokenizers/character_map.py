"""SentencePiece's table of what stands for what before pieces are looked for: ``ﬁ`` becomes ``fi``.

Source: the format of ``precompiled_charsmap`` in SentencePiece: how many bytes the trie has (a
little-endian u32), the trie as Darts-clone's double array of u32, then UTF-8 texts, each with a
zero at its end.

The `tokenizers` package reads the format, too, but disagrees with SentencePiece: it takes the
shortest key of a whole grapheme, and drops the rest of that.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from blazr.text.tokenizer import longest_of

_LABEL = 2**31 + 0xFF
# No key and no replacement is nearly as long; a forged table must not cost more than a text does.
_LONGEST = 256


class CharacterMap:
    """Replaces the longest key that begins at a character. Whatever the bytes are, it is safe.

    Args:
        table: The bytes of the format; a table that holds none of it replaces nothing.
        kept: Parts of a text in which nothing is replaced.
    """

    def __init__(self, table: bytes, *, kept: Collection[str] = ()) -> None:
        size = max(0, min(int.from_bytes(table[:4], "little"), len(table) - 4)) // 4
        self._trie = struct.unpack(f"<{size}I", table[4 : 4 + 4 * size])
        self._texts = table[4 + 4 * size :]
        self._kept = longest_of(kept) if kept else None

    def __call__(self, text: str) -> str:
        """The text with everything replaced."""
        if not self._trie:
            return text
        parts = self._kept.split(text) if self._kept else [text]
        for number in range(0, len(parts), 2):
            data = parts[number].encode()
            found = bytearray()
            at = 0
            while at < len(data):
                length, replacement = self._longest(data, at)
                if not length:  # the character stays as it is
                    first = data[at]
                    length = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
                    replacement = data[at : at + length]
                found += replacement
                at += length
            parts[number] = found.decode(errors="replace")
        return "".join(parts)

    def _longest(self, data: bytes, at: int) -> tuple[int, bytes]:
        """How many bytes the longest key has that begins here, and what stands for it."""
        trie = self._trie
        length = 0
        start = 0
        place = _offset(trie[0])
        for end in range(at, min(len(data), at + _LONGEST)):
            place ^= data[end]
            if place >= len(trie) or trie[place] & _LABEL != data[end]:
                break
            unit = trie[place]
            place ^= _offset(unit)
            if unit >> 8 & 1 and place < len(trie):
                length = end + 1 - at
                start = trie[place] & 0x7FFFFFFF
        end = self._texts.find(b"\0", start, start + _LONGEST) if length else -1
        return (length, self._texts[start:end]) if end >= 0 else (0, b"")


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 512) >> 6)
