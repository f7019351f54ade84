"""The input of a custom tool out of the arguments that a model writes for it, as they come."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from blazr.text.splitter import MalformedError, Piece, Scan, Sink, Splitter, spaces, symbol
from blazr.text.tool_calls.json_scan import quoted, short_string


def input_splitter() -> Splitter:
    """What takes the one text out of ``{"input": "..."}``, whatever its key.

    Arguments of another shape are the input as they are: nothing is lost.
    """
    return Splitter(_scan, starters=("{",))


def input_text(pieces: Iterable[Piece]) -> str:
    """The input in what the splitter has found."""
    return "".join(each for each in pieces if isinstance(each, str))


def _scan(_: str, sink: Sink) -> Scan:
    c = yield from spaces((yield))
    _, c = yield from short_string(c)
    c = yield from symbol(c, ":")
    if c != '"':
        raise MalformedError
    sink.consume()
    with suppress(MalformedError):
        c = yield from quoted(c, sink, sink.text)
    while c:  # nothing behind the text belongs to it
        sink.consume()
        c = yield
    return c
