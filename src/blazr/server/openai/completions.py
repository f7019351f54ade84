"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import override

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import MAX_CHOICES
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Usage
from blazr.server.endpoint import Call, Reply
from blazr.server.openai.shared import (
    AnyUsage,
    ChoicesRenderer,
    SamplingBody,
    WholeEnvelope,
    distinct_tops,
    reply_with_kv_transfer,
    usage_reply,
)
from blazr.server.params import (
    Prompts,
    check_num_replies,
    finite,
    prompt_truncation,
    sampling_params,
    to_prompts,
)
from blazr.server.schema import Example, schema_hint
from blazr.text.events import Event, Finished, PromptDone, TextDelta, TokenText

EndReason = Literal["stop", "length", "abort"]


class CompletionBody(SamplingBody, kw_only=True):
    """The request."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: int | None = None
    best_of: Annotated[int, schema_hint(minimum=0, maximum=MAX_CHOICES)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    example: ClassVar[Example] = {"max_tokens": 32, "prompt": "Once upon a time"}


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities of a text's tokens, as four lists of the same length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct):
    """A token of the prompt, or what might have stood there; ranks begin with 1."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One text, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: EndReason | None = None
    stop_reason: str | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class TextCompletion(WholeEnvelope, kw_only=True):
    """The texts that continue the prompts, or a piece of one."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: AnyUsage = UNSET


async def complete(call: Call[CompletionBody]) -> Reply[TextCompletion, TextCompletion]:
    """Continue one prompt or many."""
    requests = await call.translate(lambda: to_requests(call.body, call))
    renderer = CompletionRenderer(call, requests)
    return await reply_with_kv_transfer(call, requests, renderer)


def to_requests(body: CompletionBody, call: Call[CompletionBody]) -> list[GenerationRequest]:
    """Translate a body, to one request for each prompt.

    Raises:
        RequestError: A value is out of range, or fields contradict each other.
    """
    values: dict[str, Any] = {"logprobs": body.logprobs, "prompt_logprobs": body.prompt_logprobs}
    n = 1 if body.n is None else body.n
    best_of = body.best_of or n  # OpenAI's schema has 0 for none
    is_best_of = best_of != n and 1 <= n <= MAX_CHOICES
    if is_best_of:
        if not n <= best_of <= MAX_CHOICES:
            raise RequestError(
                "best_of is out of range.",
                param="best_of",
                found=str(best_of)[:20],
                expected=f"a number from n ({n}) to {MAX_CHOICES}",
            )
        if body.stream:
            raise RequestError(
                "best_of generates more than it gives back, and so cannot stream.", param="best_of"
            )
        values |= {"n": best_of, "logprobs": body.logprobs or 0}
    if body.echo and body.logprobs is not None:
        values["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
        if body.max_tokens == 1:
            # Clients that score prompts ask so. They expect an entry for each token of the prompt
            # and one for the token after it, whichever it is; an end token would leave none.
            values["ignore_eos"] = True
    params = sampling_params(body, **values)
    prompts = to_prompts(body.prompt)
    check_num_replies(len(prompts), params.n, param="best_of" if is_best_of else "n")
    return [
        GenerationRequest(
            prompt=prompt,
            params=params,
            suffix=body.suffix or None,
            add_special_tokens=body.add_special_tokens is not False,
            truncation=prompt_truncation(body),
            **call.scheduling(),
        )
        for prompt in prompts
    ]


class CompletionRenderer(ChoicesRenderer[TextCompletion, TextCompletion, CompletionChoice]):
    """Says what happens in the words of /v1/completions.

    Args:
        call: What was asked.
        requests: What that came to, for echoing the prompts.
    """

    def __init__(self, call: Call[CompletionBody], requests: Sequence[GenerationRequest]) -> None:
        super().__init__(call, TextCompletion, n=requests[0].params.n, prefix="cmpl")
        self._tokenizer = call.llm.tokenizer
        self._body = call.body
        self._prompts = [each.prompt or "" for each in requests]
        self._n = requests[0].params.n
        self._offsets: dict[int, int] = {}

    @override
    def choices(self, event: Event) -> Iterable[CompletionChoice]:
        if isinstance(event, PromptDone):
            wants_scores = self._body.prompt_logprobs is not None
            if self._body.echo or wants_scores:
                text = self._echo(event.index)
                tokens = (event.logprobs or ()) if self._body.echo else ()
                yield CompletionChoice(
                    index=event.index,
                    text=text,
                    logprobs=self._logprobs(event.index, tokens, (), text),
                    prompt_logprobs=self._prompt_logprobs(event.logprobs),
                )
        elif isinstance(event, TextDelta):
            if event.text or event.logprobs:
                logprobs = self._logprobs(event.index, (), event.logprobs)
                yield CompletionChoice(index=event.index, text=event.text, logprobs=logprobs)
        elif isinstance(event, Finished):
            yield CompletionChoice(
                index=event.index,
                text="",
                finish_reason=cast("EndReason", event.reason),
                stop_reason=event.stop,
            )

    def whole(self, completions: Sequence[Completion], usage: Usage) -> TextCompletion:
        """The whole reply; with ``best_of``, the likeliest texts of each prompt."""
        choices = []
        for each in self._best(completions):
            echo = self._echo(each.index)
            tokens = (each.prompt_logprobs or ()) if self._body.echo else ()
            choices.append(
                CompletionChoice(
                    index=each.index,
                    text=echo + each.text,
                    logprobs=self._logprobs(each.index, tokens, each.logprobs or (), echo),
                    finish_reason=cast("EndReason", each.finish_reason),
                    stop_reason=each.stop,
                    prompt_logprobs=self._prompt_logprobs(each.prompt_logprobs),
                )
            )
        return self.fill(TextCompletion, choices, usage_reply(usage))

    def _best(self, completions: Sequence[Completion]) -> Iterable[Completion]:
        """The ``n`` likeliest of each ``best_of``, by log-probability per token."""
        wanted = self._body.n or 1
        if wanted == self._n:
            yield from completions
            return

        def mean_logprob(completion: Completion) -> float:
            values = [token.logprob or 0.0 for token in completion.logprobs or ()]
            return sum(values) / len(values) if values else 0.0

        for first in range(0, len(completions), self._n):
            ranked = sorted(completions[first : first + self._n], key=mean_logprob, reverse=True)
            for place, each in enumerate(ranked[:wanted]):
                yield replace(each, index=first // self._n * wanted + place)

    def _echo(self, index: int) -> str:
        """The text of a prompt, where it is to be echoed."""
        if not self._body.echo:
            return ""
        prompt = self._prompts[index // self._n]
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special=False)

    def _prompt_logprobs(
        self, tokens: Sequence[TokenText] | None
    ) -> list[dict[str, PromptLogprob] | None] | UnsetType:
        """Each prompt token and its alternatives by id, with their ranks where they are known."""
        if self._body.prompt_logprobs is None:
            return UNSET
        rows: list[dict[str, PromptLogprob] | None] = []
        for token in tokens or ():
            ranks = {each.token_id: place for place, each in enumerate(token.top, 1)}
            row = {
                str(each.token_id): PromptLogprob(
                    finite(each.logprob or 0.0), ranks.get(each.token_id), each.token
                )
                for each in distinct_tops(token)
            }
            rows.append(None if token.logprob is None else row)
        return rows

    def _logprobs(
        self,
        index: int,
        prompt: Sequence[TokenText],
        reply: Sequence[TokenText],
        echo: str = "",
    ) -> CompletionLogprobs | None:
        """The four parallel lists; None when they were not asked for.

        Args:
            index: Which reply.
            prompt: Tokens of the prompt that is echoed.
            reply: Tokens generated.
            echo: The text of the prompt.
        """
        if self._body.logprobs is None:
            return None
        hides = self._body.skip_special_tokens is not False
        offset = self._offsets.get(index, 0)
        offsets = [offset + place for place in _places(prompt, echo)]
        # where a stream will show a token is not known yet, so its own characters are counted
        lengths = [
            0
            if hides and self._tokenizer.is_special(token.token_id)
            else _num_characters(token.data)
            for token in reply
        ]
        *more, self._offsets[index] = accumulate(lengths, initial=offset + len(echo))
        tokens = (*prompt, *reply)
        alternatives: list[dict[str, float] | None] = []
        for token in tokens:
            by_text: dict[str, float] = {}
            for each in distinct_tops(token):  # of those that look the same the likelier one counts
                value = finite(each.logprob or 0.0)
                by_text[each.token] = max(value, by_text.get(each.token, value))
            alternatives.append(None if token.logprob is None else by_text)
        return CompletionLogprobs(
            tokens=[token.token for token in tokens],
            token_logprobs=[
                None if token.logprob is None else finite(token.logprob) for token in tokens
            ],
            top_logprobs=alternatives,
            text_offset=offsets + more,
        )


def _places(tokens: Sequence[TokenText], text: str) -> Iterator[int]:
    """Where tokens begin in a text, which may lack special ones and the space of the first."""
    data = text.encode()
    place = num_characters = 0
    for token in tokens:
        yield num_characters
        for shown in (token.data, token.data.removeprefix(b" ")):
            if shown and data.startswith(shown, place):
                num_characters += _num_characters(shown)
                place += len(shown)
                break


def _num_characters(data: bytes) -> int:
    """Characters that begin in bytes of UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in data)
