"""Byte-pair encoding over bytes, by the compiled ``splintr`` package."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from typing_extensions import override

from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.sentencepiece import longest_of


class Backend(Protocol):
    """What is used of splintr's two tokenizer types."""

    def encode_ordinary(self, text: str) -> list[int]:
        """The ids of a text in which special tokens are plain text."""

    def encode_with_special(self, text: str) -> list[int]:
        """The ids of a text in which special tokens stand for themselves."""

    def decode_bytes(self, ids: list[int]) -> bytes:
        """The bytes of token ids."""


class BytePairTokenizer(Tokenizer):
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

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        size: int,
        special_ids: Mapping[str, int],
        gaps: Collection[int] = (),
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        plain_ids: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(
            name=name,
            size=size,
            special_ids=special_ids,
            gaps=gaps,
            eos_ids=eos_ids,
            bos_id=bos_id,
        )
        self._backend = backend
        self._plain_ids = plain_ids
        self._plain = longest_of(plain_ids) if plain_ids else None
        named = {**plain_ids, **special_ids}
        self._names = {token_id: text.encode() for text, token_id in named.items()}

    @override
    def _encode(self, text: str, *, allow_special: bool) -> list[int]:
        if allow_special:
            return self._backend.encode_with_special(text)
        if self._plain is None:
            return self._backend.encode_ordinary(text)
        ids: list[int] = []
        for at, part in enumerate(self._plain.split(text)):
            ids += [self._plain_ids[part]] if at % 2 else self._backend.encode_ordinary(part)
        return ids

    @override
    def _bytes_of(self, token_id: int) -> bytes:
        name = self._names.get(token_id)
        return self._backend.decode_bytes([token_id]) if name is None else name
