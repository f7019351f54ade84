"""Calls whose name stands before their arguments, which are JSON: Mistral, DeepSeek, Kimi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from blazr.text.grammars.tool_call import CallPart
from blazr.text.splitter import (
    Scan,
    Sink,
    literal,
    one_of,
    optional,
    spaces,
    symbol,
    unexpected,
    word,
)
from blazr.text.tool_calls.format import CallSyntax, Tools, ToolSpec, arguments_of, as_json
from blazr.text.tool_calls.json_call import JsonCalls
from blazr.text.tool_calls.json_scan import check_name, read_call, tool_name


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


@dataclass(frozen=True, slots=True)
class NamedCalls(CallSyntax):
    """Text, a name, text, arguments in JSON, text.

    Args:
        before: Before the name; a marker that was read already counts as read.
        between: Between name and arguments.
        after: After the arguments; models forget it.
    """

    before: str
    between: str
    after: str

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        c = yield from spaces((yield))
        c = yield from literal(c, self.before.removeprefix(marker).lstrip())
        name, c = yield from tool_name(c)
        c = yield from symbol(c, self.between.strip())
        c = yield from read_call(c, sink, check_name(name, tools))
        return (yield from optional(c, self.after.strip()))

    @override
    def parts(self, tool: ToolSpec) -> Sequence[CallPart]:
        return (self.before + tool.name + self.between, arguments_of(tool), self.after)

    @override
    def spell(self, name: str, arguments: Mapping[str, object]) -> str:
        return self.before + name + self.between + as_json(arguments) + self.after


@dataclass(frozen=True, slots=True)
class MistralCalls(CallSyntax):
    """``[TOOL_CALLS]`` and a JSON list, or a name, perhaps ``[CALL_ID]``, ``[ARGS]``, arguments.

    Args:
        written: Which of the two is written; both are read.
    """

    written: CallSyntax

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        c = yield from spaces((yield))
        if c in {"[", "{"}:
            return (yield from JsonCalls().read_all(c, tools, sink))
        name, c = yield from tool_name(c)
        mark = ""
        call_id = None
        if c != "{":  # tokens may be left out of the text
            mark, c = yield from one_of(c, "[CALL_ID]", "[ARGS]")
        if mark == "[CALL_ID]":
            call_id, c = yield from word(c, "[ARGS]")
        return (yield from read_call(c, sink, check_name(name, tools), call_id))

    @override
    def parts(self, tool: ToolSpec) -> Sequence[CallPart]:
        return self.written.parts(tool)

    @override
    def spell(self, name: str, arguments: Mapping[str, object]) -> str:
        return self.written.spell(name, arguments)


class DeepSeekCalls(NamedCalls):
    """DeepSeek's, with a type and a fence around the arguments (V3, R1), or without (V3.1)."""

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        c = yield
        if marker == DEEPSEEK_CALLS:
            _, c = yield from one_of(c, DEEPSEEK_CALL)
        while True:
            name, c = yield from word(c, DEEPSEEK_NAME_END)
            if name == "function" and c and c not in '{"':
                name, c = yield from tool_name(c)
                c = yield from optional(c, DEEPSEEK_NAME_END)  # for the line's end, at times
                c = yield from optional(c, "```json")
                c = yield from spaces(c)
            c = yield from read_call(c, sink, check_name(name.strip(), tools))
            c = yield from optional(c, "```")
            c = yield from symbol(c, DEEPSEEK_CALL_END)
            mark, c = yield from one_of(c, DEEPSEEK_CALL, DEEPSEEK_CALLS_END)
            sink.reopen()
            if mark == DEEPSEEK_CALLS_END:
                return c


class KimiCalls(NamedCalls):
    """Kimi K2's. Its ids hold the name: ``functions.get_weather:0``."""

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        c = yield
        mark = marker
        if marker == KIMI_CALLS:
            mark, c = yield from one_of(c, KIMI_CALL, KIMI_CALLS_END)
        while mark == KIMI_CALL:
            call_id, c = yield from word(c, KIMI_ARGUMENTS)
            call_id = call_id.strip()
            whole = call_id.removeprefix("functions.")
            name = whole.rpartition(":")[0] or whole  # some have no number
            c = yield from spaces(c)
            c = yield from read_call(c, sink, check_name(name, tools), call_id)
            c = yield from symbol(c, KIMI_CALL_END)
            mark, c = yield from one_of(c, KIMI_CALL, KIMI_CALLS_END)
            sink.reopen()
        return c


class FunctionCalls(NamedCalls):
    """``<function=name>`` and JSON: functionary 3.1, and Llama 3.1's tools of one's own.

    Llama forgets the ``>``, or writes ``=``, a comma or space there, or moves it to the end.
    """

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
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
        c = yield from read_call(c, sink, name)
        c = yield from optional(c, ">")
        _, c = yield from one_of(c, _FUNCTION_END)
        return c
