"""``POST /generate``: a prompt in, its continuation out; in SGLang's words where it is asked so.

Source: ``docs/basic_usage/sampling_params.md`` of SGLang.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from blazr.core.errors import RequestError
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Fold, Usage
from blazr.server.endpoint import Call, Reply
from blazr.server.params import SamplerFields, Stop, TokenIds, sampling_params
from blazr.server.run import Renderer, reply
from blazr.server.schema import Example, Schema, one_given
from blazr.text.events import Event, TextDelta

_DEFAULT_TOKENS = 50
_SGLANG_TOKENS = 128


class SglangParams(SamplerFields, kw_only=True):
    """How SGLang's clients say what is sampled."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    repetition_penalty: float | None = None
    sampling_seed: int | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    speculate: bool | None = None
    skip_special_tokens: bool | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None


class GenerateBody(msgspec.Struct, kw_only=True):
    """The request. A prompt alone asks for the likeliest 50 tokens.

    SGLang's clients send ``text`` or ``input_ids`` with ``sampling_params``, and get SGLang's
    answer.
    """

    prompt: str | None = None
    text: str | None = None
    input_ids: TokenIds | None = None
    model: str | None = None
    max_tokens: int | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: Stop | None = None
    sampling_params: SglangParams | None = None
    stream: bool | None = None
    schema_extra: ClassVar[Schema] = one_given("prompt", "text", "input_ids")
    example: ClassVar[Example] = {"prompt": "Once upon a time", "max_tokens": 32}


class SglangEnd(msgspec.Struct):
    """Why a reply ended."""

    type: str
    length: int | UnsetType = UNSET
    matched: str | UnsetType = UNSET


class SglangMeta(msgspec.Struct):
    """About a reply, as SGLang tells it."""

    id: str
    finish_reason: SglangEnd | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Generated(msgspec.Struct, kw_only=True):
    """What a prompt was continued with: `response`, or the other fields, which are SGLang's."""

    response: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    output_ids: list[int] | UnsetType = UNSET
    meta_info: SglangMeta | UnsetType = UNSET


async def generate(call: Call[GenerateBody]) -> Reply[Generated, Generated]:
    """Continue a prompt."""
    body = call.body
    request = await call.translate(lambda: to_request(body, call))
    renderer = _ResponseRenderer() if body.prompt is not None else _SglangRenderer(call.id)
    return await reply(call, [request], renderer, stream=body.stream)


def to_request(body: GenerateBody, call: Call[GenerateBody]) -> GenerationRequest:
    """Translate a body.

    Raises:
        RequestError: There is not one prompt, or a value is out of range.
    """
    given = [each for each in (body.prompt, body.text, body.input_ids) if each is not None]
    if len(given) != 1:
        raise RequestError(
            "there is not one prompt.", param="prompt", expected="prompt, text or input_ids"
        )
    if body.prompt is None or body.sampling_params:
        sglang = body.sampling_params or SglangParams()
        wanted = sglang.max_new_tokens
        params = sampling_params(
            sglang,
            max_tokens=_SGLANG_TOKENS if wanted is None else wanted,
            min_tokens=sglang.min_new_tokens,
            seed=sglang.sampling_seed,
        )
    else:
        wanted = body.max_new_tokens if body.max_tokens is None else body.max_tokens
        params = sampling_params(
            body,
            max_tokens=_DEFAULT_TOKENS if wanted is None else wanted,
            temperature=body.temperature or 0.0,
        )
    return GenerationRequest(prompt=given[0], params=params, **call.scheduling())


class _ResponseRenderer(Renderer[Generated, Generated]):
    """Renders ``{"response": text}``, or that of each piece."""

    def event(self, event: Event) -> Iterable[Generated]:
        """A piece of the text."""
        if isinstance(event, TextDelta) and event.text:
            yield Generated(response=event.text)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> Generated:  # noqa: ARG002
        """All of it."""
        return Generated(response=completions[0].text)


class _SglangRenderer(Renderer[Generated, Generated]):
    """Says what happens as SGLang does: each event has all of the text so far."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._gathered = Fold()

    def event(self, event: Event) -> Iterable[Generated]:
        """The text so far."""
        self._gathered.push(event)
        if isinstance(event, TextDelta) and event.text:
            (completion,) = self._gathered.completions()
            yield self._generated(completion, is_over=False)

    def last(self, usage: Usage) -> Iterable[Generated]:  # noqa: ARG002
        """The whole, with why it ended."""
        (completion,) = self._gathered.completions()
        yield self._generated(completion)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> Generated:  # noqa: ARG002
        """All of it."""
        return self._generated(completions[0])

    def _generated(self, completion: Completion, *, is_over: bool = True) -> Generated:
        reason = completion.finish_reason
        usage = completion.usage
        end = SglangEnd(reason) if is_over else None
        if reason == "length":
            end = SglangEnd(reason, length=usage.completion_tokens)
        elif reason == "stop" and completion.stop is not None:
            end = SglangEnd(reason, matched=completion.stop)
        return Generated(
            text=completion.text,
            output_ids=list(completion.token_ids),
            meta_info=SglangMeta(
                id=self._name,
                finish_reason=end,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=len(completion.token_ids),
                cached_tokens=usage.cached_tokens,
            ),
        )
