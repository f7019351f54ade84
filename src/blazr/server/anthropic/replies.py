"""What Anthropic's endpoints answer, as types. The OpenAPI document is made of them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class AnthropicErrorBody(Struct):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(Struct, tag_field="type", tag="error"):
    """An error, as Anthropic writes it; in a stream it is the last event."""

    error: AnthropicErrorBody


class OutputDetails(Struct):
    """What the output was spent on."""

    thinking_tokens: int


class MessageUsage(Struct):
    """What a request cost, in tokens; those read from the cache are not among the input's."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class TextBlock(Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """A thought."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """The use of a tool."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class MessageReply(Struct, tag_field="type", tag="message"):
    """The model's message; in a stream it begins empty."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """A message begins."""

    message: MessageReply


class Ping(Struct, tag_field="type", tag="ping"):
    """A sign of life."""


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: ContentBlock


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    """The signature of a thought; there is none."""

    signature: str


class InputDelta(Struct, tag_field="type", tag="input_json_delta"):
    """More of a tool's input, as JSON."""

    partial_json: str


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """A block has ended."""

    index: int


class MessageEnd(Struct):
    """Why a message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """Why the message ends, and what it cost."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """A message has ended."""


MessageEvent = (
    MessageStart
    | Ping
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)


class TokenCount(Struct):
    """How many tokens a chat has."""

    input_tokens: int
