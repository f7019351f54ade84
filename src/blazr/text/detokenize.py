"""Token ids to text, one by one: never half a character, never one lost.

Text is defined through bytes: the bytes of the tokens one after another, the leading space of
vocabularies that add one taken away once, read as UTF-8 with U+FFFD for what is none. Decoding all
ids at once is pushing them one by one, so the two cannot differ.
"""

from __future__ import annotations

import codecs
from collections.abc import Container, Iterable

from blazr.text.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns the tokens of one text to characters as they come.

    Args:
        tokenizer: What the ids mean.
        skip_special: Leave special tokens out.
        continues: The text goes on from an earlier one, so that a leading space is meant.
        kept_ids: Special tokens to leave in all the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        continues: bool = False,
        kept_ids: Container[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._kept_ids = kept_ids
        self._skip_special = skip_special
        self._strips_space = tokenizer.strips_leading_space and not continues
        self._decoder = _UTF8("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes, perhaps none."""
        is_hidden = self._skip_special and self._tokenizer.is_special(token_id)
        if is_hidden and token_id not in self._kept_ids:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if data and self._strips_space:
            self._strips_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def decode(tokenizer: Tokenizer, ids: Iterable[int], *, skip_special: bool = True) -> str:
    """The text of token ids, all at once."""
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()
