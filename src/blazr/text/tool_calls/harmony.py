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
# What else is in a header, in any order: who it is to, and the type of the content.
_MORE = r"(?:[\w\s.=/:+-]|<\|constrain\|>)*"
_HEADER = re.compile(
    rf"(?:<\|start\|>assistant)?({_MORE})<\|channel\|>(analysis|commentary|final)(?!\w)({_MORE})"
)
_TO = re.compile(r"\bto=(?:functions\.)?([\w.:/-]+)")


def _read_header(header: str) -> tuple[str, str]:
    """The channel of a message, and to whom it is, if to anybody.

    Raises:
        MalformedError: It is no header.
    """
    parts = _HEADER.fullmatch(header)
    more = f"{parts[1]} {parts[3]}" if parts else ""
    if parts is None or not _TO.sub("", more).isascii():
        raise MalformedError
    to = _TO.search(more)
    return parts[2], to[1] if to else ""


def scan_channels(marker: str, sink: Sink) -> Scan:
    """Takes messages out of their channels. Calls of tools stay as they are."""
    header, c = yield from until((yield), _BODY)
    channel, recipient = _read_header(marker + header)
    if recipient:
        sink.text(marker + header + _BODY, ahead=True)
        end, c = yield from stream_until(c, _ENDS, sink.text)
        sink.text(end, ahead=True)
    elif channel == "analysis":
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
        _, recipient = _read_header(marker + header)
        name = check_name(recipient, tools)
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
