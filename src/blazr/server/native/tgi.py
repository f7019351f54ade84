"""``POST /generate`` and ``/generate_stream`` of text-generation-inference.

Source: GitHub huggingface/text-generation-inference, ``router/src/lib.rs`` (GenerateParameters,
GenerateResponse, StreamResponse), ``router/src/server.rs`` (compat_generate).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from blazr.core.errors import ContextLengthError, RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Truncation
from blazr.llm.results import Completion, Usage
from blazr.server.endpoint import Call, Reply
from blazr.server.errors import HttpError
from blazr.server.native import generate
from blazr.server.native.generate import GenerateBody, Generated
from blazr.server.params import Stop, finite, sampling_params, seed_or_random
from blazr.server.response_format import ResponseFormat, grammar_of
from blazr.server.run import Renderer, reply
from blazr.server.schema import Example, OneOf, Schema, one_given, schema_hint
from blazr.text.events import Event, Finished, PromptDone, TextDelta, TokenText
from blazr.text.tokenizer import Tokenizer

_Positive = Annotated[int, schema_hint(minimum=1)]
_Never = Annotated[bool, schema_hint(const=False)]
_EndReason = Literal["length", "eos_token", "stop_sequence"]


class TgiParameters(msgspec.Struct, kw_only=True):
    """How to sample: the likeliest tokens, unless ``do_sample`` or a sampler asks for others."""

    adapter_id: str | None = None
    best_of: Annotated[int, schema_hint(const=1)] | None = None
    decoder_input_details: bool | None = None
    details: bool | None = None
    do_sample: bool | None = None
    frequency_penalty: float | None = None
    grammar: ResponseFormat | None = None
    max_new_tokens: _Positive | None = None
    repetition_penalty: float | None = None
    return_full_text: bool | None = None
    seed: int | None = None
    stop: Stop | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_n_tokens: int | None = None
    top_p: float | None = None
    truncate: _Positive | None = None
    typical_p: float | None = None
    watermark: _Never | None = None


class TgiBody(msgspec.Struct, kw_only=True):
    """A prompt, how to go on, and whether the answer is streamed."""

    inputs: str
    parameters: TgiParameters | None = None
    model: str | None = None
    stream: bool | None = None
    example: ClassVar[Example] = {
        "inputs": "Once upon a time",
        "parameters": {"max_new_tokens": 32},
    }


class GenerateEitherBody(GenerateBody, kw_only=True):
    """The request, or that of text-generation-inference: ``inputs`` and ``parameters``."""

    inputs: str | None = None
    parameters: TgiParameters | None = None
    schema_extra: ClassVar[Schema] = one_given("prompt", "text", "input_ids", "inputs")


class TgiError(msgspec.Struct):
    """An error, as text-generation-inference writes it."""

    error: str
    error_type: str


class TgiPromptToken(msgspec.Struct):
    """A token of the prompt; the first has no log-probability."""

    id: int
    text: str
    logprob: float | None


class TgiToken(TgiPromptToken):
    """A token, and what it added to the text: nothing until a character is complete."""

    special: bool


class TgiStreamDetails(msgspec.Struct):
    """How a reply ended. There is a seed where tokens were drawn."""

    finish_reason: _EndReason
    generated_tokens: int
    seed: int | None
    input_length: int


class TgiDetails(msgspec.Struct):
    """How a reply ended, and its tokens. There is a seed where tokens were drawn."""

    finish_reason: _EndReason
    generated_tokens: int
    seed: int | None
    prefill: list[TgiPromptToken]
    tokens: list[TgiToken]
    top_tokens: list[list[TgiToken]] | UnsetType = UNSET


class TgiReply(msgspec.Struct):
    """What a prompt was continued with, stop string included."""

    generated_text: str
    details: TgiDetails | UnsetType = UNSET


class TgiChunk(msgspec.Struct, kw_only=True):
    """One token more; the last one comes with the whole text."""

    index: int
    token: TgiToken
    top_tokens: list[TgiToken] | UnsetType = UNSET
    generated_text: str | None = None
    details: TgiStreamDetails | None = None


def tgi_error(error: HttpError) -> TgiError:
    """The error object of text-generation-inference, whose clients know errors by their types."""
    kinds = {408: "generation", 429: "overloaded"}  # 408 is a reply that takes too long
    kind = "generation" if error.status >= 500 else kinds.get(error.status, "validation")
    return TgiError(error.text, kind)


async def generate_compatibly(call: Call[TgiBody]) -> Reply[list[TgiReply], TgiChunk]:
    """Continue a prompt; the answer is a list of one, as at ``POST /``."""
    return await _answer(call, call.body)


async def generate_stream(call: Call[TgiBody]) -> Reply[list[TgiReply], TgiChunk]:
    """Continue a prompt, and stream each token."""
    return await _answer(call, msgspec.structs.replace(call.body, stream=True))


_EitherReply = Reply[OneOf[Generated, list[Generated], TgiReply], OneOf[Generated, TgiChunk]]


async def generate_either(call: Call[GenerateEitherBody]) -> _EitherReply:
    """Continue a prompt; several, where SGLang's clients ask."""
    body = call.body
    if body.inputs is None:
        if body.parameters is not None:
            raise RequestError(
                "parameters say how inputs are continued.",
                param="parameters",
                expected="inputs beside them",
            )
        return cast("_EitherReply", await generate.generate(call))
    if any(each is not None for each in (body.prompt, body.text, body.input_ids)):
        raise RequestError(
            "there is not one prompt.", param="inputs", expected="inputs, or another of them"
        )
    asked = TgiBody(
        inputs=body.inputs,
        parameters=body.parameters,
        model=body.model,
        stream=body.stream,
    )
    answer = await _answer(call, asked)
    return cast("_EitherReply", answer[0] if isinstance(answer, list) else answer)


async def _answer(call: Call[Any], body: TgiBody) -> Reply[list[TgiReply], TgiChunk]:
    wanted = body.parameters or TgiParameters()
    params = await call.translate(lambda: _to_params(wanted, is_streamed=bool(body.stream)))
    scheduling = call.scheduling()
    if wanted.adapter_id:
        scheduling["adapter"] = wanted.adapter_id
    request = GenerationRequest(
        prompt=body.inputs,
        params=params,
        truncation=None if wanted.truncate is None else Truncation(most=wanted.truncate),
        **scheduling,
    )
    renderer = _Renderer(body.inputs, wanted, params, call.llm.tokenizer)
    try:
        return await reply(call, [request], renderer, stream=body.stream)
    except ContextLengthError as error:
        error.hint = "send truncate, and so many of its last tokens are read"
        raise


def _to_params(wanted: TgiParameters, *, is_streamed: bool) -> SamplingParams:
    """Translate the parameters.

    Raises:
        RequestError: A value is out of range, or asks for what there is not.
    """
    _refuse_what_is_not(wanted, is_streamed=is_streamed)
    samplers = (wanted.temperature, wanted.top_k, wanted.top_p, wanted.typical_p)
    is_drawn = wanted.do_sample or any(each is not None for each in samplers)
    tells_tokens = bool(wanted.details or is_streamed)
    return sampling_params(
        wanted,
        temperature=wanted.temperature if is_drawn else 0.0,
        seed=seed_or_random(wanted.seed) if is_drawn else wanted.seed,
        max_tokens=wanted.max_new_tokens,
        include_stop=True,
        logprobs=(wanted.top_n_tokens or 0) if tells_tokens else None,
        prompt_logprobs=0 if wanted.decoder_input_details else None,
        grammar=grammar_of(wanted.grammar, param="grammar"),
    )


def _refuse_what_is_not(wanted: TgiParameters, *, is_streamed: bool) -> None:
    if wanted.best_of not in {None, 1}:
        raise RequestError(
            "this endpoint has no best_of.",
            param="best_of",
            found=str(wanted.best_of)[:20],
            hint="send best_of to /v1/completions, which has it",
        )
    if wanted.watermark:
        raise RequestError("there are no watermarks.", param="watermark", hint="leave it out")
    for name in ("max_new_tokens", "truncate"):
        value = getattr(wanted, name)
        if value is not None and value < 1:
            raise RequestError(
                f"{name} is out of range.", param=name, found=str(value)[:20], expected="at least 1"
            )
    for name in ("decoder_input_details", "top_n_tokens"):
        if getattr(wanted, name) and not (wanted.details or is_streamed):
            raise RequestError(f"{name} are details.", param=name, expected='"details": true')
    if wanted.decoder_input_details and is_streamed:
        raise RequestError(
            "decoder_input_details are not part of a stream.",
            param="decoder_input_details",
            hint="leave out stream",
        )


class _Renderer(Renderer[list[TgiReply], TgiChunk]):
    """Says what happens token by token.

    The last one comes with the end. That is the token that ends the reply, or one that comes at
    once with its end: a token waits only as long as there are more events.

    Args:
        prompt: The text that is continued.
        wanted: The parameters of the request.
        params: What they came to.
        tokenizer: Knows special tokens.
    """

    def __init__(
        self, prompt: str, wanted: TgiParameters, params: SamplingParams, tokenizer: Tokenizer
    ) -> None:
        self._before = prompt if wanted.return_full_text else ""
        self._wanted = wanted
        self._seed = None if params.is_greedy else params.seed
        self._is_special = tokenizer.is_special
        self._text = ""
        self._late = ""  # text of earlier tokens that was held back
        self._num_prompt_tokens = 0
        self._num_chunks = 0
        self._waiting: TgiChunk | None = None
        self._chunks: list[TgiChunk] = []

    def event(self, event: Event) -> Iterable[TgiChunk]:
        """The chunks that are complete."""
        if isinstance(event, PromptDone):
            self._num_prompt_tokens = event.num_prompt_tokens
        elif isinstance(event, TextDelta):
            self._text += event.text
            for token, text in _texts_of(event, self._is_special):
                yield from self.pending()
                self._waiting = self._chunk(token, text)
            if not event.logprobs:
                self._late += event.text
        elif isinstance(event, Finished):
            if event.end_token is not None:
                yield from self.pending()
                self._waiting = self._chunk(event.end_token, "")
            if self._waiting is None:
                return
            self._waiting.token.text += self._late
            self._waiting.generated_text = self._before + self._text
            if self._wanted.details:
                self._waiting.details = TgiStreamDetails(
                    _reason(event.reason, event.stop),
                    self._num_chunks,
                    self._seed,
                    self._num_prompt_tokens,
                )
            yield from self.pending()

    def pending(self) -> Iterable[TgiChunk]:
        """The token that waits, if one does."""
        if self._waiting is not None:
            yield self._waiting
            self._waiting = None

    def gather(self, event: Event) -> None:
        """Take note of the tokens."""
        if self._wanted.details:
            self._chunks += self.event(event)

    def failure(self, error: HttpError) -> Iterable[msgspec.Struct]:
        """What to send when a stream fails."""
        return (tgi_error(error),)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> list[TgiReply]:  # noqa: ARG002
        """All in one."""
        (completion,) = completions
        answer = TgiReply(self._before + completion.text)
        if self._wanted.details:
            tops = [each.top_tokens for each in self._chunks if each.top_tokens is not UNSET]
            answer.details = TgiDetails(
                _reason(completion.finish_reason, completion.stop),
                len(self._chunks),
                self._seed,
                [
                    TgiPromptToken(each.token_id, each.token, _logprob(each))
                    for each in completion.prompt_logprobs or ()
                ],
                [each.token for each in self._chunks],
                tops or UNSET,
            )
        return [answer]

    def _chunk(self, token: TokenText, text: str) -> TgiChunk:
        self._num_chunks += 1
        return TgiChunk(
            index=self._num_chunks,
            token=self._token(token, text),
            top_tokens=[self._token(each, each.token) for each in token.top]
            if self._wanted.top_n_tokens
            else UNSET,
        )

    def _token(self, token: TokenText, text: str) -> TgiToken:
        is_special = self._is_special(token.token_id)
        return TgiToken(token.token_id, text, _logprob(token), is_special)


def _texts_of(event: TextDelta, is_special: Any) -> list[tuple[TokenText, str]]:
    """Tokens, and of the text that came with them what each has added.

    Where characters are of several tokens, or text was held back, the last one has it all.
    """
    texts = ["" if is_special(each.token_id) else each.token for each in event.logprobs]
    if "".join(texts) != event.text:
        texts = ["" for _ in texts]
        texts[-1:] = [event.text]
    return list(zip(event.logprobs, texts, strict=False))


def _reason(reason: str, stop: str | None) -> _EndReason:
    if reason == "length":
        return "length"
    return "eos_token" if stop is None else "stop_sequence"


def _logprob(token: TokenText) -> float | None:
    return None if token.logprob is None else finite(token.logprob)
