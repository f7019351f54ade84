"""``POST /infill``: what stands between two texts, as llama.cpp's server spells it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
from starlette.responses import Response

from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Usage
from blazr.server.params import sampling_params, scheduling
from blazr.server.run import Renderer, Run, whole_answer
from blazr.server.service import Call
from blazr.server.sse import DATA, EventStream
from blazr.text.events import Event, Finished, TextDelta


class Extra(msgspec.Struct):
    """Another file, to know of."""

    text: str
    filename: str = ""


class Body(msgspec.Struct, kw_only=True):
    """The request; ``prompt`` is more of the prefix."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Extra] | None = None
    prompt: str = ""
    n_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    stream: bool | None = None


async def infill(call: Call[Body]) -> Response:
    """Fill in the middle."""
    body = call.body
    # -1 is how llama.cpp spells "to the end"
    most = call.service.llm.core.info.max_seq_len if body.n_predict == -1 else body.n_predict
    params = sampling_params(
        body.stop or None,
        max_tokens=most,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=body.seed,
    )
    before = "".join(f"{extra.filename}\n{extra.text}\n" for extra in body.input_extra or ())
    request = GenerationRequest(
        prompt=before + body.input_prefix + body.prompt,
        suffix=body.input_suffix,
        params=params,
        **scheduling(call),
    )
    run = await Run.start(call, [request])
    renderer = _Middle(call.service.name)
    if body.stream:
        return EventStream(run, renderer, replace(DATA, end=b""))
    return await whole_answer(run, renderer)


class _Middle(Renderer):
    def __init__(self, model: str) -> None:
        self._model = model
        self._end = Finished(0, "stop", 0)

    def event(self, event: Event) -> Iterable[object]:
        if isinstance(event, Finished):
            self._end = event
        elif isinstance(event, TextDelta) and event.text:
            yield {"content": event.text, "stop": False}

    def last(self, usage: Usage) -> Iterable[object]:
        yield self._last("", self._end.reason, self._end.stop, usage)

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        (each,) = completions
        return self._last(each.text, each.finish_reason, each.stop, usage)

    def _last(self, text: str, reason: str, stop: str | None, usage: Usage) -> object:
        kind = "limit" if reason == "length" else "eos" if stop is None else "word"
        return {
            "content": text,
            "stop": True,
            "stop_type": kind,
            "stopping_word": stop or "",
            "model": self._model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
        }
