"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import override

from blazr.core.errors import RequestError
from blazr.llm.generation import GenerationRequest, Truncation
from blazr.llm.results import Completion, Usage
from blazr.server.agent import AgentFields, MostRounds, own_tools, taken_names
from blazr.server.endpoint import Call, Reply
from blazr.server.messages import ChatMessage, to_messages
from blazr.server.openai.shared import (
    AnyUsage,
    ChoicesRenderer,
    Envelope,
    SamplingBody,
    TokenLogprob,
    UsageReply,
    WholeEnvelope,
    reply_with_kv_transfer,
    token_logprobs,
    usage_reply,
)
from blazr.server.params import TemplateVariables, prompt_truncation, sampling_params
from blazr.server.run import reply
from blazr.server.schema import CHAT, Example, OneOf, Schema, schema_hint
from blazr.server.tool_choice import Tool, ToolChoice, ToolMode, tool_fields
from blazr.text.events import (
    Event,
    PromptDone,
    ReasoningDelta,
    TextDelta,
    TokenText,
    ToolCallDelta,
    ToolStep,
)
from blazr.text.reasoning import thinking_variables

# -1 sets no limit.
ThinkingBudget = Annotated[int, msgspec.Meta(ge=-1)]
FinishReason = Literal["stop", "length", "tool_calls", "abort"]


class Thinking(msgspec.Struct):
    """Whether to think before answering, as Z.ai and DeepSeek have it."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class ChatBody(SamplingBody, kw_only=True):
    """The request."""

    messages: Annotated[list[ChatMessage], schema_hint(minItems=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolMode | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template: Annotated[Any, schema_hint(type="null")] = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    reasoning_effort: str | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    max_thinking_tokens: ThinkingBudget | None = None
    thinking_token_budget: ThinkingBudget | None = None  # vLLM's name for the same
    include_reasoning: bool | None = None
    agent: bool | None = None
    max_tool_rounds: MostRounds | None = None
    approved_tool_calls: list[str] | None = None
    schema_extra: ClassVar[Schema] = {
        "anyOf": [
            {"properties": {"top_logprobs": {"type": "null"}}},
            {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]},
        ]
    }
    example: ClassVar[Example] = {"max_tokens": 32, **CHAT}


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a message's tokens."""

    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct):
    """A function and its arguments, as JSON in a string."""

    name: str
    arguments: str


class FunctionCall(msgspec.Struct, kw_only=True):
    """A call of a function."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledCustom(msgspec.Struct):
    """A custom tool and its input."""

    name: str
    input: str


class CustomCall(msgspec.Struct, kw_only=True):
    """A call of a custom tool."""

    id: str
    type: Literal["custom"] = "custom"
    custom: CalledCustom


AnyCall = OneOf[FunctionCall, CustomCall]


class McpCall(msgspec.Struct, kw_only=True):
    """A call that the server has run, or runs now, before the reply goes on."""

    index: int
    id: str
    server_label: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "failed"]
    output: str | None = None


class AssistantMessage(msgspec.Struct, kw_only=True):
    """What the model says, thinks and calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnyCall] | UnsetType = UNSET
    mcp_calls: list[McpCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One reply to a chat."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(WholeEnvelope, kw_only=True):
    """The replies to a chat."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: UsageReply


class FunctionDelta(msgspec.Struct):
    """More of a call's arguments; the name comes first."""

    arguments: str
    name: str | UnsetType = UNSET


class CustomDelta(msgspec.Struct):
    """More of a custom tool's input; the name comes first."""

    input: str
    name: str | UnsetType = UNSET


class CallDelta(msgspec.Struct, kw_only=True):
    """More of a call."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    """What is new of a reply."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET
    mcp_calls: list[McpCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """What is new of one reply, and why it ended when it did."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Envelope, kw_only=True):
    """A piece of a streamed reply; the last one holds the usage, where it was asked for."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]
    usage: AnyUsage = UNSET


async def answer(call: Call[ChatBody]) -> Reply[ChatCompletion, ChatChunk]:
    """Answer a chat."""
    body = call.body
    approved = body.approved_tool_calls or ()
    asked = AgentFields(body.agent, body.max_tool_rounds, approved, separator="\n\n")
    taken = taken_names(body.tools or ())
    tools = await own_tools(call, asked, taken, n=body.n or 1, choice=body.tool_choice)
    offered = tools.offer.beside(body.tools)
    request = await call.translate(lambda: to_request(body, call, offered))
    renderer = ChatRenderer(call, n=request.params.n)
    agent = tools.agent(call, request, asked)
    if agent is None:
        return await reply_with_kv_transfer(call, [request], renderer)
    return await reply(call, [request], renderer, stream=body.stream, agent=agent)


def to_request(
    body: ChatBody, call: Call[ChatBody], tools: Sequence[Mapping[str, object]] | None
) -> GenerationRequest:
    """Translate a body, with these tools: its own, and those that are run for it.

    Raises:
        RequestError: A value is out of range, or fields contradict each other.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError(
            "top_logprobs needs logprobs.", param="top_logprobs", expected='"logprobs": true'
        )
    if body.continue_final_message and body.add_generation_prompt:
        raise RequestError(
            "the last message cannot go on where another one begins.",
            param="continue_final_message",
            expected="not together with add_generation_prompt",
        )
    most = body.max_completion_tokens
    params = sampling_params(
        body,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        max_tokens=body.max_tokens if most is None else most,
    )
    budget = body.max_thinking_tokens
    budget = body.thinking_token_budget if budget is None else budget
    drops_messages = body.truncation == "auto"
    return GenerationRequest(
        messages=to_messages(body.messages),
        params=params,
        **tool_fields(tools, body.tool_choice, parallel=body.parallel_tool_calls),
        template_variables=_template_variables(body) or None,
        thinking_budget=None if budget == -1 else budget,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        truncation=Truncation(drops="messages") if drops_messages else prompt_truncation(body),
        **call.scheduling(),
    )


def _template_variables(body: ChatBody) -> dict[str, object]:
    """Variables for the model's template.

    Raises:
        RequestError: The body brings a template of its own, which is never run.
    """
    if body.chat_template is not None:
        raise RequestError(
            "chat templates come with the model, not with the request.", param="chat_template"
        )
    enabled = body.enable_thinking
    if enabled is None and body.thinking is not None:
        enabled = {"enabled": True, "disabled": False}.get(body.thinking.type)
    variables = thinking_variables(enabled=enabled, effort=body.reasoning_effort)
    return variables | (body.chat_template_kwargs or {})


class ChatRenderer(ChoicesRenderer[ChatCompletion, ChatChunk, ChunkChoice]):
    """Says what happens in the words of /v1/chat/completions.

    Args:
        call: The request.
        n: Replies.
    """

    def __init__(self, call: Call[ChatBody], *, n: int) -> None:
        super().__init__(call, ChatChunk, n=n, prefix="chatcmpl")
        self._wants_logprobs = bool(call.body.logprobs)
        self._tells_reasoning = call.body.include_reasoning is not False

    @override
    def choices(self, event: Event) -> Iterable[ChunkChoice]:
        if isinstance(event, PromptDone):
            yield ChunkChoice(event.index, ChatDelta(role="assistant", content=""))
        elif isinstance(event, TextDelta):
            if event.text or (event.logprobs and self._wants_logprobs):
                logprobs = self._logprobs(event.logprobs)
                yield ChunkChoice(event.index, ChatDelta(content=event.text), logprobs)
        elif isinstance(event, ReasoningDelta):
            if self._tells_reasoning:
                delta = ChatDelta(reasoning=event.text, reasoning_content=event.text)
                yield ChunkChoice(event.index, delta)
        elif isinstance(event, ToolCallDelta):
            yield ChunkChoice(event.index, ChatDelta(tool_calls=[_call_delta(event)]))
        elif isinstance(event, ToolStep):
            yield ChunkChoice(event.index, ChatDelta(mcp_calls=[_mcp_call(event)]))
        else:
            reason = _finish_reason(event.reason, event.num_tool_calls)
            yield ChunkChoice(event.index, ChatDelta(), finish_reason=reason)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> ChatCompletion:
        """The whole reply."""
        choices = []
        for each in completions:
            calls: list[AnyCall] = []
            for call in each.tool_calls:
                if call.is_custom:
                    custom = CalledCustom(call.name, call.arguments)
                    calls.append(CustomCall(id=call.id, custom=custom))
                else:
                    function = CalledFunction(call.name, call.arguments)
                    calls.append(FunctionCall(id=call.id, function=function))
            reasoning = (each.reasoning if self._tells_reasoning else "") or UNSET
            message = AssistantMessage(
                content=each.text if each.text or not calls else None,
                reasoning=reasoning,
                reasoning_content=reasoning,
                tool_calls=calls or UNSET,
                mcp_calls=[_mcp_call(step) for step in each.tool_steps] or UNSET,
            )
            reason = _finish_reason(each.finish_reason, len(each.tool_calls))
            logprobs = self._logprobs(each.logprobs or ())
            choices.append(ChatChoice(each.index, message, logprobs, reason))
        return self.fill(ChatCompletion, choices, usage_reply(usage))

    def _logprobs(self, tokens: Sequence[TokenText]) -> ChatLogprobs | None:
        return ChatLogprobs(token_logprobs(tokens)) if self._wants_logprobs else None


def _call_delta(event: ToolCallDelta) -> CallDelta:
    delta = CallDelta(index=event.call_index)
    is_first = event.name is not None or event.id is not None
    name = UNSET if event.name is None else event.name
    if is_first:
        delta.id = event.id or ""
        delta.type = "custom" if event.is_custom else "function"
    if event.is_custom:
        delta.custom = CustomDelta(event.arguments, name)
    else:
        delta.function = FunctionDelta(event.arguments, name)
    return delta


def _mcp_call(event: ToolStep) -> McpCall:
    return McpCall(
        index=event.step,
        id=event.id,
        server_label=event.server,
        name=event.name,
        arguments=event.arguments,
        status=event.status,
        output=event.output,
    )


def _finish_reason(reason: str, num_calls: int) -> FinishReason:
    return "tool_calls" if num_calls and reason == "stop" else cast("FinishReason", reason)
