"""Scans of JSON that a model writes: strict in what begins a call, lenient in its arguments.

Arguments pass through as they come. What is wrong with them is for whoever called to see, as with
every API of this kind; only raw line breaks in strings are escaped, because models write them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from string import hexdigits

from blazr.text.scanning import MAX_HEADER, Found, literal
from blazr.text.splitter import CutOffError, MalformedError, Scan, Sink
from blazr.text.tool_calls.format import Tools, inside_string

NAME = re.compile(r"[\w.:/-]{1,128}")
_CODE_LENGTHS = {"u": 4, "x": 2}
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
    """A short JSON string.

    Raises:
        MalformedError: It is none.
    """
    if c != '"':
        raise MalformedError
    text = c
    escaped = False
    while len(text) < MAX_HEADER:
        c = yield
        if not c:
            break
        text += c
        if c == '"' and not escaped:
            c = yield
            try:
                return str(json.loads(text, strict=False)), c
            except ValueError:
                break
        escaped = c == "\\" and not escaped
    raise MalformedError


def scalar(c: str) -> Found:
    """A short JSON string, or the text of a number or word.

    Raises:
        MalformedError: It is none of them.
    """
    if c == '"':
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
    """A JSON object or array, to where its brackets close or the text ends, as it comes."""
    depth = 0
    in_string = escaped = False
    while c:
        if in_string:
            put(inside_string(c) if c < " " else c)
            in_string = c != '"' or escaped
            escaped = c == "\\" and not escaped
        else:
            put(c)
            in_string = c == '"'
            depth += (c in "{[") - (c in "}]")
            if not depth and not in_string:
                c = yield
                break
        c = yield
    return c


def check_arguments(c: str) -> None:
    """Refuse what cannot begin arguments: they are an object, a string that holds one, or null.

    Raises:
        MalformedError: It cannot.
    """
    if c not in {"{", '"', "n"}:
        raise MalformedError


def arguments(c: str, sink: Sink) -> Scan:
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


def quoted(quote: str, sink: Sink, put: Callable[[str], None]) -> Scan:
    """A string's content without its escapes, as it comes; its first quote was consumed.

    Raises:
        MalformedError: An escape is wrong, or the text ends.
    """
    high = ""  # half a surrogate pair
    c = yield
    while c != quote:
        if not c:
            raise CutOffError
        text = (yield from _escaped()) if c == "\\" else c
        text, high = high + text, ""
        if text and "\ud800" <= text[-1] < "\udc00":
            text, high = text[:-1], text[-1]
        put(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
        c = yield
    sink.settle()
    return (yield)


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
