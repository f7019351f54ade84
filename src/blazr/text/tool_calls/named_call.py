"""Calls whose name stands before their arguments, which are JSON: Mistral, DeepSeek, Kimi."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from blazr.text.grammars.tool_call import Part
from blazr.text.scanning import literal, one_of, spaces, unexpected, word
from blazr.text.splitter import Scan, Sink
from blazr.text.tool_calls.format import Tools, ToolSpec, arguments_of, as_json
from blazr.text.tool_calls.json_call import Shape, json_calls, optional
from blazr.text.tool_calls.json_scan import arguments, check_arguments, check_name, tool_name


def deepseek_token(name: str) -> str:
    """A special token of DeepSeek's vocabularies, which has fullwidth bars."""
    return f"<\uff5c{name}\uff5c>"


DEEPSEEK_CALLS = deepseek_token("tool▁calls▁begin")
DEEPSEEK_CALL = deepseek_token("tool▁call▁begin")
DEEPSEEK_NAME_END = deepseek_token("tool▁sep")
DEEPSEEK_CALL_END = deepseek_token("tool▁call▁end")
DEEPSEEK_CALLS_END = deepseek_token("tool▁calls▁end")
KIMI_CALLS = "<|tool_calls_section_begin|>"
KIMI_CALL = "<|tool_call_begin|>"
KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
KIMI_CALL_END = "<|tool_call_end|>"
KIMI_CALLS_END = "<|tool_calls_section_end|>"
_FUNCTION_END = "</function>"


def parts_named(before: str, between: str, after: str) -> Callable[[ToolSpec], Sequence[Part]]:
    """What a call looks like to a grammar: text, name, text, arguments, text."""
    return lambda tool: (before + tool.name + between, arguments_of(tool), after)


def spell_named(
    before: str, between: str, after: str
) -> Callable[[str, Mapping[str, object]], str]:
    """Writes a call of this kind."""
    return lambda name, values: before + name + between + as_json(values) + after


def scan_mistral(tools: Tools, marker: str, sink: Sink) -> Scan:
    """``[TOOL_CALLS]`` and a JSON list, or a name, perhaps ``[CALL_ID]``, ``[ARGS]``, arguments."""
    del marker
    c = yield from spaces((yield))
    if c in {"[", "{"}:
        return (yield from json_calls(c, tools, sink, Shape()))
    name, c = yield from tool_name(c)
    mark, call_id = "", None
    if c != "{":  # tokens may be left out of the text
        mark, c = yield from one_of(c, "[CALL_ID]", "[ARGS]")
    if mark == "[CALL_ID]":
        call_id, c = yield from word(c, "[ARGS]")
    return (yield from _call(c, sink, check_name(name, tools), call_id))


def scan_deepseek(tools: Tools, marker: str, sink: Sink) -> Scan:
    """DeepSeek's, with a type and a fence around the arguments (V3, R1), or without (V3.1)."""
    c = yield
    if marker == DEEPSEEK_CALLS:
        c = yield from spaces(c)
        c = yield from literal(c, DEEPSEEK_CALL)
    while True:
        name, c = yield from word(c, DEEPSEEK_NAME_END)
        if name == "function" and c and c not in '{"':
            name, c = yield from tool_name(c)
            c = yield from spaces(c)
            c = yield from optional(c, DEEPSEEK_NAME_END)  # for the line's end, at times
            c = yield from optional(c, "```json")
            c = yield from spaces(c)
        c = yield from _call(c, sink, check_name(name.strip(), tools))
        c = yield from spaces(c)
        c = yield from optional(c, "```")
        c = yield from spaces(c)
        c = yield from literal(c, DEEPSEEK_CALL_END)
        c = yield from spaces(c)
        mark, c = yield from one_of(c, DEEPSEEK_CALL, DEEPSEEK_CALLS_END)
        sink.reopen()
        if mark == DEEPSEEK_CALLS_END:
            return c


def scan_kimi(tools: Tools, marker: str, sink: Sink) -> Scan:
    """Kimi K2's. Its ids hold the name: ``functions.get_weather:0``."""
    c = yield
    mark = marker
    if marker == KIMI_CALLS:
        c = yield from spaces(c)
        mark, c = yield from one_of(c, KIMI_CALL, KIMI_CALLS_END)
    while mark == KIMI_CALL:
        call_id, c = yield from word(c, KIMI_ARGUMENTS)
        call_id = call_id.strip()
        name = call_id.removeprefix("functions.").rpartition(":")[0]
        c = yield from spaces(c)
        c = yield from _call(c, sink, check_name(name, tools), call_id)
        c = yield from spaces(c)
        c = yield from literal(c, KIMI_CALL_END)
        c = yield from spaces(c)
        mark, c = yield from one_of(c, KIMI_CALL, KIMI_CALLS_END)
        sink.reopen()
    return c


def scan_function(tools: Tools, marker: str, sink: Sink) -> Scan:
    """``<function=name>`` and JSON: functionary 3.1, and Llama 3.1's tools of one's own.

    Llama forgets the ``>``, or writes ``=``, a comma or space there, or moves it to the end.
    """
    del marker
    name, c = yield from tool_name((yield))
    name = check_name(name, tools)
    c = yield from spaces(c)
    is_closed = c == ">"
    if c and c in ">=,":
        c = yield from spaces((yield))
    if is_closed and c == "<":  # no arguments at all
        c = yield from literal(c, _FUNCTION_END)
        sink.begin(name, ahead=True)
        sink.arguments("{}", ahead=True)
        return c
    if not is_closed and c != "{":
        raise unexpected(c)
    c = yield from _call(c, sink, name)
    c = yield from spaces(c)
    c = yield from optional(c, ">")
    c = yield from spaces(c)
    return (yield from literal(c, _FUNCTION_END))


def _call(c: str, sink: Sink, name: str, call_id: str | None = None) -> Scan:
    check_arguments(c)
    sink.begin(name, call_id)
    return (yield from arguments(c, sink))
