"""``/api/generate`` and ``/api/chat``: lines of JSON, the last with the figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any

import msgspec
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Truncation
from blazr.llm.results import Completion, Usage
from blazr.server.errors import HttpError
from blazr.server.messages import ChatMessage, to_messages
from blazr.server.ollama.models import KeepAlive, error_object, keep, with_tag
from blazr.server.params import LAST_N, Nothing, Stop, sampling_params, scheduling, tool_choice
from blazr.server.parts import Part, PartsRenderer
from blazr.server.run import Run, whole_answer
from blazr.server.service import Call, json_response
from blazr.server.sse import LINES, EventStream
from blazr.text.events import TokenText
from blazr.text.messages import Message
from blazr.text.reasoning import thinking_variables


class Options(msgspec.Struct, kw_only=True):
    """How to sample; what there is not is ignored."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Stop | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class _Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    keep_alive: KeepAlive | None = None


class GenerateBody(_Common, kw_only=True):
    """A prompt, rendered as a chat unless it is raw; none only asks whether the model is there."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: Nothing | None = None


class ChatBody(_Common, kw_only=True):
    """A chat; none only asks whether the model is there."""

    messages: list[ChatMessage] | None = None
    truncate: bool = True
    tools: list[dict[str, Any]] | None = None


async def generate(call: Call[GenerateBody]) -> Response:
    """Answer a prompt."""
    body, params = call.body, _params(call)
    if body.images:
        raise RequestError("this model reads only text.", param="images")
    plain = body.raw or body.suffix is not None
    system = [Message(role="system", content=body.system)] if body.system else []
    request = None
    if body.prompt:
        request = GenerationRequest(
            prompt=body.prompt if plain else None,
            messages=None if plain else [*system, Message(role="user", content=body.prompt)],
            suffix=body.suffix,
            params=params,
            template_variables=_variables(body),
            **scheduling(call),
        )
    return await _answer(call, request, LineRenderer(_name(call), is_chat=False))


async def chat(call: Call[ChatBody]) -> Response:
    """Answer a chat."""
    body, params = call.body, _params(call)
    request = None
    if body.messages:
        request = GenerationRequest(
            messages=to_messages(body.messages),
            **tool_choice(body.tools),
            params=params,
            template_variables=_variables(body),
            continue_final_message=body.messages[-1].role == "assistant",
            truncation=Truncation(drops="messages") if body.truncate else None,
            **scheduling(call),
        )
    return await _answer(call, request, LineRenderer(_name(call), is_chat=True))


class LineRenderer(PartsRenderer):
    """Says what happens in Ollama's words; calls of tools come whole.

    Args:
        model: What the model is called.
        is_chat: Whether text comes in a message.
    """

    def __init__(self, model: str, *, is_chat: bool) -> None:
        super().__init__()
        self._model = model
        self._is_chat = is_chat
        self._began_ns = self._read_ns = perf_counter_ns()

    def begin(self) -> Iterable[object]:
        """Nothing: the prompt was read."""
        self._read_ns = perf_counter_ns()
        return ()

    def opened(self, part: Part) -> Iterable[object]:  # noqa: ARG002
        """Nothing."""
        return ()

    def more(
        self,
        part: Part,
        text: str,
        tokens: Sequence[TokenText] = (),  # noqa: ARG002
    ) -> Iterable[object]:
        """A line with more text."""
        if part.kind != "tool":
            yield self._line([Part(part.kind, 0, text)])

    def closed(self, part: Part) -> Iterable[object]:
        """A line with a call."""
        if part.kind == "tool":
            yield self._line([part])

    def last(self, usage: Usage) -> Iterable[object]:
        """The line with the figures."""
        yield {**self._line([]), **self._end(usage)}

    def failure(self, error: HttpError) -> Iterable[object]:
        """What to send when a stream fails."""
        yield error_object(error)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        """All in one."""
        return {**self._line(self.parts), **self._end(usage)}

    def nothing(self, *, leaves: bool) -> object:
        """The answer where nothing was asked but to load the model, or to let it go."""
        return {**self._line([]), "done": True, "done_reason": "unload" if leaves else "load"}

    def _line(self, parts: Sequence[Part]) -> dict[str, object]:
        text = "".join(part.text for part in parts if part.kind == "text")
        thought = "".join(part.text for part in parts if part.kind == "reasoning")
        calls = [_call(part) for part in parts if part.kind == "tool"]
        more: dict[str, object] = {"thinking": thought} if thought else {}
        more |= {"tool_calls": calls} if calls else {}
        said: dict[str, object] = {"response": text, **more}
        if self._is_chat:
            said = {"message": {"role": "assistant", "content": text, **more}}
        now = datetime.now(UTC).isoformat()
        return {"model": self._model, "created_at": now, **said, "done": False}

    def _end(self, usage: Usage) -> dict[str, object]:
        now_ns = perf_counter_ns()
        return {
            "done": True,
            "done_reason": self.finished.reason if self.finished else "stop",
            "total_duration": now_ns - self._began_ns,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": self._read_ns - self._began_ns,
            "eval_count": usage.completion_tokens,
            "eval_duration": now_ns - self._read_ns,
        }


async def _answer(
    call: Call[GenerateBody] | Call[ChatBody],
    request: GenerationRequest | None,
    renderer: LineRenderer,
) -> Response:
    keep(call, call.body.keep_alive)
    if request is None:
        seat = call.models.find(call.body.model)
        return json_response(renderer.nothing(leaves=seat.idle_s == 0))
    run = await Run.start(call, [request])
    if call.body.stream is not False:
        return EventStream(run, renderer, LINES)
    return await whole_answer(run, renderer)


def _name(call: Call[GenerateBody] | Call[ChatBody]) -> str:
    """What the model is called in the answer: what the client calls it."""
    return call.body.model or with_tag(call.service.name)


def _params(call: Call[GenerateBody] | Call[ChatBody]) -> SamplingParams:
    body, options = call.body, call.body.options or Options()
    grammar: dict[str, object] | None = None
    if body.format:
        is_any = body.format == "json"
        grammar = {"json_object": True} if is_any else {"json_schema": body.format}
    most = -1 if options.num_predict is None else max(options.num_predict, -1)
    given = msgspec.structs.asdict(options)
    del given["num_predict"]
    given["repetition_penalty"] = given.pop("repeat_penalty")
    if options.repeat_last_n is None:
        given["repeat_last_n"] = LAST_N
    return sampling_params(**given, max_tokens=most, grammar=grammar)


def _variables(body: GenerateBody | ChatBody) -> dict[str, object] | None:
    if body.think is None:
        return None
    effort = body.think if isinstance(body.think, str) else None
    return thinking_variables(enabled=bool(body.think), effort=effort)


def _call(part: Part) -> dict[str, object]:
    try:
        arguments = json.loads(part.text or "{}")
    except ValueError:
        arguments = {}  # cut off in the middle
    return {"function": {"name": part.name, "arguments": arguments}}
