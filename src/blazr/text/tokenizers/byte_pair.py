"""Byte-pair encoding over bytes, by the compiled ``splintr`` package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from blazr.text import detokenize
from blazr.text.tokenizer import encode_with
from blazr.text.tokenizers.sentencepiece import longest_of


class Backend(Protocol):
    """What is used of splintr's two tokenizer types."""

    def encode_ordinary(self, text: str) -> list[int]:
        """The ids of a text in which special tokens are plain text."""

    def encode_with_special(self, text: str) -> list[int]:
        """The ids of a text in which special tokens stand for themselves."""

    def decode_bytes(self, ids: list[int]) -> bytes:
        """The bytes of token ids."""


class BytePairTokenizer:
    """A tokenizer whose tokens are byte strings, and whose every text has ids.

    Args:
        backend: Encodes.
        name: What it is called.
        size: Its ids are below this.
        special_ids: The special tokens by name.
        gaps: The ids below ``size`` that mean nothing.
        eos_ids: The tokens that end a text.
        bos_id: The token that goes before a prompt.
        plain_ids: Other tokens with names, that are shown in a text.
    """

    strips_leading_space = False

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        size: int,
        special_ids: Mapping[str, int],
        gaps: Iterable[int] = (),
        eos_ids: Sequence[int] = (),
        bos_id: int | None = None,
        plain_ids: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.size = size
        self.special_ids = MappingProxyType(dict(special_ids))
        self.eos_ids = tuple(eos_ids)
        self.bos_id = bos_id
        self._backend = backend
        self._gaps = frozenset(gaps)
        self._plain_ids = plain_ids
        self._plain = longest_of(plain_ids) if plain_ids else None
        self._special = frozenset(special_ids.values())
        named = {**plain_ids, **special_ids}
        self._names = {token_id: text.encode() for text, token_id in named.items()}

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        encoder = self._backend.encode_with_special if allow_special else self._encode_plain
        return encode_with(encoder, text)

    def _encode_plain(self, text: str) -> list[int]:
        """Of names, only those that are shown stand for their tokens."""
        encode = self._backend.encode_ordinary
        if self._plain is None:
            return encode(text)
        ids: list[int] = []
        for at, part in enumerate(self._plain.split(text)):
            ids += [self._plain_ids[part]] if at % 2 else encode(part)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """See `Tokenizer.decode`."""
        return detokenize.decode(self, ids, skip_special=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        name = self._names.get(token_id)
        if name is not None:
            return name
        if not 0 <= token_id < self.size or token_id in self._gaps:
            return b""
        return self._backend.decode_bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        """See `Tokenizer.is_special`."""
        return token_id in self._special

    def unassigned(self, vocab_size: int) -> list[int]:
        """See `Tokenizer.unassigned`."""
        inside = sorted(each for each in self._gaps if each < vocab_size)
        return [*inside, *range(self.size, vocab_size)]
