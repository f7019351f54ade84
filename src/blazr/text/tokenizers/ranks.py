"""Byte-pair ranks: tokens in base64, each with its id, merged in the order of their ids."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.text.tokenizers.byte_pair import BytePairTokenizer

# A rank far beyond any vocabulary is an error in the file, and would cost memory to believe.
LARGEST_ID = 2**22
# So is a special token this far behind the others.
LARGEST_GAP = 2**16
# A pattern that leaves out any of this would lose text without a word.
_PROBE = "Ab1 é\u4e2d  \U0001f600\t_\r\n\n 'll\u00a0\u200d\x00."


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
    words, special = set(parse_ranks(data, file.name).values()), set(named_ids.values())
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
        _Backend(data, pattern, named_ids, file.name),
        name=name,
        size=size,
        special_ids={each: i for each, i in named_ids.items() if each not in plain_names},
        plain_ids={each: i for each, i in named_ids.items() if each in plain_names},
        gaps=set(range(size)) - ids,
        eos_ids=[each for each in dict.fromkeys(eos_ids) if each < size],
        bos_id=bos_id,
    )


class _Backend:
    """splintr's tokenizer over ranks; a failure to build it is an error of the file."""

    def __init__(self, data: bytes, pattern: str, named_ids: Mapping[str, int], name: str) -> None:
        import splintr

        try:
            tokenizer = splintr.Tokenizer.from_bytes(data, pattern, dict(named_ids))
            kept = tokenizer.decode_bytes(tokenizer.encode_ordinary(_PROBE))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{name} cannot be used.", found=" ".join(str(error).split())[:100]
            ) from error
        if kept != _PROBE.encode():
            raise CheckpointError(
                f'the "pattern" for {name} leaves out part of the text.',
                expected="a pattern of which some alternative matches every character",
            )
        self.encode_ordinary = tokenizer.encode_ordinary
        self.encode_with_special = tokenizer.encode_with_special
        self.decode_bytes = tokenizer.decode_bytes


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
        token, rank = _parse_line(line, number, name)
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


def _parse_line(line: bytes, number: int, name: str) -> tuple[bytes, int]:
    encoded, _, rank = line.partition(b" ")
    try:
        token = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        token = b""
    digits = rank.strip()
    if not token or not digits.isdigit() or len(digits) > 7 or int(digits) > LARGEST_ID:
        raise CheckpointError(
            f"line {number} of {name} is no token.",
            found=repr(line[:80]),
            expected="a token in base64, a space, and its id",
        )
    return token, int(digits)
