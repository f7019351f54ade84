"""What OpenAI's APIs have in common: sampling fields, usage, log-probabilities, choices.

Unknown fields of requests are ignored: clients send many that mean nothing here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

import blazr
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Tally, Usage
from blazr.server.endpoint import Call, Reply
from blazr.server.kv_peers import KvTransferParams
from blazr.server.kv_transfer import KvTransfer
from blazr.server.params import (
    Bias,
    MostTokens,
    Stop,
    TruncationSide,
    VllmSamplerFields,
    finite,
    unix_time,
)
from blazr.server.response_format import ResponseFormat
from blazr.server.run import Renderer, reply
from blazr.server.schema import schema_hint
from blazr.text.events import Event, TokenText

T = TypeVar("T")
W = TypeVar("W")
E = TypeVar("E", bound=msgspec.Struct)
C = TypeVar("C", bound=msgspec.Struct)
V = TypeVar("V", bound="WholeEnvelope")

Name = Annotated[str, msgspec.Meta(max_length=256)] | None
_Text = Annotated[str, schema_hint(minLength=1)]


class StreamOptions(msgspec.Struct):
    """Whether a stream ends with the usage, and whether every chunk has the usage so far."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(VllmSamplerFields, kw_only=True):
    """The fields of every request to generate."""

    truncate_prompt_tokens: MostTokens | None = None
    truncation_side: TruncationSide | None = None
    model: str | None = None
    adapter: Name = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    stop: Stop | None = None
    logit_bias: dict[int, Bias] | None = None
    n: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    json_schema: dict[str, Any] | str | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[_Text], schema_hint(minItems=1)] | None = None
    guided_grammar: str | None = None
    cache_salt: Name = None
    cache_anchors: (
        Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=1024)] | None
    ) = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    request_id: Name = None
    rid: Name = None
    kv_transfer_params: KvTransferParams | None = None


class CachedTokens(msgspec.Struct):
    """Of the prompt's tokens, those that were not computed again."""

    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    """Of the reply's tokens, those spent on thinking."""

    reasoning_tokens: int


class CompletionDetails(msgspec.Struct):
    """Of the reply's tokens, those spent on thinking, and those that speculation guessed.

    What it guessed wrong is not part of the reply.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageReply(msgspec.Struct):
    """What a request cost, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionDetails


AnyUsage = UsageReply | UnsetType | None


def usage_reply(usage: Usage) -> UsageReply:
    """Usage, in OpenAI's names."""
    return UsageReply(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        prompt_tokens_details=CachedTokens(usage.cached_tokens),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=usage.reasoning_tokens,
            accepted_prediction_tokens=usage.kept_draft_tokens,
            rejected_prediction_tokens=usage.draft_tokens - usage.kept_draft_tokens,
        ),
    )


class EmbeddingUsage(msgspec.Struct):
    """What was read."""

    prompt_tokens: int
    total_tokens: int


class InputDetails(msgspec.Struct):
    """Of the tokens read, those not computed again."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ItemUsage(msgspec.Struct):
    """What a request cost, in tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


def item_usage(usage: Usage) -> ItemUsage:
    """Usage, in the names of OpenAI's newer APIs."""
    return ItemUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=ReasoningTokens(usage.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


class Logprob(msgspec.Struct):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Logprob):
    """A token, its log-probability and the likeliest alternatives."""

    top_logprobs: list[Logprob]


def token_logprobs(tokens: Iterable[TokenText]) -> list[TokenLogprob]:
    """Log-probabilities in the shape of chats and responses."""

    def fields(token: TokenText) -> tuple[str, float, list[int]]:
        return token.token, finite(token.logprob or 0.0), list(token.data)

    return [
        TokenLogprob(*fields(token), [Logprob(*fields(each)) for each in token.top])
        for token in tokens
    ]


class Envelope(msgspec.Struct, kw_only=True):
    """What every reply and chunk begins with."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str = f"blazr-{blazr.__version__}"


class WholeEnvelope(Envelope, kw_only=True):
    """What only whole replies have besides."""

    kv_transfer_params: KvTransferParams | UnsetType = UNSET


async def reply_with_kv_transfer(
    call: Call[SamplingBody],
    requests: Sequence[GenerationRequest],
    renderer: Renderer[V, E],
) -> Reply[V, E]:
    """Answer as `reply`, and move the prompts' KV cache from or to another server where asked."""
    stream, params = call.body.stream, call.body.kv_transfer_params
    if params is None:
        return await reply(call, requests, renderer, stream=stream)
    transfer = KvTransfer(call, params, is_streamed=bool(stream))
    answer = await reply(call, requests, renderer, stream=stream, before=transfer.before)
    if isinstance(answer, WholeEnvelope):
        answer.kv_transfer_params = await transfer.after()
    return answer


class ChoicesRenderer(Renderer[W, E], Generic[W, E, C]):
    """Whole replies W and chunks E made of choices C: who speaks, and what it costs.

    Args:
        call: The request.
        chunk: The type of a chunk.
        n: Replies to each prompt.
        prefix: Of the reply's id.
    """

    reports_abort = True

    def __init__(
        self, call: Call[SamplingBody], chunk: Callable[..., E], *, n: int, prefix: str
    ) -> None:
        asked = call.body.stream_options or StreamOptions()
        self._id = f"{prefix}-{call.id}"
        self._created = unix_time()
        self._model = call.name
        self._chunk = chunk
        self._includes_usage = bool(asked.include_usage)
        self._tally = Tally(n) if asked.include_usage and asked.continuous_usage_stats else None

    @abstractmethod
    def choices(self, event: Event) -> Iterable[C]:
        """The choices for an event, each for a chunk of its own."""

    def fill(self, kind: Callable[..., T], choices: Sequence[object], usage: AnyUsage) -> T:
        """A whole reply, or a chunk of a stream."""
        return kind(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def event(self, event: Event) -> Iterable[E]:
        """The chunks for an event."""
        usage: AnyUsage = None if self._includes_usage else UNSET
        if self._tally is not None:
            self._tally.push(event)
            usage = usage_reply(self._tally.usage)
        for choice in self.choices(event):
            yield self.fill(self._chunk, [choice], usage)

    def last(self, usage: Usage) -> Iterable[E]:
        """The chunk with the usage, if wanted."""
        if self._includes_usage:
            yield self.fill(self._chunk, [], usage_reply(usage))


def distinct_tops(token: TokenText) -> Sequence[TokenText]:
    """The alternatives of a token, with the token itself when it is not among them."""
    if any(each.token_id == token.token_id for each in token.top):
        return token.top
    return (*token.top, token)
