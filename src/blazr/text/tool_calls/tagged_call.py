"""Calls with each argument between tags of its own: Qwen3-Coder, GLM, DeepSeek V3.2, MiniMax.

Strings stand there as they are, other values as JSON. Where the tags do not say which it is, the
tool's schema does; where there is none, what can be JSON is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from blazr.text.grammars.tool_call import Maybe, Part
from blazr.text.scanning import literal, one_of, pour, spaces, word
from blazr.text.splitter import CutOffError, MalformedError, Scan, Sink
from blazr.text.tool_calls.format import (
    Tools,
    ToolSpec,
    as_json,
    inside_string,
    text_of,
    with_definitions,
)
from blazr.text.tool_calls.json_scan import check_name, tool_name
from blazr.text.tool_calls.values import to_json, types_of

_STRING = frozenset({"string"})
_TEXT = ' string="true">'
_KINDS = {_TEXT: True, ' string="false">': False, ">": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """What stands where.

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


def scan_tagged(tags: Tags) -> Callable[[Tools, str, Sink], Scan]:
    """Reads calls of this kind."""

    def scan(tools: Tools, marker: str, sink: Sink) -> Scan:
        c = yield
        mark = tags.call
        if tags.call and marker != tags.call:
            c = yield from spaces(c)
            mark, c = yield from one_of(c, tags.call)
        while mark == tags.call:
            c = yield from _call(c, tools, sink, tags)
            if not tags.calls_end:
                return c
            c = yield from spaces(c)
            mark, c = yield from one_of(c, tags.call, tags.calls_end)
            sink.reopen()
        return c

    return scan


def _call(c: str, tools: Tools, sink: Sink, tags: Tags) -> Scan:
    name, c = yield from tool_name(c)
    name = check_name(name, tools)
    c = yield from literal(c, tags.name_end)
    c = yield from spaces(c)
    marks = tuple(filter(None, (tags.key, tags.other_key, tags.call_end)))
    mark, c = yield from one_of(c, *marks)
    sink.begin(name, ahead=True)
    lead = "{"
    try:
        while mark != tags.call_end:
            c = yield from _argument(c, tools.get(name), sink, tags=tags, lead=lead)
            lead = ", "
            c = yield from spaces(c)
            mark, c = yield from one_of(c, *marks)
    except CutOffError:
        raise
    except MalformedError:
        sink.close("}" if lead == ", " else "{}")
        raise
    sink.arguments("}" if lead == ", " else "{}", ahead=True)
    return c


def _argument(c: str, tool: ToolSpec | None, sink: Sink, *, tags: Tags, lead: str) -> Scan:
    key, c = yield from word(c, tags.key_end)
    kind = ""
    if tags.typed:
        kind, c = yield from one_of(c, *_KINDS)
    if tags.value:
        c = yield from spaces(c)
        _, c = yield from one_of(c, tags.value)
    types = types_of(tool, key)
    is_text = types == _STRING
    if _KINDS.get(kind) is not None:
        is_text = kind == _TEXT
        types -= _STRING
    sink.arguments(f"{lead}{as_json(key)}: ", ahead=True)
    if is_text:
        sink.arguments('"', ahead=True)
        c = yield from _poured(c, tags, lambda text: sink.arguments(inside_string(text)))
        sink.arguments('"', ahead=True)
        return c
    parts: list[str] = []
    c = yield from _poured(c, tags, parts.append)
    sink.arguments(to_json("".join(parts), types), ahead=True)
    return c


def _poured(c: str, tags: Tags, put: Callable[[str], None]) -> Scan:
    _, c = yield from pour(c, (tags.value_end,), put, trim=tags.trim, most=1)
    return c


def parts_tagged(tags: Tags) -> Callable[[ToolSpec], Sequence[Part]]:
    """What a call of this kind looks like to a grammar. Strings are any text up to their end."""

    def parts(tool: ToolSpec) -> Sequence[Part]:
        found: list[Part] = [tags.call + tool.name + tags.name_end + tags.line]
        for key in tool.properties:
            argument = tuple(_argument_parts(tags, tool, key, types_of(tool, key)))
            found += argument if key in tool.required else [Maybe(argument)]
        return (*found, tags.call_end)

    return parts


def _argument_parts(tags: Tags, tool: ToolSpec, key: str, types: frozenset[str]) -> Iterator[Part]:
    end = tags.trim + tags.value_end + tags.line
    is_text = types == _STRING
    yield _before_value(tags, key, is_text=is_text)
    if is_text:
        yield text_of(tool, end)
    else:
        yield with_definitions(tool, key)
        yield end


def spell_tagged(tags: Tags) -> Callable[[str, Mapping[str, object]], str]:
    """Writes a call of this kind."""

    def spell(name: str, values: Mapping[str, object]) -> str:
        text = tags.call + name + tags.name_end + tags.line
        for key, value in values.items():
            is_text = isinstance(value, str)
            text += _before_value(tags, key, is_text=is_text)
            text += str(value) if is_text else as_json(value)
            text += tags.trim + tags.value_end + tags.line
        return text + tags.call_end

    return spell


def _before_value(tags: Tags, key: str, *, is_text: bool) -> str:
    kind = f' string="{str(is_text).lower()}">' if tags.typed else ""
    between = tags.line + tags.value if tags.value else ""
    return tags.key + key + tags.key_end + kind + between + tags.trim
