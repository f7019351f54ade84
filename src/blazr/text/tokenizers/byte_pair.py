"""Byte-pair encoding over bytes, by the compiled ``splintr`` package.

Its ranks are lines: a token in base64, and its id. Tokens are merged in the order of their ids.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from typing_extensions import override

from blazr.core.errors import CheckpointError
from blazr.text.tokenizer import LARGEST_ID, Tokenizer, longest_of

if TYPE_CHECKING:
    import splintr

    Backend = splintr.Tokenizer | splintr.AnyTokenizer

# Shorter texts are encoded in less than a millisecond, without releasing the GIL.
LONG = 4096
# A pattern that leaves out any of this would lose text without a word.
_PROBE = "Ab1 é\u4e2d  \U0001f600\t_\r\n\n 'll\u00a0\u200d\x00."


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
        self._any_name = longest_of(named) if named else None
        self._names = {token_id: text.encode() for text, token_id in named.items()}

    @override
    def _encode(self, text: str, *, allow_special: bool, continues: bool) -> list[int]:
        if allow_special:
            return self._backend.encode_with_special(text)
        if self._plain is None:
            return self._encode_ordinary(text)
        ids: list[int] = []
        for at, part in enumerate(self._plain.split(text)):
            ids += [self._plain_ids[part]] if at % 2 else self._encode_ordinary(part)
        return ids

    def _encode_ordinary(self, text: str) -> list[int]:
        if len(text) < LONG or (self._any_name and self._any_name.search(text)):
            return self._backend.encode_ordinary(text)
        # without special tokens both give the same ids, and only this one releases the GIL
        return self._backend.encode_batch([text])[0]

    @override
    def _bytes_of(self, token_id: int) -> bytes:
        name = self._names.get(token_id)
        return self._backend.decode_bytes([token_id]) if name is None else name


def from_ranks(
    data: bytes,
    pattern: str,
    *,
    file: Path,
    name: str,
    named_ids: Mapping[str, int],
    plain_names: Collection[str] = (),
    eos_ids: Iterable[int] = (),
    bos_id: int | None = None,
) -> BytePairTokenizer:
    """The tokenizer over ranks.

    Args:
        data: Lines, each a token in base64, a space, its id.
        pattern: Cuts a text into words; nothing is merged across them.
        file: Where they are from, for errors.
        name: The tokenizer's.
        named_ids: More tokens, by name.
        plain_names: Those of them that are shown in a text; the others are special.
        eos_ids: The tokens that end a text.
        bos_id: The token that goes before a prompt.

    Raises:
        CheckpointError: A line is wrong, an id is taken twice, or some text cannot be encoded.
    """
    words = set(parse_ranks(data, file.name).values())
    special = set(named_ids.values())
    taken = words & special
    if taken or len(special) < len(named_ids):
        raise CheckpointError(
            f"the special tokens for {file.name} are wrong.",
            found=f"the id {min(taken)} twice" if taken else "two names with one id",
            expected="names, each with an id that no other token has",
        )
    ids = words | special
    size = max(ids) + 1
    return BytePairTokenizer(
        _backend(data, pattern, named_ids, file.name),
        name=name,
        size=size,
        special_ids={each: i for each, i in named_ids.items() if each not in plain_names},
        plain_ids={each: i for each, i in named_ids.items() if each in plain_names},
        gaps=set(range(size)) - ids,
        eos_ids=[each for each in dict.fromkeys(eos_ids) if each < size],
        bos_id=bos_id,
    )


def _backend(data: bytes, pattern: str, named_ids: Mapping[str, int], name: str) -> Backend:
    """Splintr's tokenizer over ranks; a failure to build it is an error of the file."""
    import splintr

    try:
        backend = splintr.Tokenizer.from_bytes(data, pattern, dict(named_ids))
        kept = backend.decode_bytes(backend.encode_ordinary(_PROBE))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{name} cannot be used.", found=" ".join(str(error).split())[:100]
        ) from error
    if kept != _PROBE.encode():
        raise CheckpointError(
            f'the "pattern" for {name} leaves out part of the text.',
            expected="a pattern of which some alternative matches every character",
        )
    return backend


def parse_ranks(data: bytes, name: str) -> dict[bytes, int]:
    """The ids of tokens, from the lines of a file.

    Raises:
        CheckpointError: A line is none, or a byte has no token.
    """
    ranks: dict[bytes, int] = {}
    seen: set[int] = set()
    for number, line in enumerate(data.splitlines(), start=1):
        if not line:
            continue
        encoded, _, digits = line.partition(b" ")
        try:
            token = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            token = b""
        rank = int(digits) if re.fullmatch(rb"\s*[0-9]{1,7}\s*", digits) else LARGEST_ID + 1
        if not token or rank > LARGEST_ID:
            raise CheckpointError(
                f"line {number} of {name} is no token.",
                found=repr(line[:80]),
                expected="a token in base64, a space, and its id",
            )
        if token in ranks or rank in seen:
            raise CheckpointError(
                f"line {number} of {name} repeats a token or an id.", found=repr(line[:80])
            )
        ranks[token] = rank
        seen.add(rank)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise CheckpointError(
            f"{name} has no token for some bytes, so some texts could not be encoded.",
            found=f"{len(missing)} bytes without a token, the first is 0x{missing[0]:02x}",
            expected="a token for each of the 256 bytes",
        )
    return ranks
