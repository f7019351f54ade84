"""OpenAI's harmony: a reply is messages in channels, thinking and calls of tools among them.

A message is ``<|start|>assistant<|channel|>NAME to=RECIPIENT <|constrain|>json<|message|>TEXT`` and
``<|end|>``, or ``<|call|>`` after a call of a tool. The prompt ends in ``<|start|>assistant``.

Source: openai/harmony, docs/format.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from typing_extensions import override

from blazr.text.grammars.tool_call import CallPart
from blazr.text.splitter import (
    SPACE,
    MalformedError,
    Scan,
    Sink,
    one_of,
    spaces,
    stream_until,
    until,
)
from blazr.text.tool_calls.format import CallSyntax, Tools, ToolSpec, arguments_of, as_json
from blazr.text.tool_calls.json_scan import check_name, read_call

MARKERS = ("<|start|>assistant", "<|channel|>")
STARTERS = (" to=", "to=")
TOKENS = (
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
)
_BODY = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TO = r"(?: ?to=(?:functions\.)?([\w.-]+))?"
_HEADER = re.compile(
    rf"(?:<\|start\|>assistant)?{_TO} ?<\|channel\|>(analysis|commentary|final)"
    rf"{_TO} ?(?:<\|constrain\|>)?[a-z]*"
)


def scan_channels(marker: str, sink: Sink) -> Scan:
    """Takes messages out of their channels. Calls of tools stay as they are."""
    header, c = yield from until((yield), _BODY)
    parts = _HEADER.fullmatch(marker + header)
    if parts is None:
        raise MalformedError
    if parts[1] or parts[3]:
        sink.text(parts[0] + _BODY, ahead=True)
        end, c = yield from stream_until(c, _ENDS, sink.text)
        sink.text(end, ahead=True)
    elif parts[2] == "analysis":
        sink.is_thinking = True
        sink.consume(ahead=True)
        stop = sink.stop_thinking
        _, c = yield from stream_until(c, _ENDS, sink.reasoning, trim=SPACE, at_end=stop)
    else:
        sink.consume(ahead=True)
        _, c = yield from stream_until(c, _ENDS, sink.text)
    sink.consume(ahead=True)
    return c


class HarmonyCalls(CallSyntax):
    """Messages to tools."""

    @override
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        header, c = yield from until((yield), _BODY)
        parts = _HEADER.fullmatch(marker + header)
        if parts is None or not (parts[1] or parts[3]):
            raise MalformedError
        name = check_name(parts[1] or parts[3], tools)
        c = yield from spaces(c)
        c = yield from read_call(c, sink, name)
        _, c = yield from one_of(c, *_ENDS)
        return c

    @override
    def parts(self, tool: ToolSpec) -> Sequence[CallPart]:
        """A call ends with a token that ends the reply."""
        return (_head(tool.name), arguments_of(tool))

    @override
    def spell(self, name: str, arguments: Mapping[str, object]) -> str:
        return _head(name) + as_json(arguments)


def _head(name: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json{_BODY}"
