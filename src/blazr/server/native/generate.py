"""``POST /generate``: a prompt in, its continuation out; in SGLang's words where it is asked so.

Source: ``docs/basic_usage/sampling_params.md`` of SGLang.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Fold, Usage
from blazr.server.params import Stop, one_grammar, sampling_params, scheduling
from blazr.server.run import Renderer, Run, whole_answer
from blazr.server.service import Call
from blazr.server.sse import EventStream
from blazr.text.events import Event, TextDelta

_DEFAULT_TOKENS = 50
_SGLANG_TOKENS = 128


class SglangParams(msgspec.Struct, kw_only=True):
    """How SGLang's clients say what is sampled."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    sampling_seed: int | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None


class Body(msgspec.Struct, kw_only=True):
    """The request. A prompt alone asks for the likeliest 50 tokens.

    SGLang's clients send ``text`` or ``input_ids`` with ``sampling_params``, and get SGLang's
    answer.
    """

    prompt: str | None = None
    text: str | None = None
    input_ids: list[int] | None = None
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


async def generate(call: Call[Body]) -> Response:
    """Continue a prompt."""
    body = call.body
    given = [each for each in (body.prompt, body.text, body.input_ids) if each is not None]
    if len(given) != 1:
        raise RequestError(
            "there is not one prompt.", param="prompt", expected="prompt, text or input_ids"
        )
    is_sglang = body.prompt is None
    request = GenerationRequest(
        prompt=given[0],
        params=_sglang_params(body) if is_sglang or body.sampling_params else _params(body),
        **scheduling(call),
    )
    run = await Run.start(call, [request])
    renderer = _SglangResponse(call.id) if is_sglang else _Response()
    return EventStream(run, renderer) if body.stream else await whole_answer(run, renderer)


def _params(body: Body) -> SamplingParams:
    wanted = body.max_new_tokens if body.max_tokens is None else body.max_tokens
    return sampling_params(
        body.stop,
        max_tokens=_DEFAULT_TOKENS if wanted is None else wanted,
        temperature=body.temperature or 0.0,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
    )


def _sglang_params(body: Body) -> SamplingParams:
    given = body.sampling_params or SglangParams()
    values = msgspec.structs.asdict(given)
    most, least = values.pop("max_new_tokens"), values.pop("min_new_tokens")
    grammars = {name: values.pop(name) for name in ("json_schema", "regex", "ebnf")}
    seed = values.pop("sampling_seed")
    return sampling_params(
        **values,
        max_tokens=_SGLANG_TOKENS if most is None else most,
        min_tokens=least,
        seed=seed,
        grammar=one_grammar(grammars),
    )


class _Response(Renderer):
    """Renders ``{"response": text}``, or that of each piece."""

    def event(self, event: Event) -> Iterable[object]:
        """A piece of the text."""
        if isinstance(event, TextDelta) and event.text:
            yield {"response": event.text}

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        """All of it."""
        return {"response": completions[0].text}


class _SglangResponse(Renderer):
    """Says what happens as SGLang does: each event has all of the text so far."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._gathered = Fold()

    def event(self, event: Event) -> Iterable[object]:
        """The text so far."""
        self._gathered.push(event)
        if isinstance(event, TextDelta) and event.text:
            (completion,) = self._gathered.completions()
            yield self._object(completion, is_over=False)

    def last(self, usage: Usage) -> Iterable[object]:  # noqa: ARG002
        """The whole, with why it ended."""
        (completion,) = self._gathered.completions()
        yield self._object(completion)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        """All of it."""
        return self._object(completions[0])

    def _object(self, completion: Completion, *, is_over: bool = True) -> object:
        reason, usage = completion.finish_reason, completion.usage
        end: dict[str, object] | None = {"type": reason} if is_over else None
        if reason == "length":
            end = {"type": reason, "length": usage.completion_tokens}
        elif reason == "stop" and completion.stop is not None:
            end = {"type": reason, "matched": completion.stop}
        return {
            "text": completion.text,
            "output_ids": list(completion.token_ids),
            "meta_info": {
                "id": self._name,
                "finish_reason": end,
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": len(completion.token_ids),
                "cached_tokens": usage.cached_tokens,
            },
        }
