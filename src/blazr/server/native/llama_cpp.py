"""What the endpoints of llama.cpp's server have in common: sampling fields, and replies.

Source: ``tools/server/README.md`` of llama.cpp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from blazr.engine.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from blazr.llm.results import Completion, Usage, usage_of
from blazr.server.endpoint import Call
from blazr.server.params import LAST_N, Bias, Stops, VllmSamplerFields, finite, sampling_params
from blazr.server.run import Renderer
from blazr.server.schema import OneOf
from blazr.text.events import Event, Finished, PromptDone, TextDelta, TokenText

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Bias = Bias | bool
_MOST = msgspec.Meta(max_length=MAX_LOGIT_BIAS)


class LlamaCppBody(VllmSamplerFields, kw_only=True):
    """How a reply is sampled. A bias is for a token's id, or for every token of a text."""

    model: str | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    typ_p: float | None = None
    stop: Stops | None = None
    logit_bias: (
        Annotated[list[tuple[int | _Name, _Bias]], _MOST] | Annotated[dict[_Name, _Bias], _MOST]
    ) = []
    n_probs: int | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    return_tokens: bool | None = None
    stream: bool | None = None


class PieceLogprob(msgspec.Struct):
    """A token that might have stood there."""

    id: int
    token: str
    bytes: list[int]
    logprob: float


class PieceProbabilities(PieceLogprob):
    """A token, and the likeliest in its place."""

    top_logprobs: list[PieceLogprob]


class Settings(msgspec.Struct, kw_only=True):
    """How replies are sampled, in llama.cpp's names."""

    n_predict: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    ignore_eos: bool
    seed: int | None
    stop: list[str]
    n_probs: int


class Timings(msgspec.Struct, kw_only=True):
    """How long a prompt and its reply took. Of ``prompt_n``, nothing was in the cache.

    ``draft_n`` tokens were computed on speculation.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class PieceDelta(msgspec.Struct, kw_only=True):
    """More of a text."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False] = False
    completion_probabilities: list[PieceProbabilities] | UnsetType = UNSET


class TextPiece(msgspec.Struct, kw_only=True):
    """A text and how it ended; in a stream the last event, whose text is empty."""

    content: str
    tokens: list[int]
    has_new_line: bool
    index: int
    stop: Literal[True] = True
    stop_type: Literal["limit", "eos", "word"]
    stopping_word: str
    truncated: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    generation_settings: Settings
    timings: Timings
    completion_probabilities: list[PieceProbabilities] | UnsetType = UNSET


PieceEvent = OneOf[PieceDelta, TextPiece]


async def to_params(call: Call[LlamaCppBody]) -> SamplingParams:
    """The sampling parameters of a request.

    Raises:
        RequestError: A value is out of range.
    """
    body = call.body
    max_tokens = body.n_predict
    if body.max_tokens is not None and body.n_predict in {None, -1}:
        max_tokens = body.max_tokens
    elif body.n_predict == -2:  # until the context is full
        max_tokens = -1
    biases = await asyncio.to_thread(_biases, call) if body.logit_bias else None
    return await call.translate(
        lambda: sampling_params(
            body,
            max_tokens=max_tokens,
            repeat_last_n=LAST_N if body.repeat_last_n is None else body.repeat_last_n,
            seed=None if body.seed == -1 else body.seed,
            logprobs=body.n_probs or None,
            logit_bias=biases,
        )
    )


def _biases(call: Call[LlamaCppBody]) -> dict[int, float]:
    given = call.body.logit_bias
    biases: dict[int, float] = {}
    for name, bias in given.items() if isinstance(given, dict) else given:
        value = -100.0 if bias is False else float(bias)
        if isinstance(name, int):
            biases[name] = value
        elif isinstance(given, dict) and name.isascii() and name.isdigit():
            biases[int(name)] = value
        else:
            biases |= dict.fromkeys(call.llm.tokenizer.encode(name), value)
    return biases


def settings_of(params: SamplingParams, defaults: Mapping[str, float]) -> Settings:
    """Sampling parameters in llama.cpp's names, as a model with such defaults takes them."""
    params = params.with_defaults(defaults)
    return Settings(
        n_predict=-1 if params.max_tokens is None else int(params.max_tokens),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repeat_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repeat_last_n=params.repeat_last_n,
        ignore_eos=params.ignore_eos,
        seed=params.seed,
        stop=list(params.stop),
        n_probs=params.logprobs or 0,
    )


class PieceRenderer(Renderer[TextPiece, PieceEvent]):
    """Says what happens in the words of llama.cpp's server.

    Args:
        call: The request.
        params: What its body came to.
    """

    def __init__(self, call: Call[LlamaCppBody], params: SamplingParams) -> None:
        self._body = call.body
        self._params = params
        self._model = call.name
        self._info = call.llm.core.info
        self._started_s = monotonic()
        self._prompts: dict[int, tuple[PromptDone, float]] = {}
        self._ended_s: dict[int, float] = {}
        self._with_lines: set[int] = set()

    def gather(self, event: Event) -> None:
        """Take note of when things happen."""
        if isinstance(event, PromptDone):
            self._prompts[event.index] = event, monotonic()
        elif isinstance(event, Finished):
            self._ended_s[event.index] = monotonic()

    def event(self, event: Event) -> Iterable[PieceEvent]:
        """The pieces for an event."""
        self.gather(event)
        if isinstance(event, TextDelta) and (event.text or event.token_ids):
            if "\n" in event.text:
                self._with_lines.add(event.index)
            yield PieceDelta(
                index=event.index,
                content=event.text,
                tokens=list(event.token_ids),
                completion_probabilities=self._probabilities(event.logprobs),
            )
        elif isinstance(event, Finished):
            prompt = self._prompts[event.index][0]
            usage = usage_of(prompt.num_prompt_tokens, prompt.num_cached_tokens, event)
            piece = self._piece(event.index, event.reason, event.stop, usage)
            piece.has_new_line = event.index in self._with_lines
            yield piece

    def whole(self, completions: Sequence[Completion], usage: Usage) -> TextPiece:  # noqa: ARG002
        """The whole reply to one prompt."""
        return self.pieces(completions)[0]

    def pieces(self, completions: Sequence[Completion]) -> list[TextPiece]:
        """The whole replies to several prompts."""
        pieces = []
        for each in completions:
            piece = self._piece(each.index, each.finish_reason, each.stop, each.usage)
            piece.content = each.text
            piece.tokens = list(each.token_ids) if self._body.return_tokens else []
            piece.has_new_line = "\n" in each.text
            piece.completion_probabilities = self._probabilities(each.logprobs or ())
            pieces.append(piece)
        return pieces

    def _piece(self, index: int, reason: str, stop: str | None, usage: Usage) -> TextPiece:
        """A piece that ends a text, still without the text.

        The time a prompt waited in the queue counts as the prompt's.
        """
        num_read = usage.prompt_tokens - usage.cached_tokens
        read_s = self._prompts[index][1] - self._started_s
        num_generated = usage.completion_tokens
        generated_s = self._ended_s[index] - self._prompts[index][1]
        return TextPiece(
            content="",
            tokens=[],
            has_new_line=False,
            index=index,
            stop_type="limit" if reason == "length" else "eos" if stop is None else "word",
            stopping_word=stop or "",
            truncated=reason == "length" and usage.total_tokens >= self._info.max_seq_len,
            model=self._model,
            tokens_predicted=num_generated,
            tokens_evaluated=usage.prompt_tokens,
            tokens_cached=usage.cached_tokens,
            generation_settings=settings_of(self._params, self._info.sampling),
            timings=Timings(
                cache_n=usage.cached_tokens,
                prompt_n=num_read,
                prompt_ms=read_s * 1e3,
                prompt_per_token_ms=read_s * 1e3 / max(num_read, 1),
                prompt_per_second=num_read / max(read_s, 1e-9),
                predicted_n=num_generated,
                predicted_ms=generated_s * 1e3,
                predicted_per_token_ms=generated_s * 1e3 / max(num_generated, 1),
                predicted_per_second=num_generated / max(generated_s, 1e-9),
                draft_n=usage.draft_tokens,
                draft_n_accepted=usage.kept_draft_tokens,
            ),
        )

    def _probabilities(self, tokens: Sequence[TokenText]) -> list[PieceProbabilities] | UnsetType:
        if not self._body.n_probs:
            return UNSET

        def fields(token: TokenText) -> tuple[int, str, list[int], float]:
            logprob = finite(token.logprob or 0.0)
            return token.token_id, token.token, list(token.data), logprob

        return [
            PieceProbabilities(*fields(token), [PieceLogprob(*fields(each)) for each in token.top])
            for token in tokens
        ]
