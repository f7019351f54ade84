"""How Anthropic's dialect says what happens, and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from blazr.llm.results import Completion, Usage
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.parts import PartsRenderer, ReplyPart

VERSION_HEADER = "anthropic-version"  # which only Anthropic's clients send
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class AnthropicErrorBody(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    """An error, as Anthropic writes it; in a stream it is the last event."""

    error: AnthropicErrorBody


class OutputTokenDetails(msgspec.Struct):
    """What the output was spent on."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """What a request cost, in tokens; those read from the cache are not among the input's."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokenDetails


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """A thought."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """The use of a tool."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class MessageReply(msgspec.Struct, kw_only=True):
    """The model's message; in a stream it begins empty."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """A message begins."""

    message: MessageReply


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """A sign of life."""


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: ContentBlock


class TextBlockDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The signature of a thought; there is none."""

    signature: str = ""


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of a tool's input, as JSON."""

    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextBlockDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """A block has ended."""

    index: int


class MessageEnd(msgspec.Struct):
    """Why a message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """Why the message ends, and what it cost."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
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


def anthropic_error(error: HttpError) -> AnthropicError:
    """Anthropic's error object."""
    message = error.text
    if error.code == "context_length_exceeded":  # by these words agents know when to summarize
        tokens = error.figures["n_prompt_tokens"]
        most = error.figures["n_ctx"]
        message = f"prompt is too long: {tokens} tokens > {most} maximum"
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error")
    return AnthropicError(AnthropicErrorBody(kind, message))


class MessageRenderer(PartsRenderer[MessageReply, MessageEvent]):
    """Says what happens in the words of /v1/messages.

    Args:
        call: The request.
        max_tokens: Most tokens of the reply.
    """

    def __init__(self, call: Call[object], max_tokens: int) -> None:
        super().__init__()
        self._id = f"msg_{call.id}"
        self._model = call.name
        self._max_tokens = max_tokens

    def prompt_done(self) -> Iterable[MessageEvent]:
        """The message, still empty."""
        prompt = self.prompt
        assert prompt is not None
        usage = _usage(Usage(prompt.num_prompt_tokens, 0, prompt.num_cached_tokens))
        yield MessageStart(MessageReply(id=self._id, model=self._model, usage=usage))
        yield Ping()

    def part_started(self, part: ReplyPart) -> Iterable[MessageEvent]:
        """The beginning of a block, still empty."""
        yield BlockStart(part.place, _block(part))

    def part_extended(self, part: ReplyPart, text: str) -> Iterable[MessageEvent]:
        """What is added to a block."""
        if part.kind == "text":
            yield BlockDelta(part.place, TextBlockDelta(text))
        elif part.kind == "reasoning":
            yield BlockDelta(part.place, ThinkingDelta(text))
        else:
            yield BlockDelta(part.place, InputJsonDelta(text))

    def part_finished(self, part: ReplyPart) -> Iterable[MessageEvent]:
        """The end of a block."""
        if part.kind == "reasoning":
            yield BlockDelta(part.place, SignatureDelta())
        yield BlockStop(part.place)

    def last(self, usage: Usage) -> Iterable[MessageEvent]:
        """Why it ended, and what it cost."""
        yield MessageDelta(self._end(usage), _usage(usage))
        yield MessageStop()

    def failure(self, error: HttpError) -> Iterable[MessageEvent]:
        """What to send when a stream fails."""
        yield anthropic_error(error)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> MessageReply:  # noqa: ARG002
        """The whole message."""
        end = self._end(usage)
        return MessageReply(
            id=self._id,
            model=self._model,
            content=[_block(part) for part in self.parts],
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=_usage(usage),
        )

    def _end(self, usage: Usage) -> MessageEnd:
        finished = self.finished
        if finished is None:
            return MessageEnd(None, None)
        reason: StopReason = "end_turn" if finished.stop is None else "stop_sequence"
        if finished.reason == "length":
            is_full = usage.completion_tokens < self._max_tokens
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif finished.num_tool_calls:
            reason = "tool_use"
        return MessageEnd(reason, finished.stop)


def _block(part: ReplyPart) -> ContentBlock:
    if part.kind == "text":
        return TextBlock(part.text)
    if part.kind == "reasoning":
        return ThinkingBlock(part.text)
    given = part.arguments
    return ToolUseBlock(
        id=part.call_id, name=part.name, input=given if isinstance(given, dict) else {}
    )


def _usage(usage: Usage) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokenDetails(usage.reasoning_tokens),
    )
