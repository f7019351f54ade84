"""Scans of JSON that a model writes: strict in what begins a call, lenient in its arguments.

Arguments pass through as they come. What is wrong with them is for whoever called to see, as with
every API of this kind. Only what models often write is put right: raw line breaks in strings, and
Python's spelling of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from string import hexdigits

from blazr.text.grammars.plain import inside_string
from blazr.text.splitter import (
    MAX_HEADER,
    SPACE,
    CutOffError,
    Found,
    MalformedError,
    Scan,
    Sink,
    literal,
)
from blazr.text.tool_calls.format import Tools
from blazr.text.tool_calls.values import PYTHON_WORDS, unescape

NAME = re.compile(r"[\w.:/-]{1,128}")
_CODE_LENGTHS = {"u": 4, "x": 2}
_QUOTES = frozenset("\"'")
_OF_PYTHON = {"'": "'", "x": r"\u00"}  # escapes that JSON does not have
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def check_name(name: str, tools: Tools, *, must_be_known: bool = False) -> str:
    """A tool's name.

    Raises:
        MalformedError: It is none, or that of no tool.
    """
    if not NAME.fullmatch(name) or (must_be_known and tools and name not in tools):
        raise MalformedError
    return name


def tool_name(c: str) -> Found:
    """The characters that can be a tool's name, perhaps none."""
    name = ""
    while c and NAME.fullmatch(name + c):
        name += c
        c = yield
    return name, c


def short_string(c: str) -> Found:
    """A short JSON string, or one of Python's.

    Raises:
        MalformedError: It is none.
    """
    if c not in _QUOTES:
        raise MalformedError
    quote = text = c
    escaped = False
    while len(text) < MAX_HEADER:
        c = yield
        if not c:
            break
        text += c
        if c == quote and not escaped:
            return unescape(text[1:-1]), (yield)
        escaped = c == "\\" and not escaped
    raise MalformedError


def scalar(c: str) -> Found:
    """A short string, or the text of a number or word.

    Raises:
        MalformedError: It is none of them.
    """
    if c in _QUOTES:
        return (yield from short_string(c))
    text = ""
    while c and (c.isalnum() or c in "+-."):
        text += c
        c = yield
        if len(text) > MAX_HEADER:
            break
    if not text or len(text) > MAX_HEADER:
        raise MalformedError
    return text, c


def balanced(c: str, put: Callable[[str], None]) -> Scan:
    """A JSON value, to where its brackets close or the text ends, as it comes."""
    depth = 0
    before = ":"
    while c:
        if c == '"' or (c == "'" and before in "{[,:"):  # elsewhere it is an apostrophe
            c = yield from _string(c, put)
            before = '"'
        elif c.isalnum() or c in "+-.":
            word = ""
            while c and (c.isalnum() or c in "+-."):
                word += c
                c = yield
            put(PYTHON_WORDS.get(word, word))
            before = "a"
        else:
            put(c)
            depth += (c in "{[") - (c in "}]")
            before = before if c in SPACE else c
            c = yield
        if depth <= 0:
            break
    return c


def _string(quote: str, put: Callable[[str], None]) -> Scan:
    """A string as JSON spells it, as it comes."""
    put('"')
    c = yield
    while c and c != quote:
        if c == "\\":
            c = yield
            text = _OF_PYTHON.get(c) if quote == "'" else None
            put(text or "\\" + c)
        else:
            put(inside_string(c) if c < " " or c == '"' else c)
        c = (yield) if c else c
    if c:
        put('"')
        c = yield
    return c


def read_call(c: str, sink: Sink, name: str, call_id: str | None = None) -> Scan:
    """A call of a name that was read, and its arguments.

    Raises:
        MalformedError: These cannot be arguments.
    """
    check_arguments(c)
    sink.begin(name, call_id)
    return (yield from read_arguments(c, sink))


def check_arguments(c: str) -> None:
    """Refuse what cannot begin arguments: they are an object, a string that holds one, or null.

    Raises:
        MalformedError: It cannot.
    """
    if c not in {"{", '"', "n"}:
        raise MalformedError


def read_arguments(c: str, sink: Sink) -> Scan:
    """The arguments of a call that has begun; see `check_arguments`.

    Raises:
        MalformedError: A string or null is misspelled.
    """
    if c == '"':
        return (yield from quoted(c, sink, sink.arguments))
    if c == "n":
        sink.arguments("{}")
        return (yield from literal(c, "null"))
    return (yield from balanced(c, sink.arguments))


def quoted(end: str, sink: Sink, put: Callable[[str], None], *, first: str | None = None) -> Scan:
    """A string's content without its escapes, as it comes; what begins it was consumed.

    Args:
        end: The quote, or quotes, after it.
        sink: Where it is accounted for.
        put: Takes it.
        first: Its first character, if that was read already.

    Raises:
        MalformedError: An escape is wrong, or the text ends.
    """
    high = ""  # half a surrogate pair
    held = ""  # quotes that may be the end
    c = (yield) if first is None else first
    while c:
        held += c if c == end[0] else ""
        if held == end:
            sink.consume()
            return (yield)
        if c != end[0]:
            text = high + held + ((yield from _escaped()) if c == "\\" else c)
            high = held = ""
            if "\ud800" <= text[-1:] < "\udc00":
                text, high = text[:-1], text[-1]
            put(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
        c = yield
    raise CutOffError


def _escaped() -> Generator[None, str, str]:
    """What stands after a backslash; its last character is consumed."""
    c = yield
    if c not in _CODE_LENGTHS:
        return _ESCAPES.get(c, c)
    code = ""
    while len(code) < _CODE_LENGTHS[c]:
        code += yield
        if not code or code[-1] not in hexdigits:
            raise MalformedError
    return chr(int(code, 16))
