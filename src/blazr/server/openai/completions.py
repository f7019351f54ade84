"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Prompt
from blazr.llm.results import Completion, Usage
from blazr.server.openai.schema import (
    SamplingBody,
    check_num_replies,
    distinct_tops,
    envelope,
    finite,
    scheduling,
    to_params,
    usage_object,
)
from blazr.server.run import Run, whole_answer
from blazr.server.service import Call, Service
from blazr.server.sse import EventStream
from blazr.text.events import Event, Finished, PromptDone, TextDelta, TokenText

MAX_PROMPTS = 128


class Body(SamplingBody, kw_only=True):
    """The request."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


async def complete(call: Call[Body]) -> Response:
    """Continue one prompt or many."""
    body, service = call.body, call.service
    service.check_model(body.model)
    params = _params(body)
    prompts = _prompts(body.prompt)
    check_num_replies(len(prompts), params.n)
    requests = [
        GenerationRequest(
            prompt=prompt,
            params=params,
            add_special_tokens=body.add_special_tokens is not False,
            **scheduling(call),
        )
        for prompt in prompts
    ]
    run = await Run.start(call, requests)
    renderer = CompletionRenderer(service, body, prompts, n=params.n)
    if body.stream:
        return EventStream(run, renderer)
    return await whole_answer(run, renderer)


class CompletionRenderer:
    """Says what happens in the words of /v1/completions.

    Args:
        service: Whose model it is.
        body: What was asked.
        prompts: The prompts, for echoing them.
        n: Replies to each.
    """

    def __init__(self, service: Service, body: Body, prompts: Sequence[Prompt], *, n: int) -> None:
        self._envelope = envelope(service, prefix="cmpl", kind="text_completion")
        self._tokenizer = service.llm.tokenizer
        self._body = body
        self._prompts = prompts
        self._n = n
        self._offsets: dict[int, int] = {}

    def event(self, event: Event) -> Iterable[object]:
        """The chunks for an event."""
        if isinstance(event, PromptDone):
            if self._body.echo:
                text = self._echo(event.index)
                yield self._chunk(event.index, text, self._logprobs(event.index, event.logprobs))
        elif isinstance(event, TextDelta):
            if event.text or event.logprobs:
                logprobs = self._logprobs(event.index, event.logprobs)
                yield self._chunk(event.index, event.text, logprobs)
        else:
            yield self._chunk(event.index, "", None, event)

    def last(self, usage: Usage) -> Iterable[object]:
        """The chunk with the usage, if wanted."""
        if self._body.includes_usage:
            yield {**self._envelope, "choices": [], "usage": usage_object(usage)}

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        """The whole reply."""
        choices = []
        for each in completions:
            echo = self._echo(each.index) if self._body.echo else ""
            tokens = (each.prompt_logprobs or ()) if self._body.echo else ()
            choices.append(
                {
                    "index": each.index,
                    "text": echo + each.text,
                    "logprobs": self._logprobs(each.index, tokens + (each.logprobs or ())),
                    "finish_reason": each.finish_reason,
                    "stop_reason": each.stop,
                }
            )
        return {**self._envelope, "choices": choices, "usage": usage_object(usage)}

    def _echo(self, index: int) -> str:
        prompt = self._prompts[index // self._n]
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special=False)

    def _chunk(
        self, index: int, text: str, logprobs: object, finished: Finished | None = None
    ) -> object:
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finished.reason if finished else None,
            "stop_reason": finished.stop if finished else None,
        }
        chunk: dict[str, object] = {**self._envelope, "choices": [choice]}
        if self._body.includes_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, index: int, tokens: Sequence[TokenText] | None) -> object:
        """The four parallel lists; None when they were not asked for."""
        if self._body.logprobs is None:
            return None
        offset = self._offsets.get(index, 0)
        offsets = []
        for token in tokens or ():
            offsets.append(offset)
            offset += len(token.token)
        self._offsets[index] = offset
        return {
            "tokens": [token.token for token in tokens or ()],
            "token_logprobs": [_value(token) for token in tokens or ()],
            "top_logprobs": [_tops(token) for token in tokens or ()],
            "text_offset": offsets,
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
    if body.suffix:
        raise RequestError("suffix is not supported.", param="suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError(
            "best_of is supported only where it equals n.",
            param="best_of",
            found=str(body.best_of)[:20],
            expected=str(body.n or 1)[:20],
        )
    more: dict[str, Any] = {"logprobs": body.logprobs}
    if body.echo and body.logprobs is not None:
        more["prompt_logprobs"] = body.logprobs
        if body.max_tokens == 1:
            # This is how prompts are scored. Who scores expects an entry for each prompt token
            # and one for the token after it, whichever it is; an end token would leave none.
            more |= {"ignore_eos": True}
    return to_params(body, **more)


def _prompts(given: str | list[str | int | list[int]]) -> list[Prompt]:
    if isinstance(given, str):
        return [given]
    kinds = {type(each) for each in given}
    if kinds == {int}:
        return [[each for each in given if isinstance(each, int)]]
    if len(kinds) != 1 or len(given) > MAX_PROMPTS:
        raise RequestError(
            "prompt has the wrong shape.",
            param="prompt",
            found=f"a list of {len(given)}",
            expected="a string, a list of token ids, or a list of one kind of these, "
            f"at most {MAX_PROMPTS}",
        )
    return [each for each in given if not isinstance(each, int)]
