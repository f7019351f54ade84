"""Calls with bare keys, as Gemma 4 writes them: ``call:f{city:<|"|>Genf<|"|>,days:3}``.

Like JSON with bare keys, and a special token for the quotes. Sources: the chat templates of Gemma 4
and of FunctionGemma, whose tokens have other names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from typing_extensions import override

from blazr.text.grammars.tool_call import CallPart
from blazr.text.splitter import (
    SPACE,
    Scan,
    Sink,
    literal,
    optional,
    spaces,
    stream_until,
    unexpected,
)
from blazr.text.tool_calls.format import (
    CallSyntax,
    Tools,
    ToolSpec,
    as_json,
    listed_arguments,
    put_string,
    text_of,
    with_definitions,
)
from blazr.text.tool_calls.json_scan import check_name, quoted, tool_name
from blazr.text.tool_calls.values import python_to_json

_BARE_KEY = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BareKeyCalls(CallSyntax):
    """A name, and its arguments with bare keys.

    Args:
        before: Text before the name.
        quote: What stands around texts.
        end: What follows the arguments, if it does.
    """

    before: str
    quote: str
    end: str

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        c = yield from spaces((yield))
        c = yield from literal(c, self.before)
        name, c = yield from tool_name(c)
        name = check_name(name, tools)
        if c != "{":
            raise unexpected(c)
        sink.begin(name, ahead=True)
        c = yield from _value(c, sink, self.quote)
        return (yield from optional(c, self.end))

    @override
    def parts(self, tool: ToolSpec) -> Sequence[CallPart]:
        """What is not simply a text is JSON, which is read too."""

        def parts_of(before: str, key: str) -> tuple[CallPart, ...]:
            schema = with_definitions(tool, key)
            head = f"{before}{_key(self.quote, key)}:"
            if set(schema) <= {"type", "description", "title"} and schema.get("type") == "string":
                return (head + self.quote, text_of(tool, self.quote))
            return (head, schema)

        return (f"{self.before}{tool.name}{{", *listed_arguments(tool, ",", parts_of), "}")

    @override
    def spell(self, name: str, arguments: Mapping[str, object]) -> str:
        return f"{self.before}{name}{_spelled(self.quote, arguments)}"


def _value(c: str, sink: Sink, quote: str) -> Scan:
    """An object with all that is in it, as JSON. What is wrong with it stays wrong."""
    inside: list[str] = []  # the brackets around what comes
    lead = ""
    is_key = False
    after_item = False
    while c:
        if c in SPACE:
            c = yield
            continue
        if c not in "{[:,]}":
            c = yield from _scalar(c, sink, quote, lead, is_key=is_key)
            lead = ""
            after_item = True
            continue
        if c == ",":
            lead = ", " if after_item else lead
        else:
            sink.arguments({":": ": ", "{": lead + "{", "[": lead + "["}.get(c, c))
            lead = ""
        if c in "{[":
            inside.append(c)
        elif c in "]}":
            inside.pop()
        is_key = c in "{[," and inside[-1] == "{"
        after_item = c in "]}"
        c = yield
        if not inside:
            break
    return c


def _scalar(c: str, sink: Sink, quote: str, lead: str, *, is_key: bool) -> Scan:
    """A text between quotes of either kind, or what stands there bare."""
    put = partial(put_string, sink)

    def close() -> None:
        sink.arguments('"')

    if c == '"':
        sink.arguments(lead + c)
        c = yield from quoted(c, sink, put)
        sink.arguments('"', ahead=True)
        return c
    text = ""
    ends = ":}" if is_key else ",}]"
    while c and c not in ends:
        text += c
        if text == quote:
            sink.arguments(lead + '"')
            _, c = yield from stream_until((yield), (quote,), put, at_end=close)
            return c
        c = yield
    text = text.strip()
    value = None if is_key else python_to_json(text)
    sink.arguments(lead + (as_json(text) if value is None else value), ahead=True)
    return c


def _spelled(quote: str, value: object) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, Mapping):
        inner = (f"{_key(quote, str(key))}:{_spelled(quote, each)}" for key, each in value.items())
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_spelled(quote, each) for each in value) + "]"
    return as_json(value)


def _key(quote: str, name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else quote + name + quote
