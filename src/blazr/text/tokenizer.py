"""What a tokenizer is, whatever file it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from blazr.core.errors import RequestError


class Tokenizer(Protocol):
    """Text to token ids and back. Immutable, and safe to use from several threads."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def size(self) -> int:
        """Its ids are below this; some may be unassigned."""

    @property
    def special_ids(self) -> Mapping[str, int]:
        """The special tokens by name: those that no text may produce by spelling them."""

    @property
    def bos_id(self) -> int | None:
        """The token that goes before a prompt, None where there is none."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text, the main one first."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether encoding puts a space before a text, which decoding takes away again."""

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """The ids of a text, without beginning-of-text or end-of-text tokens.

        Args:
            text: Any text.
            allow_special: Whether a special token's name in the text stands for the token. Only
                for text that no user wrote.

        Raises:
            RequestError: The text holds half a surrogate pair, which is no character.
        """

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids. Invalid bytes become U+FFFD, unassigned ids nothing."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; none for unassigned ids, its name's for a special token."""

    def is_special(self, token_id: int) -> bool:
        """Whether a token is special: left out of the text unless asked for."""

    def unassigned(self, vocab_size: int) -> list[int]:
        """The ids below ``vocab_size`` that mean nothing, and so must never be sampled."""


def encode_with(encoder: Callable[[str], list[int]], text: str) -> list[int]:
    """Call a compiled encoder so that whatever a text does to it fails only that request.

    Raises:
        RequestError: The text holds half a surrogate pair, or the encoder failed on it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            "the text is not valid Unicode.",
            found=f"half a surrogate pair at character {error.start}",
            expected="whole characters",
        ) from None
    try:
        return encoder(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise RequestError(
            "the text cannot be tokenized.", found=f"{type(error).__name__}: {error}"[:100]
        ) from error
