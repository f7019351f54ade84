"""Calls as JSON objects with a name and arguments in them, one or a list, between two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from blazr.text.grammars.tool_call import CallPart
from blazr.text.splitter import MalformedError, Scan, Sink, comma, literal, optional, spaces, symbol
from blazr.text.tool_calls.format import CallSyntax, Tools, ToolSpec, arguments_of, as_json
from blazr.text.tool_calls.json_scan import (
    balanced,
    check_arguments,
    check_name,
    read_arguments,
    scalar,
    short_string,
)

# Fields that tell nothing: ids among them that say which call of the reply it is.
_IGNORED = ("id", "tool_call_id", "index")
_RESULT = "return"  # Granite's tools say what they return, and it makes that up


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls(CallSyntax):
    """JSON objects.

    Args:
        name: Keys for the name, the usual one first; none where the name is the key itself.
        arguments: Keys for the arguments.
        ids: Keys for an id.
        must_be_known: Only tools that were given are called, as nothing else tells a call.
        ends: What follows the calls, if it does, by the marker before them. What is no marker is
            a starter, and the calls' own first character.
        between: Characters that may part one call from another outside of a list.
    """

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ("id",)
    must_be_known: bool = False
    ends: Mapping[str, str] = field(default_factory=dict)
    between: str = ""

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        c = (yield) if marker in self.ends else marker
        c = yield from spaces(c)
        c = yield from self.read_all(c, tools, sink)
        c = yield from optional(c, "}")  # closed once too often
        c = yield from spaces(c)
        while self.between and c and c in self.between + "{":
            if c != "{":
                c = yield from symbol(c, c)
            sink.reopen()
            c = yield from self.read(c, tools, sink)
            c = yield from spaces(c)
        return (yield from optional(c, self.ends.get(marker, "")))

    @override
    def parts(self, tool: ToolSpec) -> Sequence[CallPart]:
        return (self._head(tool.name), arguments_of(tool), "}")

    @override
    def spell(self, name: str, arguments: Mapping[str, object]) -> str:
        return self._head(name) + as_json(arguments) + "}"

    def _head(self, name: str) -> str:
        if not self.name:
            return "{" + as_json(name) + ": "
        return f'{{"{self.name[0]}": {as_json(name)}, "{self.arguments[0]}": '

    def read_all(self, c: str, tools: Tools, sink: Sink) -> Scan:
        """One call, or a list of them.

        Raises:
            MalformedError: Something else.
        """
        if c != "[":
            return (yield from self.read(c, tools, sink))
        c = yield from symbol(c, "[")
        while c and c != "]":
            sink.reopen()
            c = yield from self.read(c, tools, sink)
            c = yield from optional(c, "}")  # closed once too often
            c = yield from comma(c, "]")
        return (yield from literal(c, "]"))

    def read(self, c: str, tools: Tools, sink: Sink) -> Scan:
        """One call. What is known of it is told when its arguments begin.

        Raises:
            MalformedError: Something else.
        """
        call = _Call(tools, sink, self)
        c = yield from symbol(c, "{")
        while c != "}":
            key, c = yield from short_string(c)
            c = yield from symbol(c, ":")
            c = yield from call.value(key, c)
            c = yield from comma(c, "}")
        call.end()
        return (yield)


class _Call:
    """A call as far as it has been read."""

    def __init__(self, tools: Tools, sink: Sink, shape: JsonCalls) -> None:
        self._tools = tools
        self._sink = sink
        self._shape = shape
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
            return (yield from shape.read(c, self._tools, self._sink))
        if key == _RESULT and self._has_begun:
            return (yield from balanced(c, lambda _: self._sink.consume()))
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
        self._sink.consume()

    def _pass_arguments(self, c: str) -> Scan:
        check_arguments(c)
        if self._name is not None:
            self._has_begun = True
            self._sink.begin(self._name, self._id)
            return (yield from read_arguments(c, self._sink))
        if c != "{":
            raise MalformedError
        self._arguments = []
        return (yield from balanced(c, self._arguments.append))
