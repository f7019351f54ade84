"""Ids that tell which replica made them, so that it can be asked again."""

from __future__ import annotations

import re

_DIGITS = 4  # of a replica's number, in hexadecimal
_NUMBER = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")


def id_of(number: int, fresh: str) -> str:
    """An id as a replica gives it, which begins with its number.

    Args:
        number: Of the replica.
        fresh: 32 hexadecimal digits.
    """
    return f"{number:0{_DIGITS}x}{fresh[_DIGITS:]}"


def number_in(name: str) -> int | None:
    """The number of the replica that made an id, such as ``resp_0001...``; None where none did.

    The id may be that of an item of a response, which ends with a place: ``msg_0001..._0``.
    """
    before, _, last = name.rpartition("_")
    if last.isdecimal() and "_" in before:
        last = before.rpartition("_")[2]
    digits = _NUMBER.match(last)
    return None if digits is None else int(digits[0], 16)
