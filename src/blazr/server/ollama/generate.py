"""``/api/generate`` and ``/api/chat``: lines of JSON, the last with the figures.

Durations are in nanoseconds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import override

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Truncation
from blazr.llm.results import Completion, Usage
from blazr.server.endpoint import Call, Reply
from blazr.server.errors import HttpError
from blazr.server.messages import ChatMessage, first_images, to_messages
from blazr.server.ollama.catalog import KeepAlive, ollama_error, set_keep_alive, with_tag
from blazr.server.params import LAST_N, OllamaSamplerFields, Stop, finite, sampling_params
from blazr.server.parts import PartsRenderer, ReplyPart
from blazr.server.run import reply
from blazr.server.schema import CHAT, Example
from blazr.server.tool_choice import tool_choice
from blazr.text.events import TokenText
from blazr.text.messages import Message
from blazr.text.reasoning import thinking_variables


class Options(OllamaSamplerFields, kw_only=True):
    """How to sample; what there is not is ignored."""

    num_predict: int | None = None
    stop: Stop | None = None


class _OllamaBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: KeepAlive | None = None


class OllamaGenerateBody(_OllamaBody, kw_only=True):
    """A prompt, rendered as a chat unless it is raw; none only asks whether the model is there."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    example: ClassVar[Example] = {"options": {"num_predict": 32}, "prompt": "Once upon a time"}


class OllamaChatBody(_OllamaBody, kw_only=True):
    """A chat; none only asks whether the model is there."""

    messages: list[ChatMessage] | None = None
    truncate: bool = True
    tools: list[dict[str, Any]] | None = None
    example: ClassVar[Example] = {"options": {"num_predict": 32}, **CHAT}


class CalledTool(msgspec.Struct):
    """A tool and its arguments."""

    name: str
    arguments: Any


class OllamaToolCall(msgspec.Struct):
    """A call of a tool."""

    function: CalledTool


class OllamaAlternative(msgspec.Struct, kw_only=True):
    """A token's text, bytes and log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(OllamaAlternative, kw_only=True):
    """A token of the text, and the likeliest in its place."""

    top_logprobs: list[OllamaAlternative] | UnsetType = UNSET


DoneReason = Literal["stop", "length", "load", "unload"]


class Line(msgspec.Struct, kw_only=True):
    """Of which model a line is, and when; the last one tells how it ended and what it took."""

    model: str
    created_at: str
    done: bool = False
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[OllamaLogprob] | UnsetType = UNSET


class GenerateLine(Line, kw_only=True):
    """An answer to a prompt, or a line of it."""

    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class OllamaMessage(msgspec.Struct, kw_only=True):
    """What the model says, or more of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class ChatLine(Line, kw_only=True):
    """An answer in a chat, or a line of it."""

    message: OllamaMessage


L = TypeVar("L", bound=Line)


class _Figures(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


async def generate(call: Call[OllamaGenerateBody]) -> Reply[GenerateLine, GenerateLine]:
    """Answer a prompt."""
    request = await call.translate(lambda: _prompt_request(call))
    return await _answer(call, request, GenerateLineRenderer(_model_name(call)))


async def chat(call: Call[OllamaChatBody]) -> Reply[ChatLine, ChatLine]:
    """Answer a chat."""
    request = await call.translate(lambda: _chat_request(call))
    return await _answer(call, request, ChatLineRenderer(_model_name(call)))


def _prompt_request(call: Call[OllamaGenerateBody]) -> GenerationRequest | None:
    body = call.body
    params = _params(body)
    if not body.prompt and not body.images:
        return None
    is_raw = body.raw or bool(body.suffix)
    if is_raw and body.images:
        raise RequestError(
            "images stand in chats, not in raw prompts.", param="images", hint="leave out raw"
        )
    images = first_images(body.images, param="images")
    asked = Message(role="user", content=body.prompt or "", images=images)
    system = [Message(role="system", content=body.system)] if body.system else []
    return GenerationRequest(
        prompt=body.prompt if is_raw else None,
        messages=None if is_raw else [*system, asked],
        suffix=body.suffix or None,
        params=params,
        template_variables=_template_variables(body),
        **call.scheduling(),
    )


def _chat_request(call: Call[OllamaChatBody]) -> GenerationRequest | None:
    body = call.body
    params = _params(body)
    if not body.messages:
        return None
    return GenerationRequest(
        messages=to_messages(body.messages),
        **tool_choice(body.tools),
        params=params,
        template_variables=_template_variables(body),
        continue_final_message=body.messages[-1].role == "assistant",
        truncation=Truncation(drops="messages") if body.truncate else None,
        **call.scheduling(),
    )


class LineRenderer(PartsRenderer[L, L], Generic[L]):
    """Says what happens in Ollama's words; calls of tools come whole.

    Args:
        model: What the model is called.
    """

    def __init__(self, model: str) -> None:
        super().__init__()
        self.model = model
        self._began_ns = self._read_ns = perf_counter_ns()

    @abstractmethod
    def make_line(self, text: str, **more: Any) -> L:
        """A line with a text, and with thoughts and calls where there are any."""

    def line(self, parts: Sequence[ReplyPart]) -> L:
        """A line that tells of some parts."""
        text = "".join(part.text for part in parts if part.kind == "text")
        thoughts = "".join(part.text for part in parts if part.kind == "reasoning")
        calls = [
            OllamaToolCall(CalledTool(part.name, part.arguments))
            for part in parts
            if part.kind == "tool"
        ]
        line = self.make_line(text, thinking=thoughts or UNSET, tool_calls=calls or UNSET)
        tokens = [_logprob(token) for part in parts for token in part.logprobs]
        line.logprobs = tokens or UNSET
        return line

    def prompt_done(self) -> Iterable[L]:
        """Nothing: the prompt was read."""
        self._read_ns = perf_counter_ns()
        return ()

    def part_extended(self, part: ReplyPart, text: str) -> Iterable[L]:
        """A line with more text."""
        if part.kind != "tool":
            yield self.line([ReplyPart(part.kind, 0, text, logprobs=[*part.latest])])

    def part_finished(self, part: ReplyPart) -> Iterable[L]:
        """A line with a call."""
        if part.kind == "tool":
            yield self.line([part])

    def last(self, usage: Usage) -> Iterable[L]:
        """The line with the figures."""
        yield self._with_figures(self.line([]), usage)

    def failure(self, error: HttpError) -> Iterable[msgspec.Struct]:
        """What to send when a stream fails."""
        return (ollama_error(error),)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> L:  # noqa: ARG002
        """All in one."""
        return self._with_figures(self.line(self.parts), usage)

    def _with_figures(self, line: L, usage: Usage) -> L:
        now_ns = perf_counter_ns()
        line.done = True
        reason = self.finished.reason if self.finished else "stop"
        line.done_reason = cast("DoneReason", reason)
        line.total_duration = now_ns - self._began_ns
        line.load_duration = 0
        line.prompt_eval_count = usage.prompt_tokens
        line.prompt_eval_duration = self._read_ns - self._began_ns
        line.eval_count = usage.completion_tokens
        line.eval_duration = now_ns - self._read_ns
        return line


class GenerateLineRenderer(LineRenderer[GenerateLine]):
    """Says what happens in the words of /api/generate."""

    @override
    def make_line(self, text: str, **more: Any) -> GenerateLine:
        created_at = datetime.now(UTC).isoformat()
        return GenerateLine(model=self.model, created_at=created_at, response=text, **more)


class ChatLineRenderer(LineRenderer[ChatLine]):
    """Says what happens in the words of /api/chat."""

    @override
    def make_line(self, text: str, **more: Any) -> ChatLine:
        created_at = datetime.now(UTC).isoformat()
        message = OllamaMessage(content=text, **more)
        return ChatLine(model=self.model, created_at=created_at, message=message)


def _logprob(token: TokenText) -> OllamaLogprob:
    top = [OllamaAlternative(**_figures(each)) for each in token.top]
    return OllamaLogprob(**_figures(token), top_logprobs=top or UNSET)


def _figures(token: TokenText) -> _Figures:
    return {
        "token": token.token,
        "logprob": finite(token.logprob or 0.0),
        "bytes": list(token.data),
    }


async def _answer(
    call: Call[_OllamaBody], request: GenerationRequest | None, renderer: LineRenderer[L]
) -> Reply[L, L]:
    """Generate; without a request only load the model, or let it go."""
    set_keep_alive(call, call.body.keep_alive)
    if request is not None:
        return await reply(call, [request], renderer, stream=call.body.stream is not False)
    line = renderer.line([])
    line.done = True
    line.done_reason = "unload" if call.models.find(call.body.model).idle_s == 0 else "load"
    return line


def _model_name(call: Call[_OllamaBody]) -> str:
    """What the model is called in the answer: what the client calls it."""
    return call.body.model or with_tag(call.name)


def _params(body: _OllamaBody) -> SamplingParams:
    options = body.options or Options()
    grammar: dict[str, object] | None = None
    if body.format:
        is_any = body.format == "json"
        grammar = {"json_object": True} if is_any else {"json_schema": body.format}
    if body.top_logprobs and not body.logprobs:
        raise RequestError(
            "top_logprobs needs logprobs.", param="top_logprobs", expected='"logprobs": true'
        )
    return sampling_params(
        options,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        max_tokens=-1 if options.num_predict is None else max(options.num_predict, -1),
        repeat_last_n=LAST_N if options.repeat_last_n is None else options.repeat_last_n,
        grammar=grammar,
    )


def _template_variables(body: _OllamaBody) -> dict[str, object] | None:
    enabled = None if body.think is None else bool(body.think)
    effort = body.think if isinstance(body.think, str) else None
    return thinking_variables(enabled=enabled, effort=effort) or None
