"""What ``/v1/responses`` answers: the response, its items, and events about both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from blazr.agent.toolbox import OfferedTool
from blazr.llm.results import Completion, Usage
from blazr.server.errors import HttpError
from blazr.server.openai.responses.items import InputItem, ItemStatus, pack_text
from blazr.server.openai.responses.mcp import ToolList
from blazr.server.openai.shared import ItemUsage, TokenLogprob, item_usage, token_logprobs
from blazr.server.params import unix_time
from blazr.server.parts import PartsRenderer, ReplyPart
from blazr.server.schema import OneOf
from blazr.text.events import TokenText, ToolStep

# What the ids of items begin with, by the kind of the part.
_ITEM_IDS = {"text": "msg", "reasoning": "rs", "tool": "fc", "custom": "ctc", "step": "mcp"}
_APPROVAL = "mcpr"  # a call that waits for the client to agree


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", kw_only=True):
    """Text of a message."""

    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[TokenLogprob]


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """Text of a train of thought."""

    text: str


ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputMessage(msgspec.Struct, kw_only=True):
    """A message of the model."""

    id: str
    status: ItemStatus
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, kw_only=True):
    """A train of thought."""

    id: str
    status: ItemStatus
    encrypted_content: str | UnsetType = UNSET
    type: Literal["reasoning"] = "reasoning"
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText]


class FunctionCallItem(msgspec.Struct, kw_only=True):
    """A call of a tool."""

    id: str
    status: ItemStatus
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class CustomCallItem(msgspec.Struct, kw_only=True):
    """A call of a custom tool."""

    id: str
    status: ItemStatus
    type: Literal["custom_tool_call"] = "custom_tool_call"
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str


class McpToolShown(msgspec.Struct):
    """A tool of an MCP server."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: dict[str, bool]


class McpListItem(msgspec.Struct, kw_only=True):
    """What an MCP server offers; or why it offers nothing."""

    id: str
    type: Literal["mcp_list_tools"] = "mcp_list_tools"
    server_label: str
    tools: list[McpToolShown]
    error: str | None = None


class McpErrorText(msgspec.Struct):
    """What is said of a failure."""

    text: str
    type: Literal["text"] = "text"


class McpCallFailure(msgspec.Struct):
    """Why a call has failed."""

    content: list[McpErrorText]
    type: Literal["mcp_tool_execution_error"] = "mcp_tool_execution_error"


class McpCallItem(msgspec.Struct, kw_only=True):
    """A call of a tool of an MCP server, which this server makes."""

    id: str
    status: ItemStatus | Literal["failed"]
    type: Literal["mcp_call"] = "mcp_call"
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: McpCallFailure | None = None
    approval_request_id: str | None = None


class McpApprovalItem(msgspec.Struct, kw_only=True):
    """A call of a tool of an MCP server that waits for the client to agree."""

    id: str
    type: Literal["mcp_approval_request"] = "mcp_approval_request"
    server_label: str
    name: str
    arguments: str


OutputItem = OneOf[
    OutputMessage,
    ReasoningItem,
    FunctionCallItem,
    CustomCallItem,
    McpListItem,
    McpCallItem,
    McpApprovalItem,
]


class ResponseFailure(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: str = "server_error"
    message: str


class Incomplete(msgspec.Struct):
    """Why a response is not whole."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseReasoning(msgspec.Struct):
    """How much was to be thought."""

    effort: str | None
    summary: str | None


class ResponseText(msgspec.Struct):
    """The form of the text."""

    format: dict[str, Any]
    verbosity: str | UnsetType = UNSET


class ResponseObject(msgspec.Struct, kw_only=True):
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


class ResponseDeleted(msgspec.Struct, kw_only=True):
    """A response was forgotten."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(msgspec.Struct, kw_only=True):
    """What a response was asked."""

    object: Literal["list"] = "list"
    data: list[InputItem]
    first_id: str
    last_id: str
    has_more: bool = False


class _Event(msgspec.Struct, tag_field="type"):
    sequence_number: int


class _WholeEvent(_Event):
    response: ResponseObject


class ResponseCreated(_WholeEvent, tag="response.created"):
    """The prompt has been read."""


class ResponseInProgress(_WholeEvent, tag="response.in_progress"):
    """Generation begins."""


class ResponseCompleted(_WholeEvent, tag="response.completed"):
    """The response is complete."""


class ResponseIncomplete(_WholeEvent, tag="response.incomplete"):
    """The response ends where its tokens ran out."""


class ResponseFailed(_WholeEvent, tag="response.failed"):
    """The response has failed."""


class _ItemEvent(_Event):
    output_index: int
    item: OutputItem


class ItemAdded(_ItemEvent, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(_ItemEvent, tag="response.output_item.done"):
    """An item has ended."""


class _InsideEvent(_Event):
    item_id: str
    output_index: int


class _PartEvent(_InsideEvent):
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


class ArgumentsDelta(_InsideEvent, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(_InsideEvent, tag="response.function_call_arguments.done"):
    """A call's whole arguments."""

    name: str
    arguments: str


class CustomInputDelta(_InsideEvent, tag="response.custom_tool_call_input.delta"):
    """More of a custom tool's input."""

    delta: str


class CustomInputDone(_InsideEvent, tag="response.custom_tool_call_input.done"):
    """A custom tool's whole input."""

    input: str


class McpListInProgress(_InsideEvent, tag="response.mcp_list_tools.in_progress"):
    """An MCP server is asked for its tools."""


class McpListCompleted(_InsideEvent, tag="response.mcp_list_tools.completed"):
    """An MCP server has listed its tools."""


class McpListFailed(_InsideEvent, tag="response.mcp_list_tools.failed"):
    """An MCP server could not be asked for its tools."""


class McpCallInProgress(_InsideEvent, tag="response.mcp_call.in_progress"):
    """A tool of an MCP server runs."""


class McpArgumentsDelta(_InsideEvent, tag="response.mcp_call_arguments.delta"):
    """The arguments of a call of an MCP tool."""

    delta: str


class McpArgumentsDone(_InsideEvent, tag="response.mcp_call_arguments.done"):
    """The whole arguments of a call of an MCP tool."""

    arguments: str


class McpCallCompleted(_InsideEvent, tag="response.mcp_call.completed"):
    """A tool of an MCP server has answered."""


class McpCallFailed(_InsideEvent, tag="response.mcp_call.failed"):
    """A call of a tool of an MCP server has failed."""


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
    | McpListInProgress
    | McpListCompleted
    | McpListFailed
    | McpCallInProgress
    | McpArgumentsDelta
    | McpArgumentsDone
    | McpCallCompleted
    | McpCallFailed
)


class ResponseRenderer(PartsRenderer[ResponseObject, ResponseEvent]):
    """Says what happens in the words of /v1/responses.

    Args:
        template: The response without what is generated.
        on_end: Called with the response when it has ended.
        namespaces: Namespace and own name of tools in namespaces, by the name a model is shown.
        packs_thoughts: Whether thoughts are shown in the form in which clients send them back.
        wants_logprobs: Whether log-probabilities are shown.
        tools: The tools that this server runs, or asks about, by the name a model is shown.
        lists: What MCP servers offer, where the request names some.
    """

    def __init__(
        self,
        template: ResponseObject,
        on_end: Callable[[ResponseObject], None],
        *,
        namespaces: Mapping[str, tuple[str, str]],
        wants_logprobs: bool,
        packs_thoughts: bool,
        tools: Mapping[str, OfferedTool] = MappingProxyType({}),
        lists: Sequence[ToolList] = (),
    ) -> None:
        super().__init__()
        self._tools = tools
        self._lists = lists
        self._template = template
        self._on_end = on_end
        self._namespaces = namespaces
        self._packs_thoughts = packs_thoughts
        self._wants_logprobs = wants_logprobs
        self._num_events = 0

    def prompt_done(self) -> Iterable[ResponseEvent]:
        """The response, still empty."""
        yield ResponseCreated(self._number(), self._template)
        yield ResponseInProgress(self._number(), self._template)
        for place, item in enumerate(self._list_items()):
            empty = replace(item, tools=[], error=None)
            ended = McpListFailed if item.error else McpListCompleted
            yield ItemAdded(self._number(), place, empty)
            yield McpListInProgress(self._number(), item.id, place)
            yield ended(self._number(), item.id, place)
            yield ItemDone(self._number(), place, item)

    def part_started(self, part: ReplyPart) -> Iterable[ResponseEvent]:
        """An item, still empty, and the one part in it."""
        place = self._place(part)
        item_id = self._item_id(part)
        yield ItemAdded(self._number(), place, self._item(part, "in_progress"))
        if part.step is not None:
            yield McpCallInProgress(self._number(), item_id, place)
            yield McpArgumentsDelta(self._number(), item_id, place, part.step.arguments)
            yield McpArgumentsDone(self._number(), item_id, place, part.step.arguments)
        elif part.kind == "text":
            yield PartAdded(self._number(), item_id, place, 0, self._text(part))
        elif part.kind == "reasoning":
            thought = ReasoningText(part.text)
            yield PartAdded(self._number(), item_id, place, 0, thought)

    def part_extended(self, part: ReplyPart, text: str) -> Iterable[ResponseEvent]:
        """What is added to an item."""
        if self._asks(part):
            return  # it is shown whole
        number = self._number()
        item_id = self._item_id(part)
        place = self._place(part)
        if part.kind == "tool":
            yield ArgumentsDelta(number, item_id, place, text)
        elif part.kind == "custom":
            yield CustomInputDelta(number, item_id, place, text)
        elif part.kind == "reasoning":
            yield ReasoningTextDelta(number, item_id, place, 0, text)
        else:
            logprobs = self._logprobs(part.latest)
            yield OutputTextDelta(number, item_id, place, 0, text, logprobs)

    def part_finished(self, part: ReplyPart) -> Iterable[ResponseEvent]:
        """The end of an item."""
        item_id = self._item_id(part)
        place = self._place(part)
        status: ItemStatus = "incomplete" if self._is_cut else "completed"
        if self._asks(part):
            yield ItemDone(self._number(), place, self._item(part, status))
            return
        number = self._number()
        if part.step is not None:
            yield (McpCallFailed if part.step.is_error else McpCallCompleted)(
                number, item_id, place
            )
            status = "completed"
        elif part.kind == "tool":
            yield ArgumentsDone(number, item_id, place, self._tool(part)[1], part.text)
        elif part.kind == "custom":
            yield CustomInputDone(number, item_id, place, part.text)
        elif part.kind == "reasoning":
            yield ReasoningTextDone(number, item_id, place, 0, part.text)
            yield PartDone(self._number(), item_id, place, 0, ReasoningText(part.text))
        else:
            logprobs = self._logprobs(part.logprobs)
            yield OutputTextDone(number, item_id, place, 0, part.text, logprobs)
            yield PartDone(self._number(), item_id, place, 0, self._text(part))
        yield ItemDone(self._number(), place, self._item(part, status))

    def last(self, usage: Usage) -> Iterable[ResponseEvent]:
        """The whole response."""
        response = self._finish(usage)
        event = ResponseIncomplete if self._is_cut else ResponseCompleted
        yield event(self._number(), response)

    def failure(self, error: HttpError) -> Iterable[ResponseEvent]:
        """What to send when a stream fails."""
        response = self._end("failed", error=ResponseFailure(message=error.text))
        yield ResponseFailed(self._number(), response)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> ResponseObject:  # noqa: ARG002
        """The whole response."""
        return self._finish(usage)

    def cancel(self) -> None:
        """End the response because the client wants no more of it, as far as it has come."""
        self._end("cancelled")

    def _finish(self, usage: Usage) -> ResponseObject:
        return self._end(
            "incomplete" if self._is_cut else "completed",
            completed_at=unix_time(),
            usage=item_usage(usage),
            incomplete_details=Incomplete() if self._is_cut else None,
        )

    def _end(self, status: ResponseStatus, **more: object) -> ResponseObject:
        """The response as far as it has come."""
        output = [self._item(part, "completed") for part in self.parts]
        last = output[-1] if output else None
        if status != "completed" and not isinstance(last, McpListItem | McpApprovalItem | None):
            last.status = "incomplete"
        output = [*self._list_items(), *output]
        response = replace(self._template, status=status, output=output, **more)
        self._on_end(response)
        return response

    @property
    def _is_cut(self) -> bool:
        return self.finished is not None and self.finished.reason == "length"

    def _item(self, part: ReplyPart, status: ItemStatus) -> OutputItem:
        item_id = self._item_id(part)
        is_empty = status == "in_progress"
        if part.step is not None:
            return self._call_item(item_id, part.step)
        if self._asks(part):
            tool = self._tools[part.name]
            return McpApprovalItem(
                id=item_id, server_label=tool.server, name=tool.tool.name, arguments=part.text
            )
        if part.kind == "text":
            content = [] if is_empty else [self._text(part)]
            return OutputMessage(id=item_id, status=status, content=content)
        if part.kind == "reasoning":
            return ReasoningItem(
                id=item_id,
                status=status,
                content=[] if is_empty else [ReasoningText(part.text)],
                encrypted_content=pack_text(part.text) if self._packs_thoughts else UNSET,
            )
        namespace, name = self._tool(part)
        if part.kind == "custom":
            return CustomCallItem(
                id=item_id,
                status=status,
                call_id=part.call_id,
                name=name,
                namespace=namespace or UNSET,
                input=part.text,
            )
        return FunctionCallItem(
            id=item_id,
            status=status,
            call_id=part.call_id,
            name=name,
            namespace=namespace or UNSET,
            arguments=part.text,
        )

    def _call_item(self, item_id: str, step: ToolStep) -> McpCallItem:
        text = step.output or ""
        return McpCallItem(
            id=item_id,
            status=step.status,
            server_label=step.server,
            name=step.name,
            arguments=step.arguments,
            output=None if step.is_error else step.output,
            error=McpCallFailure([McpErrorText(text)]) if step.is_error else None,
            approval_request_id=step.id if step.id.startswith(f"{_APPROVAL}_") else None,
        )

    def _list_items(self) -> list[McpListItem]:
        """What the MCP servers offer: the first items of a response."""
        return [
            McpListItem(
                id=self._id_at("mcpl", place),
                server_label=each.server,
                tools=[
                    McpToolShown(x.name, x.description, x.schema, {"read_only": x.only_reads})
                    for x in each.tools
                ],
                error=each.failure or None,
            )
            for place, each in enumerate(self._lists)
        ]

    def _asks(self, part: ReplyPart) -> bool:
        """Whether a part is a call that the client has to agree to."""
        return part.kind == "tool" and part.name in self._tools

    def _place(self, part: ReplyPart) -> int:
        return len(self._lists) + part.place

    def _tool(self, part: ReplyPart) -> tuple[str, str]:
        """Namespace and name of the tool that is called."""
        return self._namespaces.get(part.name, ("", part.name))

    def _text(self, part: ReplyPart) -> OutputText:
        return OutputText(text=part.text, logprobs=self._logprobs(part.logprobs))

    def _logprobs(self, tokens: Iterable[TokenText]) -> list[TokenLogprob]:
        return token_logprobs(tokens) if self._wants_logprobs else []

    def _item_id(self, part: ReplyPart) -> str:
        kind = _APPROVAL if self._asks(part) else _ITEM_IDS[part.kind]
        return self._id_at(kind, self._place(part))

    def _id_at(self, kind: str, place: int) -> str:
        """The id of the item at a place of the output."""
        return f"{kind}_{self._template.id.removeprefix('resp_')}_{place}"

    def _number(self) -> int:
        """The sequence number of the next event."""
        self._num_events += 1
        return self._num_events - 1
