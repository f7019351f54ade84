"""Replies in the words of llama.cpp's server, and the sampling fields of its requests.

Source: ``tools/server/README.md`` of llama.cpp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Annotated, Any

import msgspec

from blazr.engine.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from blazr.llm.bundle import ModelInfo
from blazr.llm.results import Completion, Usage
from blazr.server.params import (
    LAST_N,
    Samplers,
    Stops,
    finite,
    one_grammar,
    sampler_order,
    sampling_params,
)
from blazr.server.run import Renderer
from blazr.server.service import Call
from blazr.server.sse import DATA
from blazr.text.events import Event, Finished, PromptDone, TextDelta, TokenText

FRAMING = replace(DATA, end=b"")

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Bias = float | bool
_MOST = msgspec.Meta(max_length=MAX_LOGIT_BIAS)

# What llama.cpp calls fields that SamplingParams has under other names.
_NAMES = {
    "n_predict": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_last_n": "repeat_last_n",
    "ignore_eos": "ignore_eos",
}


class SamplingBody(msgspec.Struct, kw_only=True):
    """How a reply is sampled. A bias is for a token's id, or for every token of a text."""

    model: str | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    samplers: Samplers | None = None
    seed: int | None = None
    stop: Stops | None = None
    ignore_eos: bool | None = None
    logit_bias: (
        Annotated[list[tuple[int | _Name, _Bias]], _MOST] | Annotated[dict[_Name, _Bias], _MOST]
    ) = []
    n_probs: int | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    return_tokens: bool | None = None
    stream: bool | None = None


async def to_params(call: Call[SamplingBody]) -> SamplingParams:
    """The sampling parameters of a request with a `SamplingBody`.

    Raises:
        RequestError: A value is out of range.
    """
    body = call.body
    values: dict[str, object] = {ours: getattr(body, name) for name, ours in _NAMES.items()}
    if body.max_tokens is not None and body.n_predict in {None, -1}:
        values["max_tokens"] = body.max_tokens
    elif body.n_predict == -2:  # until the context is full
        values["max_tokens"] = -1
    if body.repeat_last_n is None:
        values["repeat_last_n"] = LAST_N
    values |= sampler_order(body.samplers)
    return sampling_params(
        body.stop or None,
        **values,
        seed=None if body.seed == -1 else body.seed,
        logprobs=body.n_probs or None,
        grammar=one_grammar({"json_schema": body.json_schema, "grammar": body.grammar}),
        logit_bias=await asyncio.to_thread(_biases, call) if body.logit_bias else None,
    )


def _biases(call: Call[SamplingBody]) -> dict[int, float]:
    given = call.body.logit_bias
    biases: dict[int, float] = {}
    for name, bias in given.items() if isinstance(given, dict) else given:
        value = -100.0 if bias is False else float(bias)
        if isinstance(name, int):
            biases[name] = value
        elif isinstance(given, dict) and name.isascii() and name.isdigit():
            biases[int(name)] = value
        else:
            biases |= dict.fromkeys(call.service.llm.tokenizer.encode(name), value)
    return biases


def settings(params: SamplingParams, info: ModelInfo) -> dict[str, object]:
    """Sampling parameters in llama.cpp's names, as a model takes them."""
    params = params.with_defaults(info.sampling)
    named = {name: getattr(params, ours) for name, ours in _NAMES.items()}
    named["n_predict"] = -1 if params.max_tokens is None else int(params.max_tokens)
    more = {"seed": params.seed, "stop": list(params.stop), "n_probs": params.logprobs or 0}
    return named | more


class PieceRenderer(Renderer):
    """Says what happens in the words of llama.cpp's server.

    Args:
        call: The request; its body is a `SamplingBody`.
        params: What that came to.
    """

    def __init__(self, call: Call[SamplingBody], params: SamplingParams) -> None:
        self._body = call.body
        self._params = params
        self._model = call.service.name
        self._info = call.service.llm.core.info
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

    def event(self, event: Event) -> Iterable[object]:
        """The pieces for an event."""
        self.gather(event)
        if isinstance(event, TextDelta) and (event.text or event.token_ids):
            if "\n" in event.text:
                self._with_lines.add(event.index)
            yield {
                "index": event.index,
                "content": event.text,
                "tokens": list(event.token_ids),
                "stop": False,
                **self._probabilities(event.logprobs),
            }
        elif isinstance(event, Finished):
            prompt = self._prompts[event.index][0]
            usage = Usage(prompt.num_prompt_tokens, event.num_tokens, prompt.num_cached_tokens)
            has_line = event.index in self._with_lines
            end = self._end(event.index, event.reason, event.stop, usage)
            yield {"content": "", "tokens": [], "has_new_line": has_line, **end}

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        """The whole reply; a list where there were several prompts."""
        wholes = [
            {
                "content": each.text,
                "tokens": list(each.token_ids) if self._body.return_tokens else [],
                "has_new_line": "\n" in each.text,
                **self._end(each.index, each.finish_reason, each.stop, each.usage),
                **self._probabilities(each.logprobs or ()),
            }
            for each in completions
        ]
        return wholes if len(wholes) > 1 else wholes[0]

    def _end(self, index: int, reason: str, stop: str | None, usage: Usage) -> dict[str, object]:
        return {
            "index": index,
            "stop": True,
            "stop_type": "limit" if reason == "length" else "eos" if stop is None else "word",
            "stopping_word": stop or "",
            "truncated": reason == "length" and usage.total_tokens >= self._info.max_seq_len,
            "model": self._model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "generation_settings": settings(self._params, self._info),
            "timings": self._timings(index, usage),
        }

    def _timings(self, index: int, usage: Usage) -> dict[str, float]:
        """How long it took; the time in the queue counts as the prompt's."""
        read_s, ended_s = self._prompts[index][1], self._ended_s[index]
        computed = usage.prompt_tokens - usage.cached_tokens
        return {
            "cache_n": usage.cached_tokens,
            **_pace("prompt", computed, read_s - self._started_s),
            **_pace("predicted", usage.completion_tokens, ended_s - read_s),
        }

    def _probabilities(self, tokens: Sequence[TokenText]) -> Mapping[str, object]:
        if not self._body.n_probs:
            return {}
        rows = [{**_entry(each), "top_logprobs": [*map(_entry, each.top)]} for each in tokens]
        return {"completion_probabilities": rows}


def _entry(token: TokenText) -> dict[str, object]:
    return {
        "id": token.token_id,
        "token": token.token,
        "bytes": list(token.data),
        "logprob": finite(token.logprob or 0.0),
    }


def _pace(name: str, num_tokens: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": num_tokens,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / max(num_tokens, 1),
        f"{name}_per_second": num_tokens / max(seconds, 1e-9),
    }
