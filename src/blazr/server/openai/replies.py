"""What the replies of OpenAI's APIs have in common: usage, log-probabilities, choices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

import blazr
from blazr.llm.results import Tally, Usage
from blazr.server.endpoint import Call
from blazr.server.openai.sampling import SamplingBody, StreamOptions
from blazr.server.params import finite, unix_time
from blazr.server.run import Renderer
from blazr.text.events import Event, TokenText

W = TypeVar("W")
E = TypeVar("E", bound=msgspec.Struct)
C = TypeVar("C", bound=msgspec.Struct)


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


class ChoicesRenderer(Renderer[W, E], Generic[W, E, C]):
    """Whole replies W and chunks E made of choices C: who speaks, and what it costs.

    Args:
        call: The request.
        chunk: The type of a chunk.
        n: Replies to each prompt.
        prefix: Of the reply's id.
    """

    def __init__(
        self, call: Call[SamplingBody], chunk: Callable[..., E], *, n: int, prefix: str
    ) -> None:
        asked = call.body.stream_options or StreamOptions()
        self.id = f"{prefix}-{call.id}"
        self.created = unix_time()
        self.model = call.service.name
        self._chunk = chunk
        self._includes_usage = bool(asked.include_usage)
        self._tally = Tally(n) if asked.include_usage and asked.continuous_usage_stats else None

    @abstractmethod
    def choices(self, event: Event) -> Iterable[C]:
        """The choices for an event, each for a chunk of its own."""

    def chunk(self, choices: list[C], usage: UsageReply | UnsetType | None) -> E:
        """A chunk of a stream."""
        return self._chunk(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=usage
        )

    def event(self, event: Event) -> Iterable[E]:
        """The chunks for an event."""
        usage: UsageReply | UnsetType | None = None if self._includes_usage else UNSET
        if self._tally is not None:
            self._tally.push(event)
            usage = usage_reply(self._tally.usage)
        for choice in self.choices(event):
            yield self.chunk([choice], usage)

    def last(self, usage: Usage) -> Iterable[E]:
        """The chunk with the usage, if wanted."""
        if self._includes_usage:
            yield self.chunk([], usage_reply(usage))


def distinct_tops(token: TokenText) -> Sequence[TokenText]:
    """The alternatives of a token, with the token itself when it is not among them."""
    if any(each.token_id == token.token_id for each in token.top):
        return token.top
    return (*token.top, token)
