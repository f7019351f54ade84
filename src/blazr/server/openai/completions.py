"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Prompt
from blazr.llm.results import Completion, Usage
from blazr.server.openai.schema import (
    ChoicesRenderer,
    SamplingBody,
    distinct_tops,
    schedule_of,
    to_params,
)
from blazr.server.params import check_num_replies, finite, to_prompts
from blazr.server.run import Run, whole_answer
from blazr.server.service import Call
from blazr.server.sse import EventStream
from blazr.text.events import Event, Finished, PromptDone, TextDelta, TokenText


class Body(SamplingBody, kw_only=True):
    """The request."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: int | None = None


async def complete(call: Call[Body]) -> Response:
    """Continue one prompt or many."""
    body = call.body
    params, prompts = _params(body), to_prompts(body.prompt)
    check_num_replies(len(prompts), params.n)
    requests = [
        GenerationRequest(
            prompt=prompt,
            params=params,
            suffix=body.suffix,
            add_special_tokens=body.add_special_tokens is not False,
            truncation=body.cut,
            **schedule_of(call),
        )
        for prompt in prompts
    ]
    run = await Run.start(call, requests, tells_abort=True)
    renderer = CompletionRenderer(call, prompts, n=params.n)
    if body.stream:
        return EventStream(run, renderer)
    return await whole_answer(run, renderer)


class CompletionRenderer(ChoicesRenderer):
    """Says what happens in the words of /v1/completions.

    Args:
        call: What was asked.
        prompts: The prompts, for echoing them.
        n: Replies to each.
    """

    def __init__(self, call: Call[Body], prompts: Sequence[Prompt], *, n: int) -> None:
        super().__init__(call, n=n, prefix="cmpl", kind="text_completion")
        self._tokenizer = call.service.llm.tokenizer
        self._body = call.body
        self._prompts = prompts
        self._n = n
        self._offsets: dict[int, int] = {}

    def choices(self, event: Event) -> Iterable[object]:
        """See `ChoicesRenderer`."""
        if isinstance(event, PromptDone):
            scores = self._scores(event.logprobs)
            if self._body.echo or scores:
                text = self._echo(event.index) if self._body.echo else ""
                tokens = event.logprobs if self._body.echo else ()
                yield self._choice(
                    event.index, text, self._logprobs(event.index, tokens or (), (), text), **scores
                )
        elif isinstance(event, TextDelta):
            if event.text or event.logprobs:
                logprobs = self._logprobs(event.index, (), event.logprobs)
                yield self._choice(event.index, event.text, logprobs)
        elif isinstance(event, Finished):
            ended = {"finish_reason": event.reason, "stop_reason": event.stop}
            yield self._choice(event.index, "", None, **ended)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        """The whole reply: the best of what was generated to each prompt, if there is more."""
        choices = []
        for each in self._best(completions):
            echo = self._echo(each.index) if self._body.echo else ""
            tokens = (each.prompt_logprobs or ()) if self._body.echo else ()
            choice = {
                "index": each.index,
                "text": echo + each.text,
                "logprobs": self._logprobs(each.index, tokens, each.logprobs or (), echo),
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop,
            }
            choices.append(choice | self._scores(each.prompt_logprobs))
        return self._around(choices, usage)

    def _best(self, completions: Sequence[Completion]) -> Iterable[Completion]:
        """The ``n`` likeliest of each ``best_of``, by log-probability per token."""
        wanted = self._body.n or 1
        if wanted == self._n:
            yield from completions
            return
        for first in range(0, len(completions), self._n):
            ranked = sorted(completions[first : first + self._n], key=_mean_logprob, reverse=True)
            for place, each in enumerate(ranked[:wanted]):
                yield replace(each, index=first // self._n * wanted + place)

    def _echo(self, index: int) -> str:
        prompt = self._prompts[index // self._n]
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special=False)

    def _scores(self, tokens: Sequence[TokenText] | None) -> dict[str, object]:
        if self._body.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": [_by_id(token) for token in tokens or ()]}

    def _choice(self, index: int, text: str, logprobs: object, **more: object) -> object:
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": None,
            "stop_reason": None,
            **more,
        }

    def _logprobs(
        self,
        index: int,
        prompt: Sequence[TokenText],
        reply: Sequence[TokenText],
        echo: str = "",
    ) -> object:
        """The four parallel lists; None when they were not asked for.

        Args:
            index: Which reply.
            prompt: Tokens of the prompt that is echoed.
            reply: Tokens generated.
            echo: The text of the prompt.
        """
        if self._body.logprobs is None:
            return None
        offset = self._offsets.get(index, 0)
        offsets = [offset + place for place in _places(prompt, echo)]
        # what a stream has not shown yet is not known, so that a reply's tokens are counted
        lengths = (self._length(token) for token in reply)
        *more, self._offsets[index] = accumulate(lengths, initial=offset + len(echo))
        tokens = (*prompt, *reply)
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [_value(token) for token in tokens],
            "top_logprobs": [_tops(token) for token in tokens],
            "text_offset": offsets + more,
        }

    def _length(self, token: TokenText) -> int:
        """Characters of the text that begin in a token."""
        hides = self._body.skip_special_tokens is not False
        if hides and self._tokenizer.is_special(token.token_id):
            return 0
        return _num_characters(token.data)


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


def _mean_logprob(completion: Completion) -> float:
    values = [token.logprob or 0.0 for token in completion.logprobs or ()]
    return sum(values) / len(values) if values else 0.0


def _by_id(token: TokenText) -> dict[str, object] | None:
    """A prompt token and its alternatives by id, with their ranks where they are known."""
    if token.logprob is None:
        return None
    rank = {each.token_id: place for place, each in enumerate(token.top, 1)}
    return {
        str(each.token_id): {
            "logprob": finite(each.logprob or 0.0),
            "rank": rank.get(each.token_id),
            "decoded_token": each.token,
        }
        for each in distinct_tops(token)
    }


def _value(token: TokenText) -> float | None:
    return None if token.logprob is None else finite(token.logprob)


def _tops(token: TokenText) -> dict[str, float] | None:
    """Alternatives by text. Of tokens that look the same the likelier one counts."""
    if token.logprob is None:
        return None
    tops: dict[str, float] = {}
    for each in distinct_tops(token):
        value = finite(each.logprob or 0.0)
        tops[each.token] = max(value, tops.get(each.token, value))
    return tops


def _params(body: Body) -> SamplingParams:
    more: dict[str, Any] = {"logprobs": body.logprobs, "prompt_logprobs": body.prompt_logprobs}
    if body.best_of and body.best_of != (body.n or 1):  # OpenAI's schema has 0 for none
        if body.best_of < (body.n or 1) or body.stream:
            raise RequestError(
                "best_of generates more than it gives back, and so cannot stream.",
                param="best_of",
                found=f"{body.best_of}"[:20] + (", streamed" if body.stream else ""),
                expected=f"at least {body.n or 1}"[:40] + ", not streamed",
            )
        more |= {"n": body.best_of, "logprobs": body.logprobs or 0}
    if body.echo and body.logprobs is not None:
        more["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
        if body.max_tokens == 1:
            # This is how prompts are scored. Who scores expects an entry for each prompt token
            # and one for the token after it, whichever it is; an end token would leave none.
            more |= {"ignore_eos": True}
    return to_params(body, **more)
