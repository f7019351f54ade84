"""How much longer a tokenizer.json may make a text before it is cut into tokens.

Rules that replace a character by two are a few bytes each, and forty of them make a terabyte of
one character. The library has no bound, and ends the process when memory is out.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from blazr.core.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

MOST_TIMES = 1000
_OF_BYTE_LEVEL = 4  # a character has up to four bytes, each of them spelled as a character


def check_growth(backend: Backend, name: str) -> None:
    """Refuse a tokenizer that makes texts very much longer.

    Unicode's normal forms and cases are not counted: they grow once, however often they come.

    Raises:
        CheckpointError: It does, by more than `MOST_TIMES`.
    """
    read = _times(backend.normalizer) * _times(backend.pre_tokenizer)
    times = max(read, _times(backend.decoder))
    if times > MOST_TIMES:
        raise CheckpointError(
            f"{name} makes texts too long.",
            found=f"rules that make one {min(times, 10**12):,} times as long, or more",
            expected=f"at most {MOST_TIMES:,} times",
            hint="download the tokenizer again",
        )


def _times(part: Any | None) -> int:
    """By how much all steps of a part make a text longer at most."""
    return 1 if part is None else prod(map(_growth, _steps(json.loads(part.__getstate__()))))


def _steps(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Those of a sequence, in their order, and of the sequences inside."""
    if state.get("type") == "Sequence":
        for key in ("normalizers", "pretokenizers", "decoders"):
            for each in state.get(key, ()):
                yield from _steps(each)
    else:
        yield state


def _growth(step: Mapping[str, Any]) -> int:
    """By how much one step makes a text longer at most."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(-(-len(new) // len(old)), 1)
        case {"type": "Replace", "content": str(new)}:  # a pattern may match between characters
            return len(new) + 1
        case {"type": "Prepend", "prepend": str(new)}:
            return len(new) + 1
        case {"type": "Precompiled", "precompiled_charsmap": str(packed)}:
            return _longest(b64decode(packed))
        case {"type": "ByteLevel"}:
            return _OF_BYTE_LEVEL
    return 1


def _longest(charsmap: bytes) -> int:
    """What the longest text has that SentencePiece's table puts in place of another.

    A table is the size of a trie, the trie, and the texts, each with a zero behind it.
    """
    start = 4 + int.from_bytes(charsmap[:4], "little")
    return max(*map(len, charsmap[start:].split(b"\0")), 1)
