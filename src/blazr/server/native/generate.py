"""``POST /generate``: a prompt in, its continuation out; in SGLang's words where it is asked so.

Source: ``docs/basic_usage/sampling_params.md`` of SGLang.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from blazr.core.errors import RequestError
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Fold, Usage
from blazr.server.endpoint import Call, Reply
from blazr.server.params import (
    Prompts,
    SamplerFields,
    Stop,
    TokenId,
    TokenIds,
    check_num_replies,
    finite,
    sampling_params,
    to_prompts,
)
from blazr.server.run import Renderer, reply
from blazr.server.schema import Example, Schema, one_given, schema_hint
from blazr.text.events import Event, Finished, TextDelta, TokenText

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


_Texts = Annotated[list[str], schema_hint(minItems=1)]
_Lists = Annotated[list[TokenId | TokenIds], schema_hint(minItems=1)]


class GenerateBody(msgspec.Struct, kw_only=True):
    """The request. A prompt alone asks for the likeliest 50 tokens.

    SGLang's clients send ``text`` or ``input_ids`` with ``sampling_params``, and get SGLang's
    answer; to a list of prompts, a list.
    """

    prompt: str | None = None
    text: str | _Texts | None = None
    input_ids: _Lists | None = None
    model: str | None = None
    max_tokens: int | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: Stop | None = None
    sampling_params: SglangParams | None = None
    return_logprob: bool | None = None
    logprob_start_len: Annotated[int, schema_hint(minimum=-1)] | None = None
    top_logprobs_num: Annotated[int, schema_hint(minimum=0)] | None = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    schema_extra: ClassVar[Schema] = one_given("prompt", "text", "input_ids")
    example: ClassVar[Example] = {"prompt": "Once upon a time", "max_tokens": 32}


class SglangEnd(msgspec.Struct):
    """Why a reply ended."""

    type: str
    length: int | UnsetType = UNSET
    matched: str | UnsetType = UNSET


# A log-probability (null for the prompt's first), the token's id, and its text where asked for.
SglangToken = tuple[float | None, int, str | None]


class SglangMeta(msgspec.Struct):
    """About a reply, as SGLang tells it; log-probabilities where `return_logprob` asks for them."""

    id: str
    finish_reason: SglangEnd | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    input_token_logprobs: list[SglangToken] | UnsetType = UNSET
    output_token_logprobs: list[SglangToken] | UnsetType = UNSET
    input_top_logprobs: list[list[SglangToken] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[SglangToken] | None] | UnsetType = UNSET


class Generated(msgspec.Struct, kw_only=True):
    """What a prompt was continued with: `response`, or the other fields, which are SGLang's."""

    response: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    output_ids: list[int] | UnsetType = UNSET
    meta_info: SglangMeta | UnsetType = UNSET
    index: int | UnsetType = UNSET


async def generate(call: Call[GenerateBody]) -> Reply[Generated | list[Generated], Generated]:
    """Continue a prompt, or several; to a list of prompts the answer is a list."""
    body = call.body
    requests = await call.translate(lambda: to_requests(body, call))
    if body.prompt is not None:
        return await reply(call, requests, _ResponseRenderer(), stream=body.stream)
    given = body.text if body.input_ids is None else body.input_ids
    is_batch = isinstance(given, list) and not isinstance(given[0], int)
    renderer = _SglangRenderer(call.id, body, is_batch=is_batch)
    return await reply(call, requests, renderer, stream=body.stream)


def to_requests(body: GenerateBody, call: Call[GenerateBody]) -> list[GenerationRequest]:
    """Translate a body, to one request for each prompt.

    Raises:
        RequestError: There is not one prompt or list of them, or a value is out of range.
    """
    given = [each for each in (body.prompt, body.text, body.input_ids) if each is not None]
    if len(given) != 1:
        raise RequestError(
            "there is not one prompt.", param="prompt", expected="prompt, text or input_ids"
        )
    scores = _wanted_scores(body)
    if body.prompt is None or body.sampling_params:
        sglang = body.sampling_params or SglangParams()
        wanted = sglang.max_new_tokens
        params = sampling_params(
            sglang,
            max_tokens=_SGLANG_TOKENS if wanted is None else wanted,
            min_tokens=sglang.min_new_tokens,
            seed=sglang.sampling_seed,
            **scores,
        )
    else:
        wanted = body.max_new_tokens if body.max_tokens is None else body.max_tokens
        params = sampling_params(
            body,
            max_tokens=_DEFAULT_TOKENS if wanted is None else wanted,
            temperature=body.temperature or 0.0,
        )
    prompts = to_prompts(
        cast("Prompts", given[0]), param="text" if body.input_ids is None else "input_ids"
    )
    check_num_replies(len(prompts))
    scheduling = call.scheduling()
    return [GenerationRequest(prompt=each, params=params, **scheduling) for each in prompts]


def _wanted_scores(body: GenerateBody) -> dict[str, object]:
    """Sampling parameters for the log-probabilities that SGLang's clients ask for.

    Raises:
        RequestError: A value is out of range, or the answer has no place for them.
    """
    if not body.return_logprob:
        return {}
    if body.prompt is not None:
        raise RequestError(
            "the answer to a prompt has no log-probabilities.",
            param="return_logprob",
            hint="send text instead of prompt, or ask /v1/completions for logprobs",
        )
    num_top, start = body.top_logprobs_num or 0, _start_of(body)
    if start < -1:
        raise RequestError(
            "logprob_start_len is out of range.",
            param="logprob_start_len",
            found=str(start)[:20],
            expected="at least -1",
        )
    return {"logprobs": num_top, "prompt_logprobs": None if start < 0 else num_top}


def _start_of(body: GenerateBody) -> int:
    """The first token of the prompt whose log-probability is asked for; -1 where none is."""
    return -1 if body.logprob_start_len is None else body.logprob_start_len


class _ResponseRenderer(Renderer[Generated | list[Generated], Generated]):
    """Renders ``{"response": text}``, or that of each piece."""

    def event(self, event: Event) -> Iterable[Generated]:
        """A piece of the text."""
        if isinstance(event, TextDelta) and event.text:
            yield Generated(response=event.text)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> Generated:  # noqa: ARG002
        """All of it."""
        return Generated(response=completions[0].text)


class _SglangRenderer(Renderer[Generated | list[Generated], Generated]):
    """Says what happens as SGLang does: each event has all of the text so far.

    Args:
        name: The request's.
        body: Says which log-probabilities are asked for.
        is_batch: Whether there was a list of prompts; events then say which one they are about.
    """

    def __init__(self, name: str, body: GenerateBody, *, is_batch: bool) -> None:
        self._name = name
        self._body = body
        self._is_batch = is_batch
        self._gathered: dict[int, Fold] = {}

    def event(self, event: Event) -> Iterable[Generated]:
        """The text so far; at its end the whole, with why it ended."""
        gathered = self._gathered.setdefault(event.index, Fold())
        gathered.push(event)
        is_over = isinstance(event, Finished)
        if is_over or (isinstance(event, TextDelta) and event.text):
            (completion,) = gathered.completions()
            found = self._generated(completion, is_over=is_over)
            if self._is_batch:
                found.index = event.index
            yield found

    def whole(
        self,
        completions: Sequence[Completion],
        usage: Usage,  # noqa: ARG002
    ) -> Generated | list[Generated]:
        """All of it."""
        found = [self._generated(each) for each in completions]
        return found if self._is_batch else found[0]

    def _generated(self, completion: Completion, *, is_over: bool = True) -> Generated:
        reason = completion.finish_reason
        usage = completion.usage
        end = SglangEnd(reason) if is_over else None
        if reason == "length":
            end = SglangEnd(reason, length=usage.completion_tokens)
        elif reason == "stop" and completion.stop is not None:
            end = SglangEnd(reason, matched=completion.stop)
        meta = SglangMeta(
            id=f"{self._name}-{completion.index}" if self._is_batch else self._name,
            finish_reason=end,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=len(completion.token_ids),
            cached_tokens=usage.cached_tokens,
        )
        if self._body.return_logprob:
            self._add_scores(meta, completion)
        return Generated(
            text=completion.text, output_ids=list(completion.token_ids), meta_info=meta
        )

    def _add_scores(self, meta: SglangMeta, completion: Completion) -> None:
        start = _start_of(self._body)
        asked = (completion.prompt_logprobs or ())[start:] if start >= 0 else ()
        written = completion.logprobs or ()
        meta.input_token_logprobs = [self._token(each) for each in asked]
        meta.output_token_logprobs = [self._token(each) for each in written]
        if self._body.top_logprobs_num:
            meta.input_top_logprobs = [self._top(each) for each in asked]
            meta.output_top_logprobs = [self._top(each) for each in written]
        if asked:  # SGLang scores what follows the first one, whatever stands before it
            meta.input_token_logprobs[0] = (None, *meta.input_token_logprobs[0][1:])
            if meta.input_top_logprobs:
                meta.input_top_logprobs[0] = None

    def _token(self, token: TokenText) -> SglangToken:
        logprob = None if token.logprob is None else finite(token.logprob)
        return logprob, token.token_id, token.token if self._body.return_text_in_logprobs else None

    def _top(self, token: TokenText) -> list[SglangToken]:
        return [self._token(each) for each in token.top[: self._body.top_logprobs_num]]
