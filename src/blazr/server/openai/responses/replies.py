"""What ``/v1/responses`` answers and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from blazr.server.openai.replies import ItemUsage, TokenLogprob
from blazr.server.openai.responses.items import InputItem, ItemStatus
from blazr.server.schema import OneOf


class OutputText(Struct, tag_field="type", tag="output_text", kw_only=True):
    """Text of a message."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[TokenLogprob]


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    """Text of a train of thought."""

    text: str


ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputMessage(Struct, kw_only=True):
    """A message of the model."""

    id: str
    status: ItemStatus
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(Struct, kw_only=True):
    """A train of thought."""

    id: str
    status: ItemStatus
    encrypted_content: str | UnsetType = UNSET
    type: Literal["reasoning"] = "reasoning"
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText]


class FunctionCallItem(Struct, kw_only=True):
    """A call of a tool."""

    id: str
    status: ItemStatus
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class CustomCallItem(Struct, kw_only=True):
    """A call of a custom tool."""

    id: str
    status: ItemStatus
    type: Literal["custom_tool_call"] = "custom_tool_call"
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str


OutputItem = OneOf[OutputMessage, ReasoningItem, FunctionCallItem, CustomCallItem]


class ResponseFailure(Struct, kw_only=True):
    """Why a response failed."""

    code: str = "server_error"
    message: str


class Incomplete(Struct):
    """Why a response is not whole."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseReasoning(Struct):
    """How much was to be thought."""

    effort: str | None
    summary: str | None


class ResponseText(Struct):
    """The form of the text."""

    format: dict[str, Any]
    verbosity: str | UnsetType = UNSET


class ResponseObject(Struct, kw_only=True):
    """A response, whole or on its way."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    model: str
    error: ResponseFailure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    metadata: dict[str, str]
    previous_response_id: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_logprobs: int
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    reasoning: ResponseReasoning
    text: ResponseText
    truncation: str
    store: bool
    background: bool
    max_tool_calls: None = None
    presence_penalty: float = 0
    frequency_penalty: float = 0
    service_tier: str = "default"
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None
    usage: ItemUsage | None = None
    status: ResponseStatus = "in_progress"
    output: list[OutputItem] = []


class ResponseDeleted(Struct, kw_only=True):
    """A response was forgotten."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(Struct, kw_only=True):
    """What a response was asked."""

    object: Literal["list"] = "list"
    data: list[InputItem]
    first_id: str
    last_id: str
    has_more: bool = False


class _Event(Struct, tag_field="type"):
    sequence_number: int


class _WholeEvent(_Event):
    response: ResponseObject


class ResponseCreated(_WholeEvent, tag="response.created"):
    """The prompt was read."""


class ResponseInProgress(_WholeEvent, tag="response.in_progress"):
    """Generation begins."""


class ResponseCompleted(_WholeEvent, tag="response.completed"):
    """The whole, at its end."""


class ResponseIncomplete(_WholeEvent, tag="response.incomplete"):
    """The whole, cut off."""


class ResponseFailed(_WholeEvent, tag="response.failed"):
    """It failed."""


class _ItemEvent(_Event):
    output_index: int
    item: OutputItem


class ItemAdded(_ItemEvent, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(_ItemEvent, tag="response.output_item.done"):
    """An item has ended."""


class _PartEvent(_Event):
    item_id: str
    output_index: int
    content_index: int


class PartAdded(_PartEvent, tag="response.content_part.added"):
    """A part of an item begins."""

    part: OutputText | ReasoningText


class PartDone(_PartEvent, tag="response.content_part.done"):
    """A part of an item has ended."""

    part: OutputText | ReasoningText


class OutputTextDelta(_PartEvent, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDone(_PartEvent, tag="response.output_text.done"):
    """The whole text of a part."""

    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDelta(_PartEvent, tag="response.reasoning_text.delta"):
    """More of a thought."""

    delta: str


class ReasoningTextDone(_PartEvent, tag="response.reasoning_text.done"):
    """A whole thought."""

    text: str


class ArgumentsDelta(_Event, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Event, tag="response.function_call_arguments.done"):
    """A call's whole arguments."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class CustomInputDelta(_Event, tag="response.custom_tool_call_input.delta"):
    """More of a custom tool's input."""

    item_id: str
    output_index: int
    delta: str


class CustomInputDone(_Event, tag="response.custom_tool_call_input.done"):
    """A custom tool's whole input."""

    item_id: str
    output_index: int
    input: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)
