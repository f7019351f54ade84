"""Calls with each argument between tags of its own: Qwen3-Coder, GLM, DeepSeek V3.2, MiniMax.

Strings stand there as they are, other values as JSON. Where the tags do not say which it is, the
tool's schema does; where there is none, what can be JSON is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from typing_extensions import override

from blazr.text.grammars.tool_call import CallPart, Maybe, OneOf
from blazr.text.splitter import (
    CutOffError,
    MalformedError,
    Scan,
    Sink,
    literal,
    one_of,
    stream_until,
    word,
)
from blazr.text.tool_calls.format import (
    CallSyntax,
    Tools,
    ToolSpec,
    as_json,
    put_string,
    text_of,
    with_definitions,
)
from blazr.text.tool_calls.json_scan import check_name, tool_name
from blazr.text.tool_calls.values import to_json, types_of, values_of

_STRING = frozenset({"string"})
_MOST_VALUES = 4096  # that are written out for the arguments of a tool, together
_TEXT = 'string="true">'
_JSON = 'string="false">'
_KINDS = (_TEXT, _JSON, ">")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls(CallSyntax):
    """A name, and each argument between tags.

    Args:
        call: Before a name; nothing where the format's marker stands there already.
        name_end: After it.
        key: Before an argument's name.
        key_end: After it. Its first character is in no name.
        other_key: What some write instead of ``key``.
        value: Before its value, where something more stands there.
        value_end: After its value.
        call_end: After the last argument.
        calls_end: After the last call; where there is none, a call ends with its own tag.
        typed: Whether the tag with the argument's name says whether it is a string.
        trim: What is left out once on both sides of a value.
        line: What parts the tags from each other when they are written.
    """

    call: str
    name_end: str
    key: str
    key_end: str
    other_key: str = ""
    value: str = ""
    value_end: str
    call_end: str
    calls_end: str = ""
    typed: bool = False
    trim: str = ""
    line: str = "\n"

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        c = yield
        mark = self.call
        if self.call and marker != self.call:
            mark, c = yield from one_of(c, self.call)
        while mark == self.call:
            c = yield from _call(c, tools, sink, self)
            if not self.calls_end:
                return c
            mark, c = yield from one_of(c, self.call, self.calls_end)
            sink.reopen()
        return c

    @override
    def parts(self, tool: ToolSpec) -> Sequence[CallPart]:
        """A string is any text up to its end, unless the schema lists the values there are."""
        found: list[CallPart] = [self.call + tool.name + self.name_end + self.line]
        left = _MOST_VALUES
        for key in tool.properties:
            values = values_of(tool, key)
            left -= len(values)
            argument = self._argument_parts(tool, key, values if left >= 0 else [])
            found += argument if key in tool.required else [Maybe(argument)]
        return (*found, self.call_end)

    def _argument_parts(
        self, tool: ToolSpec, key: str, values: Sequence[object]
    ) -> tuple[CallPart, ...]:
        if values:
            return (OneOf(tuple((self._spelled(key, each),) for each in values)),)
        types = types_of(tool, key)
        end = self.trim + self.value_end + self.line
        text = (self._before_value(key, is_text=True), text_of(tool, end))
        if types == _STRING:
            return text
        value = (self._before_value(key, is_text=False), with_definitions(tool, key), end)
        if types and "string" not in types:
            return value
        # where no tag tells them apart, a text between quotes would be read with its quotes
        return (OneOf((text, value)),) if self.typed else text

    @override
    def spell(self, name: str, arguments: Mapping[str, object]) -> str:
        text = self.call + name + self.name_end + self.line
        text += "".join(self._spelled(key, value) for key, value in arguments.items())
        return text + self.call_end

    def _spelled(self, key: str, value: object) -> str:
        is_text = isinstance(value, str)
        written = str(value) if is_text else as_json(value)
        head = self._before_value(key, is_text=is_text)
        return head + written + self.trim + self.value_end + self.line

    def _before_value(self, key: str, *, is_text: bool) -> str:
        kind = f' string="{str(is_text).lower()}">' if self.typed else ""
        between = self.line + self.value if self.value else ""
        return self.key + key + self.key_end + kind + between + self.trim


def _call(c: str, tools: Tools, sink: Sink, tags: TaggedCalls) -> Scan:
    name, c = yield from tool_name(c)
    name = check_name(name, tools)
    c = yield from literal(c, tags.name_end)
    marks = tuple(filter(None, (tags.key, tags.other_key, tags.call_end)))
    mark, c = yield from one_of(c, *marks)
    sink.begin(name, ahead=True)
    lead = "{"
    try:
        while mark != tags.call_end:
            c = yield from _argument(c, tools.get(name), sink, tags=tags, lead=lead)
            lead = ", "
            mark, c = yield from one_of(c, *marks)
    except CutOffError:
        raise
    except MalformedError:
        sink.close("}" if lead == ", " else "{}")
        raise
    sink.arguments("}" if lead == ", " else "{}", ahead=True)
    return c


def _argument(c: str, tool: ToolSpec | None, sink: Sink, *, tags: TaggedCalls, lead: str) -> Scan:
    key, c = yield from word(c, tags.key_end)
    kind = ""
    if tags.typed:
        kind, c = yield from one_of(c, *_KINDS)
    if tags.value:
        _, c = yield from one_of(c, tags.value)
    types = types_of(tool, key)
    is_text = types == _STRING
    if kind in {_TEXT, _JSON}:
        is_text = kind == _TEXT
        types -= _STRING
    sink.arguments(f"{lead}{as_json(key)}: ", ahead=True)
    if is_text:
        sink.arguments('"', ahead=True)
        c = yield from _stream_value(c, tags, partial(put_string, sink))
        sink.arguments('"', ahead=True)
        return c
    parts: list[str] = []
    c = yield from _stream_value(c, tags, parts.append)
    sink.arguments(to_json("".join(parts), types, is_json=kind == _JSON), ahead=True)
    return c


def _stream_value(c: str, tags: TaggedCalls, put: Callable[[str], None]) -> Scan:
    _, c = yield from stream_until(c, (tags.value_end,), put, trim=tags.trim, most=1)
    return c
