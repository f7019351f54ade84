"""Calls as JSON objects with a name and arguments in them, one or a list, between two markers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blazr.text.grammars.tool_call import Part
from blazr.text.scanning import literal, spaces
from blazr.text.splitter import MalformedError, Scan, Sink
from blazr.text.tool_calls.format import Tools, ToolSpec, arguments_of, as_json
from blazr.text.tool_calls.json_scan import (
    arguments,
    balanced,
    check_arguments,
    check_name,
    scalar,
    short_string,
)

# Fields that tell nothing: ids among them that say which call of the reply it is.
_IGNORED = ("id", "tool_call_id", "index")
_RESULT = "return"  # Granite's tools say what they return, and it makes that up


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the objects look like.

    Args:
        name: Keys for the name, the usual one first; none where the name is the key itself.
        arguments: Keys for the arguments.
        ids: Keys for an id.
        must_be_known: Only tools that were given are called, as nothing else tells a call.
    """

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ("id",)
    must_be_known: bool = False


def json_calls(c: str, tools: Tools, sink: Sink, shape: Shape) -> Scan:
    """One call, or a list of them.

    Raises:
        MalformedError: Something else.
    """
    if c != "[":
        return (yield from json_call(c, tools, sink, shape))
    c = yield
    c = yield from spaces(c)
    while c and c != "]":
        sink.reopen()
        c = yield from json_call(c, tools, sink, shape)
        c = yield from spaces(c)
        if c == "}":  # closed once too often
            c = yield from spaces((yield))
        if c == ",":
            c = yield
            c = yield from spaces(c)
        elif c != "]":
            raise MalformedError
    return (yield from literal(c, "]"))


def json_call(c: str, tools: Tools, sink: Sink, shape: Shape) -> Scan:
    """One call. What is known of it is told when its arguments begin.

    Raises:
        MalformedError: Something else.
    """
    call = _Call(tools, sink, shape)
    c = yield from literal(c, "{")
    while True:
        c = yield from spaces(c)
        key, c = yield from short_string(c)
        c = yield from spaces(c)
        c = yield from literal(c, ":")
        c = yield from spaces(c)
        c = yield from call.value(key, c)
        c = yield from spaces(c)
        if c == "}":
            call.end()
            return (yield)
        if c != ",":
            raise MalformedError
        c = yield


class _Call:
    """A call as far as it has been read."""

    def __init__(self, tools: Tools, sink: Sink, shape: Shape) -> None:
        self._tools, self._sink, self._shape = tools, sink, shape
        self._name: str | None = None
        self._id: str | None = None
        self._arguments: list[str] | None = None  # that came before the name
        self._has_begun = self._is_wrapped = False

    def value(self, key: str, c: str) -> Scan:
        shape = self._shape
        if not shape.name and self._name is None:
            self._name = check_name(key, self._tools)
            return (yield from self._pass_arguments(c))
        if key in shape.name and self._name is None:
            name, c = yield from short_string(c)
            self._name = check_name(name, self._tools, must_be_known=shape.must_be_known)
            return c
        if key in shape.arguments and self._arguments is None and not self._has_begun:
            return (yield from self._pass_arguments(c))
        if key == "function" and c == "{" and self._name is None and not self._is_wrapped:
            self._is_wrapped = True
            return (yield from json_call(c, self._tools, self._sink, shape))
        if key == _RESULT and self._has_begun:
            return (yield from balanced(c, lambda _: self._sink.settle()))
        return (yield from self._more(key, c))

    def _more(self, key: str, c: str) -> Scan:
        """A field besides name and arguments."""
        shape = self._shape
        if key not in {*shape.ids, *_IGNORED, "type"}:
            raise MalformedError
        text, c = yield from scalar(c)
        if key == "type" and text != "function":
            raise MalformedError
        if key in shape.ids and text not in {"", "null"}:
            self._id = text
        return c

    def end(self) -> None:
        """The object closes."""
        if self._name is None and not self._is_wrapped:
            raise MalformedError
        if self._name is not None and not self._has_begun:
            self._sink.begin(self._name, self._id)
            self._sink.arguments("".join(self._arguments or ["{}"]))
        self._sink.settle()

    def _pass_arguments(self, c: str) -> Scan:
        check_arguments(c)
        if self._name is not None:
            self._has_begun = True
            self._sink.begin(self._name, self._id)
            return (yield from arguments(c, self._sink))
        if c != "{":
            raise MalformedError
        self._arguments = []
        return (yield from balanced(c, self._arguments.append))


def scan_json(
    ends: Mapping[str, str], shape: Shape = Shape(), *, between: str = ""
) -> Callable[[Tools, str, Sink], Scan]:
    """Reads calls of this kind.

    Args:
        ends: What follows the calls, if it does, by the marker before them. What is no marker is
            a starter, and the calls' own first character.
        shape: What the objects look like.
        between: Characters that may part one call from another outside of a list.
    """

    def scan(tools: Tools, marker: str, sink: Sink) -> Scan:
        c = (yield) if marker in ends else marker
        c = yield from spaces(c)
        c = yield from json_calls(c, tools, sink, shape)
        c = yield from spaces(c)
        while between and c and c in between + "{":
            if c != "{":
                c = yield
                c = yield from spaces(c)
            sink.reopen()
            c = yield from json_call(c, tools, sink, shape)
            c = yield from spaces(c)
        return (yield from optional(c, ends.get(marker, "")))

    return scan


def optional(c: str, text: str) -> Scan:
    """A text that may be missing altogether.

    Raises:
        MalformedError: It begins, and goes on as something else.
    """
    return (yield from literal(c, text)) if text and c == text[0] else c


def parts_json(shape: Shape = Shape()) -> Callable[[ToolSpec], Sequence[Part]]:
    """What a call of this kind looks like to a grammar."""

    def parts(tool: ToolSpec) -> Sequence[Part]:
        return (_head(tool.name, shape), arguments_of(tool), "}")

    return parts


def spell_json(shape: Shape = Shape()) -> Callable[[str, Mapping[str, object]], str]:
    """Writes a call of this kind."""
    return lambda name, values: _head(name, shape) + as_json(values) + "}"


def _head(name: str, shape: Shape) -> str:
    if not shape.name:
        return "{" + as_json(name) + ": "
    return f'{{"{shape.name[0]}": {as_json(name)}, "{shape.arguments[0]}": '
