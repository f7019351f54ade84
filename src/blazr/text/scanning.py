"""Small scans that larger ones are made of.

Each takes the character to begin with and returns the one it did not consume; "" is the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from blazr.text.splitter import CutOffError, MalformedError, Scan, overlap

SPACE = " \t\r\n"
MAX_HEADER = 512  # characters of a name, id or header

# Scans that also find a value return it before the next character.
Found = Generator[None, str, tuple[str, str]]


def unexpected(c: str) -> MalformedError:
    """The error for a character that may not stand there, or for the end of the text."""
    return MalformedError() if c else CutOffError()


def spaces(c: str) -> Scan:
    """White space, perhaps none."""
    while c and c in SPACE:
        c = yield
    return c


def literal(c: str, text: str) -> Scan:
    """Exactly this text.

    Raises:
        MalformedError: Something else.
    """
    for expected in text:
        if c != expected:
            raise unexpected(c)
        c = yield
    return c


def optional(c: str, text: str) -> Scan:
    """A text that may be missing altogether.

    Raises:
        MalformedError: It begins, and goes on as something else.
    """
    return (yield from literal(c, text)) if text and c == text[0] else c


def one_of(c: str, *texts: str) -> Found:
    """One of some texts, of which none begins with another; which one it was.

    Raises:
        MalformedError: Something else.
    """
    read = ""
    while c:
        read += c
        texts = tuple(each for each in texts if each.startswith(read))
        if not texts:
            break
        c = yield
        if read in texts:
            return read, c
    raise unexpected(c)


def word(c: str, end: str) -> Found:
    """A short text in which the first character of its end does not occur; the end is consumed.

    Raises:
        MalformedError: It is not short, or ends otherwise.
    """
    text = ""
    while c and c != end[0] and len(text) < MAX_HEADER:
        text += c
        c = yield
    return text, (yield from literal(c, end))


def until(c: str, end: str) -> Found:
    """A short text up to its end, which is consumed.

    Raises:
        MalformedError: It is not short, or never ends.
    """
    text = ""
    while c and len(text) < MAX_HEADER:
        text += c
        c = yield
        if text.endswith(end):
            return text.removesuffix(end), c
    raise unexpected(c)


def pour(
    c: str,
    ends: tuple[str, ...],
    put: Callable[[str], None],
    *,
    trim: str = "",
    most: int = 64,
    at_end: Callable[[], None] | None = None,
) -> Found:
    """A text of any length up to an end, as it comes; which end it was.

    Args:
        c: Its first character.
        ends: What ends it. It is consumed. The end of the reply, told as "", ends it too.
        put: Takes the text.
        trim: Characters to leave out at both of its sides.
        most: How many of them on a side, at most.
        at_end: Called when the end has been read, which is before the next character is known.
    """
    for _ in range(most):
        if not c or c not in trim:
            break
        c = yield
    held = ""  # what may be left out at the end, and what may be the end
    while c:
        held += c
        end = next((each for each in ends if held.endswith(each)), "")
        if end:
            if at_end is not None:
                at_end()
            c = yield
            return end, c
        body = held[: len(held) - max(overlap(held, each) for each in ends)]
        cut = max(len(body.rstrip(trim)) if trim else len(body), len(body) - most)
        if cut:
            put(held[:cut])
            held = held[cut:]
        c = yield
    put(held.rstrip(trim) if trim else held)
    return "", c
