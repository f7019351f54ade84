"""What a tokenizer is, whatever file it came from: text to token ids, and back one by one.

Text is defined through bytes: the bytes of the tokens one after another, the leading space of
vocabularies that add one taken away once, read as UTF-8 with U+FFFD for what is none. Decoding all
ids at once is pushing them one by one, so the two cannot differ.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType

from blazr.core.errors import EXITS, RequestError

# An id far beyond any vocabulary is an error in the file, and would cost memory to believe.
LARGEST_ID = 2**22

_UTF8 = codecs.getincrementaldecoder("utf-8")


def longest_of(names: Iterable[str]) -> re.Pattern[str]:
    """Finds the longest of some names as its only group; empty ones are nowhere."""
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


class Tokenizer(ABC):
    """Text to token ids and back. Immutable, and safe to use from several threads.

    Args:
        name: What it is called.
        size: Its ids are below this; some may be unassigned.
        special_ids: The special tokens by name: those that no text may produce by spelling them.
        gaps: The ids below ``size`` that mean nothing.
        eos_ids: The tokens that end a text, the main one first.
        bos_id: The token that goes before a prompt, None where there is none.
        strips_leading_space: Whether encoding puts a space before a text, which decoding takes
            away again.
    """

    def __init__(
        self,
        *,
        name: str,
        size: int,
        special_ids: Mapping[str, int] = MappingProxyType({}),
        gaps: Collection[int] = (),
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        strips_leading_space: bool = False,
    ) -> None:
        self.name = name
        self.size = size
        self.special_ids: Mapping[str, int] = MappingProxyType(dict(special_ids))
        self.eos_ids = tuple(eos_ids)
        self.bos_id = bos_id
        self.strips_leading_space = strips_leading_space
        self._special = frozenset(special_ids.values())
        self._gaps = frozenset(gaps)

    def encode(
        self, text: str, *, allow_special: bool = False, continues: bool = False
    ) -> list[int]:
        """The ids of a text, without beginning-of-text or end-of-text tokens.

        Args:
            text: Any text.
            allow_special: Whether a special token's name in the text stands for the token. Only
                for text that no user wrote.
            continues: Whether other tokens come before it. Some vocabularies put a space before
                the first text alone.

        Raises:
            RequestError: The text holds half a surrogate pair, which is no character and how Python
                reads a byte that is not UTF-8, or the encoder failed on it.
        """
        try:
            text.encode()
        except AttributeError:
            raise RequestError(
                "a text cannot be read.", found=f"{text!r:.80}", expected="a string"
            ) from None
        except UnicodeEncodeError as error:
            raise RequestError(
                "the text is not valid Unicode.",
                found="half a surrogate pair, or a byte that is not UTF-8, "
                f"at character {error.start}",
                expected="whole characters",
            ) from None
        try:
            return self._encode(text, allow_special=allow_special, continues=continues)
        except (*EXITS, RequestError):
            raise
        except BaseException as error:
            raise RequestError(
                "the text cannot be tokenized.", found=f"{type(error).__name__}: {error}"[:100]
            ) from error

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        """The ids of texts and the special tokens between them, which are ids already.

        They are those of the whole text in which the tokens stand by their names, but that names
        in the texts stand for nothing.

        Raises:
            RequestError: See `encode`.
        """
        ids: list[int] = []
        for at, part in enumerate(parts):
            if isinstance(part, int):
                ids.append(part)
                continue
            text = part
            before, after = (parts[i] if 0 <= i < len(parts) else "" for i in (at - 1, at + 1))
            if isinstance(before, int) and self._takes_space(before)[1]:
                text = text.lstrip()
            if isinstance(after, int) and self._takes_space(after)[0]:
                text = text.rstrip()
            if text:
                ids += self.encode(text, continues=at > 0)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids. Invalid bytes become U+FFFD, unassigned ids nothing."""
        detokenizer = Detokenizer(self, skip_special=skip_special)
        return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; none for unassigned ids, its name's for a special token."""
        is_assigned = 0 <= token_id < self.size and token_id not in self._gaps
        return self._bytes_of(token_id) if is_assigned else b""

    def is_special(self, token_id: int) -> bool:
        """Whether a token is special: left out of the text unless asked for."""
        return token_id in self._special

    def unassigned(self, vocab_size: int) -> list[int]:
        """The ids below ``vocab_size`` that mean nothing, and so must never be sampled."""
        inside = sorted(each for each in self._gaps if each < vocab_size)
        return [*inside, *range(self.size, vocab_size)]

    def _takes_space(self, token_id: int) -> tuple[bool, bool]:  # noqa: ARG002
        """Whether the white space before a special token goes, and that behind it."""
        return False, False

    @abstractmethod
    def _encode(self, text: str, *, allow_special: bool, continues: bool) -> list[int]:
        """The ids of a text that is valid Unicode."""

    @abstractmethod
    def _bytes_of(self, token_id: int) -> bytes:
        """The bytes of an assigned token."""


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
