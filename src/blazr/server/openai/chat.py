"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Truncation
from blazr.llm.results import Completion, ToolCall, Usage
from blazr.server.messages import ChatMessage, to_messages
from blazr.server.openai.schema import (
    ChoicesRenderer,
    SamplingBody,
    ToolChoice,
    ToolMode,
    logprob_entries,
    schedule_of,
    to_params,
    tool_fields,
)
from blazr.server.params import check_num_replies, said
from blazr.server.run import Run, whole_answer
from blazr.server.service import Call
from blazr.server.sse import EventStream
from blazr.text.events import (
    Event,
    PromptDone,
    ReasoningDelta,
    TextDelta,
    TokenText,
    ToolCallDelta,
)
from blazr.text.reasoning import thinking_variables

# vLLM has it under the second name; -1 is no bound.
Budget = Annotated[int, msgspec.Meta(ge=-1)]


class Thinking(msgspec.Struct):
    """Whether to think before answering, as Z.ai and DeepSeek have it."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class Body(SamplingBody, kw_only=True):
    """The request."""

    messages: Annotated[list[ChatMessage], said(minItems=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolMode | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    reasoning_effort: str | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    max_thinking_tokens: Budget | None = None
    thinking_token_budget: Budget | None = None


async def answer(call: Call[Body]) -> Response:
    """Answer a chat."""
    body = call.body
    params = _params(body)
    check_num_replies(1, params.n)
    request = GenerationRequest(
        messages=to_messages(body.messages),
        params=params,
        **tool_fields(body.tools, body.tool_choice, parallel=body.parallel_tool_calls),
        template_variables=_variables(body),
        thinking_budget=_budget(body),
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        truncation=Truncation(drops="messages") if body.truncation == "auto" else body.cut,
        **schedule_of(call),
    )
    run = await Run.start(call, [request], tells_abort=True)
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    renderer = ChatRenderer(call, n=params.n, kind=kind)
    return EventStream(run, renderer) if body.stream else await whole_answer(run, renderer)


class ChatRenderer(ChoicesRenderer):
    """Says what happens in the words of /v1/chat/completions.

    Args:
        call: What was asked.
        n: Replies.
        kind: ``"chat.completion"`` or ``"chat.completion.chunk"``.
    """

    def __init__(self, call: Call[Body], *, n: int, kind: str) -> None:
        super().__init__(call, n=n, prefix="chatcmpl", kind=kind)
        self._body = call.body

    def choices(self, event: Event) -> Iterable[object]:
        """See `ChoicesRenderer`."""
        if isinstance(event, PromptDone):
            yield self._choice(event.index, {"role": "assistant", "content": ""})
        elif isinstance(event, TextDelta):
            if event.text or (event.logprobs and self._body.logprobs):
                logprobs = self._logprobs(event.logprobs)
                yield self._choice(event.index, {"content": event.text}, logprobs=logprobs)
        elif isinstance(event, ReasoningDelta):
            yield self._choice(event.index, _thoughts(event.text))
        elif isinstance(event, ToolCallDelta):
            yield self._choice(event.index, {"tool_calls": [_call_delta(event)]})
        else:
            reason = _reason(event.reason, event.num_tool_calls)
            yield self._choice(event.index, {}, finish_reason=reason)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        """The whole reply."""
        choices = [
            {
                "index": each.index,
                "message": _message(each),
                "logprobs": self._logprobs(each.logprobs or ()),
                "finish_reason": _reason(each.finish_reason, len(each.tool_calls)),
            }
            for each in completions
        ]
        return self._around(choices, usage)

    def _choice(
        self,
        index: int,
        delta: Mapping[str, object],
        *,
        logprobs: object = None,
        finish_reason: str | None = None,
    ) -> object:
        return {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }

    def _logprobs(self, tokens: Sequence[TokenText]) -> object:
        if not self._body.logprobs:
            return None
        return {"content": logprob_entries(tokens), "refusal": None}


def _budget(body: Body) -> int | None:
    given = body.max_thinking_tokens
    most = body.thinking_token_budget if given is None else given
    return None if most == -1 else most


def _message(completion: Completion) -> dict[str, object]:
    calls = [_call(call) for call in completion.tool_calls]
    return {
        "role": "assistant",
        "content": completion.text if completion.text or not calls else None,
        "refusal": None,
        **_thoughts(completion.reasoning),
        **({"tool_calls": calls} if calls else {}),
    }


def _thoughts(text: str) -> dict[str, object]:
    """Under both names that clients look for; nothing where there is no thinking."""
    return {"reasoning": text, "reasoning_content": text} if text else {}


def _call(call: ToolCall) -> dict[str, object]:
    if call.is_custom:
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _call_delta(event: ToolCallDelta) -> dict[str, object]:
    kind, field = ("custom", "input") if event.is_custom else ("function", "arguments")
    called: dict[str, object] = {field: event.arguments}
    if event.name is None and event.id is None:
        return {"index": event.call_index, kind: called}
    called["name"] = event.name
    return {"index": event.call_index, "id": event.id, "type": kind, kind: called}


def _reason(reason: str, num_calls: int) -> str:
    return "tool_calls" if num_calls and reason == "stop" else reason


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


def _variables(body: Body) -> dict[str, object] | None:
    """Variables for the template, scalars only; a template of the client's is never run."""
    if body.chat_template is not None:
        raise RequestError(
            "chat templates come with the model, not with the request.", param="chat_template"
        )
    if body.continue_final_message and body.add_generation_prompt:
        raise RequestError(
            "the last message cannot go on where another one begins.",
            param="continue_final_message",
            expected="not together with add_generation_prompt",
        )
    enabled = body.enable_thinking
    if enabled is None and body.thinking is not None:
        enabled = {"enabled": True, "disabled": False}.get(body.thinking.type)
    variables = thinking_variables(enabled=enabled, effort=body.reasoning_effort)
    variables |= body.chat_template_kwargs or {}
    if not all(isinstance(value, str | int | float | None) for value in variables.values()):
        raise RequestError(
            "chat_template_kwargs may hold strings, numbers, true and false.",
            param="chat_template_kwargs",
        )
    return variables or None
