"""Calls as Python writes them, in a list: ``[f(city="Genf", days=3), g()]``.

Source: Llama 3.2 and 4 model cards; Liquid AI's LFM2 documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from typing_extensions import override

from blazr.text.grammars.tool_call import CallPart
from blazr.text.splitter import (
    CutOffError,
    MalformedError,
    Scan,
    Sink,
    comma,
    literal,
    optional,
    spaces,
    symbol,
)
from blazr.text.tool_calls.format import (
    CallSyntax,
    Tools,
    ToolSpec,
    argument_of,
    as_json,
    listed_arguments,
    put_string,
)
from blazr.text.tool_calls.json_call import JsonCalls
from blazr.text.tool_calls.json_scan import check_name, quoted, tool_name
from blazr.text.tool_calls.values import python_to_json

_LONGEST_VALUE = 1_000_000


@dataclass(frozen=True, slots=True)
class PythonicCalls(CallSyntax):
    """A list of calls.

    Args:
        ends: What follows the list, if it does, by the marker before it. What is no marker is a
            starter, the list's own bracket; only known tools are called then.
    """

    ends: Mapping[str, str] = field(default_factory=dict)

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        must_be_known = marker not in self.ends
        json = JsonCalls(must_be_known=must_be_known)  # which some were trained on as well
        c = marker if must_be_known else (yield)
        c = yield from spaces(c)
        if c == "{":
            c = yield from json.read(c, tools, sink)
            return (yield from optional(c, self.ends.get(marker, "")))
        c = yield from symbol(c, "[")
        while c and c != "]":
            sink.reopen()
            if c == "{":
                c = yield from json.read(c, tools, sink)
            else:
                c = yield from _call(c, tools, sink, must_be_known=must_be_known)
            c = yield from comma(c, "]")
        c = yield from literal(c, "]")
        return (yield from optional(c, self.ends.get(marker, "")))

    @override
    def parts(self, tool: ToolSpec) -> Sequence[CallPart]:
        """Values are JSON, which is read like Python's."""

        def parts_of(before: str, key: str) -> tuple[CallPart, ...]:
            return (f"{before}{key}=", argument_of(tool, key))

        return (tool.name + "(", *listed_arguments(tool, ", ", parts_of), ")")

    @override
    def spell(self, name: str, arguments: Mapping[str, object]) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _call(c: str, tools: Tools, sink: Sink, *, must_be_known: bool) -> Scan:
    name, c = yield from tool_name(c)
    name = check_name(name, tools, must_be_known=must_be_known)
    c = yield from literal(c, "(")
    c = yield from spaces(c)
    if c == ",":  # a grammar lets it be written where the first of several arguments is left out
        c = yield from spaces((yield))
    lead = "{"
    has_begun = False
    try:
        while c != ")":
            key, c = yield from tool_name(c)
            c = yield from symbol(c, "=")
            if not has_begun:
                sink.begin(name, ahead=True)
                has_begun = True
            c = yield from _argument(c, f"{lead}{as_json(key)}: ", sink)
            lead = ", "
            c = yield from comma(c, ")")
    except CutOffError:
        raise
    except MalformedError:
        if has_begun:
            sink.close("}" if lead == ", " else "{}")
        raise
    if not has_begun:
        sink.begin(name)
    sink.arguments("}" if lead == ", " else "{}")
    return (yield)


def _argument(c: str, head: str, sink: Sink) -> Scan:
    if c in {'"', "'"}:
        sink.arguments(head + '"')
        c = yield from _text(c, sink)
        sink.arguments('"', ahead=True)
        return c
    text = ""
    depth = 0
    quote = ""
    while c and (depth or quote or c not in ",)"):
        text += c
        if quote:
            if c == "\\":
                text += yield
            quote = "" if c == quote else quote
        else:
            quote = c if c in "\"'" else ""
            depth += (c in "([{") - (c in ")]}")
        c = yield
        if len(text) > _LONGEST_VALUE:
            break
    value = python_to_json(text) if c else text
    if value is None:
        raise MalformedError
    sink.arguments(head + value, ahead=True)
    return c


def _text(quote: str, sink: Sink) -> Scan:
    """A string between one quote or three on each side, as it comes; the first was looked at."""
    put = partial(put_string, sink)
    c = yield
    if c != quote:
        return (yield from quoted(quote, sink, put, first=c))
    c = yield
    return (yield from quoted(quote * 3, sink, put)) if c == quote else c  # or it is empty
