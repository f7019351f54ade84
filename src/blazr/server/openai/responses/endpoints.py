"""``/v1/responses``: create, look up, cancel, delete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from blazr.agent.toolbox import Offer
from blazr.core.errors import EXITS, RequestError
from blazr.llm.generation import GenerationRequest, Truncation
from blazr.server.agent import AgentFields, MostRounds, taken_names, wants_tools
from blazr.server.endpoint import Call, Reply, working
from blazr.server.errors import HttpError, clean
from blazr.server.openai.responses.items import (
    ITEM_REFERENCE,
    InputItem,
    Item,
    approved_of,
    to_input_item,
    to_messages,
)
from blazr.server.openai.responses.mcp import ResponseTools, open_tools
from blazr.server.openai.responses.rendering import (
    InputItemList,
    ResponseDeleted,
    ResponseEvent,
    ResponseObject,
    ResponseReasoning,
    ResponseRenderer,
    ResponseText,
)
from blazr.server.openai.responses.replay import EventLog, Replay
from blazr.server.openai.responses.tools import GivenTool, ToolSet, read_tools
from blazr.server.params import InputTokens, sampling_params, unix_time
from blazr.server.response_format import TEXT, ResponseFormat, grammar_of
from blazr.server.run import Run, reply
from blazr.server.schema import Example, schema_hint
from blazr.server.tool_choice import ToolChoice, ToolMode, tool_fields
from blazr.text.messages import Message
from blazr.text.reasoning import thinking_variables

_log = logging.getLogger(__name__)

_LOGPROBS = "message.output_text.logprobs"
_THOUGHTS = "reasoning.encrypted_content"


class TextOptions(msgspec.Struct):
    """The form of the text."""

    format: ResponseFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct):
    """How much to think."""

    effort: str | None = None
    summary: str | None = None


class CountInputBody(msgspec.Struct, kw_only=True):
    """What is counted."""

    input: str | list[Item] = ""
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[GivenTool] | None = None
    tool_choice: ToolMode | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    agent: bool | None = None
    max_tool_rounds: MostRounds | None = None
    # the name of a template, of which this server has none
    prompt: Annotated[Any, schema_hint(type="null")] = None
    example: ClassVar[Example] = {"input": "Once upon a time"}


class ResponseBody(CountInputBody, kw_only=True):
    """The request."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    example: ClassVar[Example] = {"input": "Once upon a time", "max_output_tokens": 32}


_B = TypeVar("_B", bound=CountInputBody)


class ResponseQuery(msgspec.Struct, kw_only=True):
    """How a response is looked up."""

    stream: bool | None = None
    starting_after: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ItemQuery(msgspec.Struct, kw_only=True):
    """Which items are listed; ``after`` is the last one of the list before."""

    after: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


async def create(call: Call[ResponseBody]) -> Reply[ResponseObject, ResponseEvent]:
    """Answer, and keep the answer unless told not to."""
    call = await call.translate(lambda: _with_items(call))
    body = call.body
    if body.background and body.store is False:
        raise RequestError(
            "a response in the background is looked up, so it is stored.", param="background"
        )
    tools, mcp = await _open_tools(call)
    try:
        request, stored, renderer = await call.translate(lambda: _translate(call, tools, mcp))
    except BaseException:
        mcp.close()
        raise
    asked = AgentFields(max_rounds=body.max_tool_rounds, approved=approved_of(body.input))
    agent = mcp.agent(call, request, asked)
    if not body.background:
        return await reply(call, [request], renderer, stream=body.stream, agent=agent)
    run = await Run.start(call, [request], agent=agent)
    log = EventLog()
    task = asyncio.create_task(_generate(run, renderer, log))
    cleanup = ExitStack()
    cleanup.enter_context(working(call.state))
    call.model.hold()
    for callback in (call.model.release, run.close, log.close):
        cleanup.callback(callback)
    # a callback, because a task that is cancelled before it begins does nothing
    task.add_done_callback(lambda _: cleanup.close())
    stored.task = task
    stored.log = log
    _store(call, stored)
    return Replay(log, call.state.config) if body.stream else stored.response


async def retrieve(call: Call[ResponseQuery]) -> Reply[ResponseObject, ResponseEvent]:
    """A response that was stored; one in the background also as a stream, from any place on."""
    stored = _find(call)
    query = call.body
    if not query.stream:
        return stored.response
    if stored.log is None:
        raise HttpError(400, "only a response in the background can be followed.", param="stream")
    after = -1 if query.starting_after is None else query.starting_after
    return Replay(stored.log, call.state.config, after=after)


async def input_items(call: Call[ItemQuery]) -> InputItemList:
    """What a stored response was asked, the last of it first unless told otherwise."""
    query = call.body
    items = _find(call).input
    items = items if query.order == "asc" else items[::-1]
    start = 0
    if query.after is not None:
        ids = [item.id for item in items]
        if query.after not in ids:
            message = f"'after' is no id of this list: {clean(query.after, 100)!r}."
            raise HttpError(400, message, param="after", code="invalid_value")
        start = ids.index(query.after) + 1
    shown = items[start : start + query.limit]
    ids = [item.id for item in shown] or [""]
    has_more = len(items) > start + query.limit
    return InputItemList(data=shown, first_id=ids[0], last_id=ids[-1], has_more=has_more)


async def cancel(call: Call[None]) -> ResponseObject:
    """Stop a response that is generated in the background."""
    stored = _find(call)
    if not stored.response.background:
        raise HttpError(400, "only a response in the background can be cancelled.")
    if stored.task is not None:
        stored.task.cancel()
        with suppress(asyncio.CancelledError):
            await stored.task
        stored.response.status = "cancelled"
    return stored.response


async def delete(call: Call[None]) -> ResponseDeleted:
    """Forget a stored response; one in the background is stopped."""
    stored = _find(call)
    call.state.responses.pop(call.tenant, call.path["id"])
    if stored.task is not None:
        stored.task.cancel()
    return ResponseDeleted(id=call.path["id"])


async def count_tokens(call: Call[CountInputBody]) -> InputTokens:
    """How many tokens an input has."""
    call = await call.translate(lambda: _with_items(call))
    tools, mcp = await _open_tools(call)

    def translate() -> GenerationRequest:
        messages = _conversation(call.body, call, mcp.offer)
        return to_request(call.body, call, messages, mcp.offer.beside(tools.tools))

    try:
        request = await call.translate(translate)
        ids = await call.llm.encode_chat(request)
    finally:
        mcp.close()
    return InputTokens(input_tokens=len(ids))


def _with_items(call: Call[_B]) -> Call[_B]:
    """A request with the items of stored responses to which its input refers.

    Raises:
        HttpError: 404, there is no such item.
    """
    items = call.body.input
    if isinstance(items, str) or not any(each.type == ITEM_REFERENCE for each in items):
        return call
    found = [_find_item(call, each) if each.type == ITEM_REFERENCE else each for each in items]
    return replace(call, body=msgspec.structs.replace(call.body, input=found))


def _find_item(call: Call[_B], reference: Item) -> Item:
    name = reference.id or ""
    # of what was asked and what was answered: a kind, what the response's own ends with, a place
    response_id = f"resp_{name.rpartition('_')[0].rpartition('_')[2]}"
    stored = call.state.responses.get(call.tenant, response_id)
    if isinstance(stored, StoredResponse):
        for item in (*stored.response.output, *stored.input):
            if item.id == name:
                return msgspec.convert(msgspec.to_builtins(item), Item)
    raise HttpError.missing("item", name, ": it was not stored, or is too old", param="input")


async def _open_tools(call: Call[CountInputBody]) -> tuple[ToolSet, ResponseTools]:
    """The tools of a request, and those of MCP servers that are run for it."""
    body = call.body
    tools = await call.translate(lambda: read_tools(body.tools))
    wants_all = wants_tools(call, body.agent)
    if body.tool_choice == "none":
        return tools, ResponseTools()
    taken = taken_names(tools.tools)
    return tools, await open_tools(call, tools.mcp, taken, wants_all=wants_all)


def _translate(
    call: Call[ResponseBody], tools: ToolSet, mcp: ResponseTools
) -> tuple[GenerationRequest, StoredResponse, ResponseRenderer]:
    body = call.body
    messages = _conversation(body, call, mcp.offer)
    request = to_request(body, call, messages, mcp.offer.beside(tools.tools))
    template = _template(body, call, tools)
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    kept_items = [
        # an id that leads back to the response, as those of its output do
        to_input_item(item, f"item_{call.id}_{place}")
        for place, item in enumerate(() if body.store is False else items)
    ]
    stored = StoredResponse(template, kept_items, messages)

    def store_ended(response: ResponseObject) -> None:
        """Store what has ended, unless it was in the background and has been deleted."""
        if body.store is False:
            return
        output = msgspec.convert(msgspec.to_builtins(response.output), list[Item])
        stored.response = response
        stored.messages = [*messages, *to_messages(output, mcp.offer.shown_name)]
        stored.task = None
        if stored.log is None or call.state.responses.get(call.tenant, response.id) is stored:
            _store(call, stored)

    renderer = ResponseRenderer(
        template,
        store_ended,
        namespaces=tools.namespaces,
        wants_logprobs=request.params.logprobs is not None,
        packs_thoughts=_THOUGHTS in (body.include or ()),
        tools=mcp.offer.tools,
        lists=mcp.lists,
    )
    return request, stored, renderer


def to_request(
    body: CountInputBody,
    call: Call[CountInputBody],
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, object]] | None,
) -> GenerationRequest:
    """Translate a body, given its conversation and tools; one to be counted has no sampling fields.

    Raises:
        RequestError: A value is out of range, or asks for what there is not.
    """
    values: dict[str, object] = {}
    if isinstance(body, ResponseBody):
        values["max_tokens"] = body.max_output_tokens
        if body.top_logprobs is not None or _LOGPROBS in (body.include or ()):
            values["logprobs"] = body.top_logprobs or 0
    grammar = grammar_of(body.text.format if body.text else None, param="text")
    params = sampling_params(body, grammar=grammar, **values)
    system = [Message(role="system", content=body.instructions)] if body.instructions else []
    effort = body.reasoning.effort if body.reasoning else None
    return GenerationRequest(
        messages=[*system, *messages],
        params=params,
        template_variables=thinking_variables(effort=effort) or None,
        truncation=Truncation(drops="messages") if body.truncation == "auto" else None,
        **tool_fields(tools, body.tool_choice, parallel=body.parallel_tool_calls),
        **call.scheduling(),
    )


def _conversation(body: CountInputBody, call: Call[CountInputBody], offer: Offer) -> list[Message]:
    """What went before and what is new; instructions are of this response alone."""
    if body.prompt is not None:
        raise RequestError(
            "this server keeps no prompt templates.",
            param="prompt",
            hint="send instructions and input, filled in",
        )
    before: Sequence[Message] = ()
    if body.previous_response_id is not None:
        stored = _find(call, body.previous_response_id, param="previous_response_id")
        status = stored.response.status
        if status not in {"completed", "incomplete"}:
            raise HttpError(
                400,
                f"that response cannot be continued: its status is {status}.",
                param="previous_response_id",
            )
        before = stored.messages
    return [*before, *to_messages(body.input, offer.shown_name)]


def _template(body: ResponseBody, call: Call[ResponseBody], tools: ToolSet) -> ResponseObject:
    """The response without what is generated; every key that clients look for."""
    choice: str | dict[str, Any]
    if isinstance(body.tool_choice, ToolChoice):
        fields = msgspec.to_builtins(body.tool_choice)
        choice = {name: each for name, each in fields.items() if each is not None}
    else:
        choice = body.tool_choice or "auto"
    reasoning = body.reasoning or ReasoningOptions()
    text = body.text or TextOptions()
    return ResponseObject(
        id=f"resp_{call.id}",
        created_at=unix_time(),
        model=call.name,
        instructions=body.instructions,
        metadata=body.metadata or {},
        previous_response_id=body.previous_response_id,
        max_output_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_logprobs=body.top_logprobs or 0,
        tools=tools.shown,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=ResponseReasoning(reasoning.effort, reasoning.summary),
        text=ResponseText(
            format=text.format or TEXT,
            verbosity=msgspec.UNSET if text.verbosity is None else text.verbosity,
        ),
        truncation=body.truncation or "disabled",
        store=body.store is not False,
        background=bool(body.background),
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        user=body.user,
    )


async def _generate(run: Run, renderer: ResponseRenderer, log: EventLog) -> None:
    """Generate in the background, into a log."""
    try:
        await run.finish(lambda event: log.add(renderer.event(event)))
        log.add(renderer.last(run.usage()))
    except asyncio.CancelledError:
        renderer.cancel()
    except EXITS:
        raise
    except BaseException as error:  # noqa: BLE001  (see EXITS)
        failure = HttpError.of(error)
        if failure.code == "internal_error":
            _log.exception("a response in the background failed")
        log.add(renderer.failure(failure))  # the stored response says so


@dataclass(slots=True)
class StoredResponse:
    """A response that can be looked up, and continued by another.

    Args:
        response: As it is now.
        input: What was asked, without what went before.
        messages: The conversation up to its end.
        task: What still generates it in the background.
        log: What has happened, of one in the background.
    """

    response: ResponseObject
    input: list[InputItem]
    messages: Sequence[Message]
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    log: EventLog | None = field(default=None, repr=False)


def _store(call: Call[ResponseBody], stored: StoredResponse) -> None:
    """Store a response, or store it again with the bytes it has now."""
    num_bytes = len(msgspec.json.encode((stored.response, stored.input)))
    num_bytes += stored.log.num_bytes if stored.log else 0
    num_bytes += sum(len(image.data) for each in stored.messages for image in each.images)
    call.state.responses.put(call.tenant, stored.response.id, stored, num_bytes=num_bytes)


def _find(call: Call[Any], name: str | None = None, *, param: str | None = None) -> StoredResponse:
    """A stored response: that of the path, if none is named."""
    name = call.path["id"] if name is None else name
    stored = call.state.responses.get(call.tenant, name)
    if not isinstance(stored, StoredResponse):
        raise HttpError.missing("response", name, ": it was not stored, or is too old", param=param)
    return stored
