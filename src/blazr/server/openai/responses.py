"""``/v1/responses``: create, look up, cancel, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Truncation
from blazr.server.errors import HttpError, clean
from blazr.server.openai.items import Item, shown, to_messages
from blazr.server.openai.replay import Log, Replay
from blazr.server.openai.response_rendering import ResponseRenderer
from blazr.server.openai.schema import ToolChoice, ToolMode, tool_fields
from blazr.server.openai.tools import read_tools
from blazr.server.params import (
    ResponseFormat,
    grammar_of,
    said,
    sampling_params,
    scheduling,
    unix_time,
)
from blazr.server.run import Run, finish, whole_answer
from blazr.server.service import Call, json_response
from blazr.server.sse import NAMED, EventStream
from blazr.text.messages import Message
from blazr.text.reasoning import thinking_variables

_LOGPROBS = "message.output_text.logprobs"
_THOUGHTS = "reasoning.encrypted_content"


class TextOptions(msgspec.Struct):
    """The form of the text."""

    format: ResponseFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct):
    """How much to think."""

    effort: str | None = None
    summary: str | None = None


class CountBody(msgspec.Struct, kw_only=True):
    """What is counted."""

    input: str | list[Item] = ""
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolMode | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt: Annotated[Any, said(type="null")] = None  # a template, which this server has none of


class Body(CountBody, kw_only=True):
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


@dataclass(slots=True)
class Kept:
    """A response that can be looked up and gone on with.

    Args:
        response: As it is now.
        input: What was asked, without what went before.
        messages: The conversation up to its end.
        task: What still generates it in the background.
        log: What has happened, of one in the background.
    """

    response: dict[str, object]
    input: list[object]
    messages: Sequence[Message]
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    log: Log | None = field(default=None, repr=False)


class Query(msgspec.Struct, kw_only=True):
    """How a response is looked up."""

    stream: bool | None = None
    starting_after: Annotated[int, msgspec.Meta(ge=0)] | None = None


async def create(call: Call[Body]) -> Response:
    """Answer, and keep the answer unless told not to."""
    body, service = call.body, call.service
    params, frame = _params(call), _frame(call)
    messages = _conversation(call)
    request = _to_request(call, messages, params)
    keeper = _Keeper(call, messages)
    renderer = ResponseRenderer(
        frame,
        keeper.end,
        homes=read_tools(body.tools).homes,
        wants_logprobs=params.logprobs is not None,
        packs_thoughts=_THOUGHTS in (body.include or ()),
    )
    if body.background and body.store is False:
        raise RequestError(
            "a response in the background is looked up, so it is stored.", param="background"
        )
    run = await Run.start(call, [request])
    if body.background:
        frame |= {"status": "in_progress", "output": []}
        log = Log()
        task = asyncio.create_task(_in_background(run, renderer, log))
        working = ExitStack()
        working.enter_context(call.state.working())
        service.hold()
        for callback in (service.release, run.end, log.end):
            working.callback(callback)
        # a callback, because a task that is cancelled before it begins does nothing
        task.add_done_callback(lambda _: working.close())
        keeper.keep(frame, log).task = task
        return Replay(log, service.config) if body.stream else json_response(frame)
    if body.stream:
        return EventStream(run, renderer, NAMED)
    return await whole_answer(run, renderer)


async def retrieve(call: Call[Query]) -> Response:
    """A response that was stored; one in the background also as a stream, from any place on."""
    kept, query = _find(call), call.body
    if not query.stream:
        return json_response(kept.response)
    if kept.log is None:
        raise HttpError(400, "only a response in the background can be followed.", param="stream")
    after = -1 if query.starting_after is None else query.starting_after
    return Replay(kept.log, call.state.config, after=after)


async def input_items(call: Call[None]) -> Response:
    """What a stored response was asked."""
    data = _find(call).input
    ids = [each["id"] for each in data if isinstance(each, dict)] or [""]
    ends = {"first_id": ids[0], "last_id": ids[-1], "has_more": False}
    return json_response({"object": "list", "data": data, **ends})


async def cancel(call: Call[None]) -> Response:
    """Stop a response that is generated in the background."""
    kept = _find(call)
    if not kept.response["background"]:
        raise HttpError(400, "only a response in the background can be cancelled.")
    if kept.task is not None:
        kept.task.cancel()
        with suppress(asyncio.CancelledError):
            await kept.task
        kept.response |= {"status": "cancelled"}
    return json_response(kept.response)


async def delete(call: Call[None]) -> Response:
    """Forget a stored response; one in the background is stopped."""
    kept = _find(call)
    call.state.kept.pop(call.tenant, call.path["id"])
    if kept.task is not None:
        kept.task.cancel()
    return json_response({"id": call.path["id"], "object": "response", "deleted": True})


async def count_tokens(call: Call[CountBody]) -> Response:
    """How many tokens an input has."""
    request = _to_request(call, _conversation(call), sampling_params(grammar=_grammar(call.body)))
    ids = await asyncio.to_thread(call.service.llm.core.encode_chat, request)
    return json_response({"object": "response.input_tokens", "input_tokens": len(ids)})


class _Keeper:
    """Keeps a response as it changes."""

    def __init__(self, call: Call[Body], messages: Sequence[Message]) -> None:
        self._call = call
        self._messages = messages
        self._kept: Kept | None = None

    def keep(self, response: dict[str, object], log: Log | None = None) -> Kept:
        given = self._call.body.input
        items = [Item(role="user", content=given)] if isinstance(given, str) else given
        self._kept = Kept(response, [shown(item) for item in items], self._messages, log=log)
        self._put(self._kept)
        return self._kept

    def end(self, response: dict[str, object]) -> None:
        if self._call.body.store is False:
            return
        kept = self._kept or self.keep(response)
        output = msgspec.convert(response["output"], list[Item])
        kept.response = response
        kept.messages = [*self._messages, *to_messages(output)]
        kept.task = None
        if self._call.state.kept.get(self._call.tenant, str(response["id"])) is kept:
            self._put(kept)

    def _put(self, kept: Kept) -> None:
        size = len(msgspec.json.encode((kept.response, kept.input)))
        size += kept.log.num_bytes if kept.log else 0
        name = str(kept.response["id"])
        self._call.state.kept.put(self._call.tenant, name, kept, num_bytes=size)


async def _in_background(run: Run, renderer: ResponseRenderer, log: Log) -> None:
    try:
        await finish(run, lambda event: log.add(renderer.event(event)))
        log.add(renderer.last(run.usage()))
    except asyncio.CancelledError:
        renderer.failed(HttpError(500, ""), "cancelled")
    except Exception as error:  # noqa: BLE001  (whoever looks it up gets told)
        log.add(renderer.failure(HttpError.of(error)))


def _params(call: Call[Body]) -> SamplingParams:
    body = call.body
    wants_logprobs = body.top_logprobs is not None or _LOGPROBS in (body.include or ())
    return sampling_params(
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        grammar=_grammar(body),
    )


def _grammar(body: Body | CountBody) -> dict[str, object] | None:
    return grammar_of(body.text.format if body.text else None, param="text")


def _conversation(call: Call[Body] | Call[CountBody]) -> list[Message]:
    """What went before and what is new; instructions are of this response alone."""
    if call.body.prompt is not None:
        raise RequestError(
            "this server keeps no prompt templates.",
            param="prompt",
            hint="send instructions and input, filled in",
        )
    before: Sequence[Message] = ()
    previous = call.body.previous_response_id
    if previous is not None:
        kept = _lookup(call, previous, param="previous_response_id")
        if kept.response["status"] not in {"completed", "incomplete"}:
            raise HttpError(400, "that response has not ended.", param="previous_response_id")
        before = kept.messages
    return [*before, *to_messages(call.body.input)]


def _to_request(
    call: Call[Body] | Call[CountBody], messages: Sequence[Message], params: SamplingParams
) -> GenerationRequest:
    body = call.body
    tools = read_tools(body.tools).tools
    fields = tool_fields(tools, body.tool_choice, parallel=body.parallel_tool_calls)
    system = [Message(role="system", content=body.instructions)] if body.instructions else []
    effort = body.reasoning.effort if body.reasoning else None
    return GenerationRequest(
        messages=[*system, *messages],
        params=params,
        template_variables=thinking_variables(effort=effort) or None,
        truncation=Truncation(drops="messages") if body.truncation == "auto" else None,
        **fields,
        **scheduling(call),
    )


def _frame(call: Call[Body]) -> dict[str, object]:
    """The response without what is generated; every key that clients look for."""
    body, choice = call.body, call.body.tool_choice
    return {
        "id": f"resp_{call.id}",
        "object": "response",
        "created_at": unix_time(),
        "completed_at": None,
        "model": call.service.name,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "previous_response_id": body.previous_response_id,
        "max_output_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "tools": read_tools(body.tools).shown,
        "tool_choice": _plain(choice) if isinstance(choice, ToolChoice) else choice or "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": None, "summary": None} | _plain(body.reasoning or Reasoning()),
        "text": {"format": {"type": "text"}} | _plain(body.text or TextOptions()),
        "truncation": body.truncation or "disabled",
        "store": body.store is not False,
        "background": bool(body.background),
        "max_tool_calls": None,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "service_tier": "default",
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "user": body.user,
        "usage": None,
    }


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    """What is set of a body."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return {name: each for name, each in plain.items() if each is not None}


def _find(call: Call[Any]) -> Kept:
    return _lookup(call, call.path["id"], param=None)


def _lookup(call: Call[object], name: str, *, param: str | None) -> Kept:
    kept = call.state.kept.get(call.tenant, name)
    if not isinstance(kept, Kept):
        message = f"there is no response {clean(name, 100)!r}: it was not stored, or is too old."
        raise HttpError(404, message, param=param, code="response_not_found")
    return kept
