"""JSON as its standard has it, which knows neither infinity nor NaN."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

import msgspec

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


def dump_json(value: object, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """Write a value as JSON; a float that is infinite or NaN becomes null.

    Args:
        value: Mappings, lists and tuples of plain values.
        indent: Spaces by which each level is indented; None writes one line.
        ensure_ascii: Whether other characters than those of ASCII are escaped.

    Raises:
        TypeError: It holds something else.
    """
    return json.dumps(_finite(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def is_cut_off(text: str) -> bool:
    """Whether a text is the beginning of a JSON object that ends before the object does."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        msgspec.json.decode(text.rstrip("+-.eE"))  # in the middle of a number it may end anywhere
    except msgspec.DecodeError as error:
        return "truncated" in str(error)  # what tells it from JSON that is wrong
    except RecursionError:
        pass
    return False


def whole_members(text: str) -> dict[str, object]:
    """The members of a JSON object that is cut off, without the one in which it ends."""
    members: dict[str, object] = {}
    place = _skip_space(text, 0)
    try:
        while text[place] in "{,":
            key, place = _DECODER.raw_decode(text, _skip_space(text, place + 1))
            place = _skip_space(text, place)
            if text[place] != ":":
                break
            value, place = _DECODER.raw_decode(text, _skip_space(text, place + 1))
            place = _skip_space(text, place)
            if text[place] in ",}":  # before these more digits might have come
                members[str(key)] = value
    except (IndexError, ValueError, RecursionError):
        pass
    return members


def _skip_space(text: str, place: int) -> int:
    """The first place from this one on that is no white space."""
    found = _SPACE.match(text, place)
    return found.end() if found else place
