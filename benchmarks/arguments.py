"""Numbers on the command lines of benchmarks; what is none is told by argparse."""

from __future__ import annotations

import argparse

_MOST = 10**9


def positive(text: str) -> int:
    """A whole number above 0.

    Raises:
        ArgumentTypeError: It is none.
    """
    word = text.strip()
    # Python does not read numbers of thousands of digits
    number = int(word) if word.isdecimal() and len(word) < len(str(_MOST)) else 0
    if number < 1:
        raise argparse.ArgumentTypeError(
            f"{text[:50]!r} is no whole number from 1 to {_MOST - 1:,}"
        )
    return number


def positives(text: str) -> list[int]:
    """Such numbers, with commas between them.

    Raises:
        ArgumentTypeError: One is none.
    """
    return [*map(positive, text.split(","))]
