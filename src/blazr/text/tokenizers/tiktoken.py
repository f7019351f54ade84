"""Byte-pair rank files (``.tiktoken``): a line is a token in base64, a space, its id.

What such a file does not hold may lie in a JSON file beside it, ``NAME.tiktoken.json``:

    {"pattern": "...", "special_tokens": {"<|endoftext|>": 1000}, "eos_token": "<|endoftext|>"}

All keys are optional: the pattern that splits text into words (else that of cl100k_base), the
special tokens, and which of them end (``eos_token``, one or a list) or begin (``bos_token``) a
text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

from blazr.core.errors import CheckpointError
from blazr.text.sidecars import read_json
from blazr.text.tokenizer import Tokenizer
from blazr.text.tokenizers.byte_pair import BytePairTokenizer

# A rank far beyond any vocabulary is an error in the file, and would cost memory to believe.
_LARGEST_ID = 2**22
# A pattern that leaves out any of this would lose text without a word.
_PROBE = "Ab1 é\u4e2d  \U0001f600\t_\r\n\n 'll\u00a0\u200d\x00."


def load(path: str) -> Tokenizer:
    """Load a rank file and what lies beside it.

    Raises:
        CheckpointError: A file cannot be read, or cannot encode every text.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file.name} cannot be read.", found=str(error)[:100]) from error
    ranks = _parse_ranks(data, file.name)
    options = read_json(file.with_name(file.name + ".json"))
    special_ids = _special_ids(options, ranks, file.name)
    ids = {*ranks.values(), *special_ids.values()}
    size = max(ids) + 1
    return BytePairTokenizer(
        _Backend(data, _pattern(options), special_ids, file.name),
        name=file.stem,
        size=size,
        special_ids=special_ids,
        gaps=set(range(size)) - ids,
        eos_ids=_named_ids(options.get("eos_token"), special_ids, file.name),
        bos_id=next(iter(_named_ids(options.get("bos_token"), special_ids, file.name)), None),
    )


class _Backend:
    """splintr's tokenizer over the file; a failure to build it is an error of the file."""

    def __init__(
        self, data: bytes, pattern: str | None, special_ids: Mapping[str, int], name: str
    ) -> None:
        import splintr

        try:
            tokenizer = splintr.Tokenizer.from_bytes(
                data, pattern or splintr.CL100K_BASE_PATTERN, dict(special_ids)
            )
            kept = tokenizer.decode_bytes(tokenizer.encode_ordinary(_PROBE))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{name} cannot be used.", found=" ".join(str(error).split())[:100]
            ) from error
        if kept != _PROBE.encode():
            raise CheckpointError(
                f'the "pattern" beside {name} leaves out part of the text.',
                expected="a pattern of which some alternative matches every character",
            )
        self.encode_ordinary = tokenizer.encode_ordinary
        self.encode_with_special = tokenizer.encode_with_special
        self.decode_bytes = tokenizer.decode_bytes


def _parse_ranks(data: bytes, name: str) -> dict[bytes, int]:
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
    if not token or not digits.isdigit() or len(digits) > 7 or int(digits) > _LARGEST_ID:
        raise CheckpointError(
            f"line {number} of {name} is no token.",
            found=repr(line[:80]),
            expected="a token in base64, a space, and its id",
        )
    return token, int(digits)


def _pattern(options: Mapping[str, object]) -> str | None:
    pattern = options.get("pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise CheckpointError('"pattern" must be a string.', found=repr(pattern)[:100])
    return pattern


def _special_ids(
    options: Mapping[str, object], ranks: Mapping[bytes, int], name: str
) -> dict[str, int]:
    special = options.get("special_tokens") or {}
    taken = set(ranks.values())
    ids: dict[str, int] = {}
    for text, token_id in special.items() if isinstance(special, Mapping) else ():
        if type(token_id) is int and 0 <= token_id <= _LARGEST_ID and token_id not in taken:
            taken.add(token_id)
            ids[text] = token_id
    if not isinstance(special, Mapping) or len(ids) < len(special) or "" in ids:
        raise CheckpointError(
            f'"special_tokens" beside {name} is wrong.',
            found=repr(special)[:100],
            expected="names, each with an id that no other token has",
        )
    return ids


def _named_ids(names: object, special_ids: Mapping[str, int], name: str) -> tuple[int, ...]:
    listed: list[object] = names if isinstance(names, list) else [names]
    found = [special_ids[each] for each in listed if isinstance(each, str) and each in special_ids]
    if names is not None and len(found) < len(listed):
        raise CheckpointError(
            f'a token named beside {name} is not among its "special_tokens".',
            found=repr(names)[:100],
        )
    return tuple(found)
