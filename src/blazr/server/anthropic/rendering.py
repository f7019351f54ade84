"""How Anthropic's dialect says what happens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from blazr.llm.results import Completion, Usage
from blazr.server.errors import HttpError
from blazr.server.parts import Part, PartsRenderer
from blazr.server.service import Call
from blazr.text.events import TokenText

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


def error_object(error: HttpError) -> dict[str, object]:
    """Anthropic's error object."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error")
    message = error.text
    if error.code == "context_length_exceeded":  # by these words agents know when to summarize
        tokens, most = error.figures["n_prompt_tokens"], error.figures["n_ctx"]
        message = f"prompt is too long: {tokens} tokens > {most} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


class MessageRenderer(PartsRenderer):
    """Says what happens in the words of /v1/messages.

    Args:
        call: What was asked.
        max_tokens: Most tokens of the reply.
    """

    def __init__(self, call: Call[object], max_tokens: int) -> None:
        super().__init__()
        self._id = f"msg_{call.id}"
        self._model = call.service.name
        self._max_tokens = max_tokens

    def begin(self) -> Iterable[object]:
        """The message, still empty."""
        yield {"type": "message_start", "message": self._message()}
        yield {"type": "ping"}

    def opened(self, part: Part) -> Iterable[object]:
        """The beginning of a block, still empty."""
        block = {**_block(part), **({"input": {}} if part.kind == "tool" else {})}
        yield {"type": "content_block_start", "index": part.place, "content_block": block}

    def more(
        self,
        part: Part,
        text: str,
        tokens: Sequence[TokenText] = (),  # noqa: ARG002
    ) -> Iterable[object]:
        """What is added to a block."""
        deltas = {
            "text": {"type": "text_delta", "text": text},
            "reasoning": {"type": "thinking_delta", "thinking": text},
            "tool": {"type": "input_json_delta", "partial_json": text},
        }
        delta = deltas[part.kind]
        yield {"type": "content_block_delta", "index": part.place, "delta": delta}

    def closed(self, part: Part) -> Iterable[object]:
        """The end of a block."""
        if part.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": ""}
            yield {"type": "content_block_delta", "index": part.place, "delta": delta}
        yield {"type": "content_block_stop", "index": part.place}

    def last(self, usage: Usage) -> Iterable[object]:
        """Why it ended, and what it cost."""
        yield {"type": "message_delta", "delta": self._end(usage), "usage": _usage(usage)}
        yield {"type": "message_stop"}

    def failure(self, error: HttpError) -> Iterable[object]:
        """What to send when a stream fails."""
        yield error_object(error)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        """The whole message."""
        content = [_block(part) for part in self.parts]
        return {**self._message(), "content": content, **self._end(usage), "usage": _usage(usage)}

    def _message(self) -> dict[str, object]:
        prompt = self.prompt
        read, cached = (prompt.num_prompt_tokens, prompt.num_cached_tokens) if prompt else (0, 0)
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage(read, 0, cached)),
        }

    def _end(self, usage: Usage) -> dict[str, object]:
        finished = self.finished
        if finished is None:
            return {"stop_reason": None, "stop_sequence": None}
        reason = "end_turn" if finished.stop is None else "stop_sequence"
        if finished.reason == "length":
            is_full = usage.completion_tokens < self._max_tokens
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif finished.num_tool_calls:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": finished.stop}


def _block(part: Part) -> dict[str, object]:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    try:
        arguments = json.loads(part.text or "{}")
    except ValueError:
        arguments = None  # cut off in the middle
    given = arguments if isinstance(arguments, dict) else {}
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": given}


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
