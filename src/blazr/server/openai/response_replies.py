"""What ``/v1/responses`` and ``/v1/decisions`` answer, as types."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from blazr.server.openai.items import ItemPart
from blazr.server.openai.replies import ReasoningTokens, TokenLogprob


class InputDetails(Struct):
    """Of the tokens read, those not computed again."""

    cached_tokens: int
    cache_write_tokens: int


class ItemUsage(Struct):
    """What a request cost, in tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text of a message."""

    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[TokenLogprob]


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    """Text of a train of thought."""

    text: str


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputMessage(Struct, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    """A train of thought."""

    id: str
    status: ItemStatus
    summary: list[dict[str, Any]]
    content: list[ReasoningText]
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(Struct, tag_field="type", tag="function_call"):
    """A call of a tool."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem | CustomCallItem


class ResponseFailure(Struct):
    """Why a response failed."""

    code: str
    message: str


class Incomplete(Struct):
    """Why a response is not whole."""

    reason: Literal["max_output_tokens"]


class ResponseReasoning(Struct):
    """How much was to be thought."""

    effort: str | None
    summary: str | None


class ResponseText(Struct):
    """The form of the text."""

    format: dict[str, Any]
    verbosity: str | UnsetType = UNSET


class ResponseObject(Struct):
    """A response, whole or on its way."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[OutputItem]
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    instructions: str | None
    metadata: dict[str, str]
    previous_response_id: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_logprobs: int
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    reasoning: ResponseReasoning
    text: ResponseText
    truncation: str
    store: bool
    background: bool
    max_tool_calls: None
    presence_penalty: float
    frequency_penalty: float
    service_tier: str
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None
    usage: ItemUsage | None


class ResponseDeleted(Struct):
    """A response was forgotten."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ShownPart(ItemPart):
    """One part of an item's content; what an assistant said has a place for annotations."""

    annotations: list[dict[str, Any]] | UnsetType = UNSET


class InputItem(Struct):
    """An item of what was asked, with its content in parts."""

    id: str
    type: str
    status: ItemStatus
    role: str | UnsetType = UNSET
    content: list[ShownPart] | UnsetType = UNSET
    summary: list[dict[str, Any]] | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    output: str | list[ItemPart] | UnsetType = UNSET


class InputItemList(Struct):
    """What a response was asked."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str
    last_id: str
    has_more: bool


class _Event(Struct, tag_field="type"):
    sequence_number: int


class _OfResponse(_Event):
    response: ResponseObject


class ResponseCreated(_OfResponse, tag="response.created"):
    """The prompt was read."""


class ResponseInProgress(_OfResponse, tag="response.in_progress"):
    """Generation begins."""


class ResponseCompleted(_OfResponse, tag="response.completed"):
    """The whole, at its end."""


class ResponseIncomplete(_OfResponse, tag="response.incomplete"):
    """The whole, cut off."""


class ResponseFailed(_OfResponse, tag="response.failed"):
    """It failed."""


class _OfItem(_Event):
    output_index: int
    item: OutputItem


class ItemAdded(_OfItem, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(_OfItem, tag="response.output_item.done"):
    """An item has ended."""


class _OfPart(_Event):
    item_id: str
    output_index: int
    content_index: int


class PartAdded(_OfPart, tag="response.content_part.added"):
    """A part of an item begins."""

    part: OutputText | ReasoningText


class PartDone(_OfPart, tag="response.content_part.done"):
    """A part of an item has ended."""

    part: OutputText | ReasoningText


class OutputTextDelta(_OfPart, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[TokenLogprob]


class TextDone(_OfPart, tag="response.output_text.done"):
    """The whole text of a part."""

    text: str
    logprobs: list[TokenLogprob]


class ReasoningDelta(_OfPart, tag="response.reasoning_text.delta"):
    """More of a thought."""

    delta: str


class ReasoningDone(_OfPart, tag="response.reasoning_text.done"):
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


class InputDelta(_Event, tag="response.custom_tool_call_input.delta"):
    """More of a custom tool's input."""

    item_id: str
    output_index: int
    delta: str


class InputDone(_Event, tag="response.custom_tool_call_input.done"):
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
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
)


class PredicateAnswer(Struct, tag_field="type", tag="predicate"):
    """How likely a statement is true."""

    name: str | None
    probability: float


class ChoiceShare(Struct):
    """How likely an answer is."""

    value: str | bool
    probability: float


class ChoiceAnswer(Struct, tag_field="type", tag="choice"):
    """The likeliest answer, and how likely each is."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceShare]


class LevelShare(Struct):
    """How likely a level is."""

    label: str
    value: int
    probability: float


class ScoreAnswer(Struct, tag_field="type", tag="score"):
    """The mean of the levels, and how likely each is."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelShare]


class Decisions(Struct):
    """An answer to each question."""

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: ItemUsage
