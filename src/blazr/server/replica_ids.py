"""Ids that tell which replica made them, so that it can be asked again."""

from __future__ import annotations

_DIGITS = 4  # of a replica's number, in hexadecimal


def id_of(number: int | None, fresh: str) -> str:
    """An id as a replica gives it, which begins with its number.

    Args:
        number: Of the replica; None leaves the id as it is.
        fresh: 32 hexadecimal digits.
    """
    return fresh if number is None else f"{number:0{_DIGITS}x}{fresh[_DIGITS:]}"


def number_in(name: str) -> int | None:
    """The number of the replica that made an id, such as ``resp_0001...``; None where none did."""
    digits = name.rpartition("_")[2][:_DIGITS]
    try:
        return int(digits, 16) if len(digits) == _DIGITS else None
    except ValueError:
        return None
