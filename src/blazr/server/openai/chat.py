"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Usage
from blazr.server.messages import MAX_TOOLS, ChatMessage, to_messages
from blazr.server.openai.schema import (
    SamplingBody,
    check_num_replies,
    envelope,
    finite,
    scheduling,
    to_params,
    usage_object,
)
from blazr.server.run import Run, whole_answer
from blazr.server.service import Call, Service
from blazr.server.sse import EventStream
from blazr.text.events import Event, PromptDone, TextDelta, TokenText


class Body(SamplingBody, kw_only=True):
    """The request."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None


async def answer(call: Call[Body]) -> Response:
    """Answer a chat."""
    body, service = call.body, call.service
    service.check_model(body.model)
    params = _params(body)
    check_num_replies(1, params.n)
    request = GenerationRequest(
        messages=to_messages(body.messages),
        params=params,
        tools=_tools(body),
        template_variables=_variables(body),
        add_generation_prompt=body.add_generation_prompt is not False,
        **scheduling(call),
    )
    run = await Run.start(call, [request])
    if body.stream:
        return EventStream(run, ChatRenderer(service, body, kind="chat.completion.chunk"))
    renderer = ChatRenderer(service, body, kind="chat.completion")
    return await whole_answer(run, renderer)


class ChatRenderer:
    """Says what happens in the words of /v1/chat/completions.

    Args:
        service: Whose model it is.
        body: What was asked.
        kind: ``"chat.completion"`` or ``"chat.completion.chunk"``.
    """

    def __init__(self, service: Service, body: Body, *, kind: str) -> None:
        self._envelope = envelope(service, prefix="chatcmpl", kind=kind)
        self._body = body

    def event(self, event: Event) -> Iterable[object]:
        """The chunks for an event."""
        if isinstance(event, PromptDone):
            yield self._chunk(event.index, {"role": "assistant", "content": ""})
        elif isinstance(event, TextDelta):
            if event.text or (event.logprobs and self._body.logprobs):
                logprobs = self._logprobs(event.logprobs)
                yield self._chunk(event.index, {"content": event.text}, logprobs=logprobs)
        else:
            yield self._chunk(event.index, {}, finish_reason=event.reason)

    def last(self, usage: Usage) -> Iterable[object]:
        """The chunk with the usage, if wanted."""
        if self._body.includes_usage:
            yield {**self._envelope, "choices": [], "usage": usage_object(usage)}

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        """The whole reply."""
        choices = [
            {
                "index": each.index,
                "message": {"role": "assistant", "content": each.text, "refusal": None},
                "logprobs": self._logprobs(each.logprobs or ()),
                "finish_reason": each.finish_reason,
            }
            for each in completions
        ]
        return {**self._envelope, "choices": choices, "usage": usage_object(usage)}

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, object],
        *,
        logprobs: object = None,
        finish_reason: str | None = None,
    ) -> object:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk: dict[str, object] = {**self._envelope, "choices": [choice]}
        if self._body.includes_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, tokens: Sequence[TokenText]) -> object:
        if not self._body.logprobs:
            return None
        content = [
            {**_entry(token), "top_logprobs": [_entry(each) for each in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def _entry(token: TokenText) -> dict[str, object]:
    return {
        "token": token.token,
        "logprob": finite(token.logprob or 0.0),
        "bytes": list(token.data),
    }


def _params(body: Body) -> SamplingParams:
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError(
            "top_logprobs needs logprobs.", param="top_logprobs", expected='"logprobs": true'
        )
    return to_params(
        body,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        max_tokens=(
            body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        ),
    )


def _tools(body: Body) -> list[dict[str, Any]] | None:
    """The tools for the template to show. The model's calls come back as text for now."""
    choice = body.tool_choice
    if choice not in {None, "auto", "none"} if isinstance(choice, str | None) else True:
        raise RequestError(
            "a tool cannot be forced yet.", param="tool_choice", expected="'auto' or 'none'"
        )
    if body.tools is not None and len(body.tools) > MAX_TOOLS:
        raise RequestError(
            "there are too many tools.", param="tools", expected=f"at most {MAX_TOOLS}"
        )
    return None if choice == "none" else body.tools or None


def _variables(body: Body) -> dict[str, object] | None:
    """Variables for the template, scalars only; a template of the client's is never run."""
    if body.chat_template is not None:
        raise RequestError(
            "chat templates come with the model, not with the request.", param="chat_template"
        )
    variables = body.chat_template_kwargs or {}
    if not all(isinstance(value, str | int | float | None) for value in variables.values()):
        raise RequestError(
            "chat_template_kwargs may hold strings, numbers, true and false.",
            param="chat_template_kwargs",
        )
    return variables or None
