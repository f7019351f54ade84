"""What the dialects' translations to a request have in common: samplers, prompts, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from secrets import randbits
from typing import Annotated, Literal, Protocol, cast

import msgspec

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import (
    MAX_BAD_WORDS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    SAMPLERS,
    SamplingParams,
)
from blazr.llm.generation import Prompt, Truncation
from blazr.server.response_format import one_grammar
from blazr.server.schema import schema_hint

MAX_REPLIES = 256
MAX_PROMPTS = 128
MAX_VARIABLES = 256  # for a chat template
MAX_VARIABLE_NAME = 256
MAX_BIAS = 100
LAST_N = 64  # tokens that penalties look back: llama.cpp's and Ollama's default


_Stop = Annotated[str, schema_hint(minLength=1, maxLength=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[_Stop], schema_hint(maxItems=MAX_STOP_STRINGS)]
Stop = _Stop | Stops
Texts = Annotated[list[_Stop], schema_hint(maxItems=MAX_BAD_WORDS)]
MostTokens = Annotated[int, schema_hint(anyOf=[{"const": -1}, {"minimum": 1}])]  # of a prompt
EmptyList = Annotated[list[str], schema_hint(maxItems=0)]  # where others have images
TokenId = Annotated[int, schema_hint(minimum=0)]
TokenIds = Annotated[list[TokenId], schema_hint(minItems=1)]
# One prompt or many, as text or token ids; a list of integers is one prompt.
Prompts = str | Annotated[list[str | TokenId | TokenIds], schema_hint(minItems=1)]
MediaSeed = Annotated[int, msgspec.Meta(ge=0, le=2**62)]  # of an image or a sound
Bias = Annotated[float, schema_hint(minimum=-MAX_BIAS, maximum=MAX_BIAS)]
_Scalar = str | int | float | bool | None
_TAKEN = ("messages", "tools", "add_generation_prompt")  # what a chat template is given anyway
_VariableName = Annotated[
    str, msgspec.Meta(max_length=MAX_VARIABLE_NAME), schema_hint(**{"not": {"enum": _TAKEN}})
]
TemplateVariables = Annotated[dict[_VariableName, _Scalar], msgspec.Meta(max_length=MAX_VARIABLES)]


# Fields that bodies have under the names of SamplingParams; the others differ in form.
_SAME_NAMES = {each.name for each in fields(SamplingParams)} - {
    *("grammar", "logprobs", "logits_processors", "samplers"),
}


def sampling_params(body: msgspec.Struct, **more: object) -> SamplingParams:
    """Sampling parameters from what a body gave; what it left out or null takes the defaults.

    Args:
        body: The request, or the part of it that says how to sample.
        more: Values that go before those of the body's fields.

    Raises:
        RequestError: A value is out of range, or asks for what there is not.
    """
    values = {name: getattr(body, name, None) for name in _SAME_NAMES}
    if values["repetition_penalty"] is None:
        values["repetition_penalty"] = getattr(body, "repeat_penalty", None)
    if values["typical_p"] is None:
        values["typical_p"] = getattr(body, "typ_p", None)
    values["include_stop"] = getattr(body, "include_stop_str_in_output", None)
    values["grammar"] = one_grammar(body)
    values |= sampler_order(getattr(body, "samplers", None))
    return SamplingParams.of(**(values | more))


_NEUTRAL: Mapping[str, Mapping[str, object]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
}
# Samplers that come before these whatever the order, and what switches them off; the last one is
# llama.cpp's alone, and does nothing unless a field asks for it, which is refused.
_TYPICAL = {"typical_p": 1.0}
_FIXED: Mapping[str, Mapping[str, object]] = {
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "typ_p": _TYPICAL,
    "typical_p": _TYPICAL,
    "xtc": {"xtc_probability": 0.0},
    "adaptive_p": {},
}
_LETTERS = {
    "e": "penalties",
    "k": "top_k",
    "p": "top_p",
    "m": "min_p",
    "t": "temperature",
    "d": "dry",
    "s": "top_n_sigma",
    "y": "typ_p",
    "x": "xtc",
}
_Sampler = Annotated[str, schema_hint(enum=[*SAMPLERS, *_LETTERS, *_FIXED])]
Samplers = list[_Sampler] | Annotated[str, schema_hint(pattern=f"^[{''.join(_LETTERS)}]*$")]


def sampler_order(given: list[str] | str | None) -> dict[str, object]:
    """Sampling parameters for samplers as llama.cpp has them: only those named, in their order.

    Args:
        given: Their names, or their letters in one word; None is the usual order of all.

    Raises:
        RequestError: There is no such sampler, or it comes twice.
    """
    if given is None:
        return {}
    is_word = isinstance(given, str)
    names = [_LETTERS.get(each, each) for each in given] if is_word else given
    named = [name for name in names if name not in _FIXED]
    wrong = [name for name in named if name not in SAMPLERS]
    if wrong or len(set(named)) < len(named):
        raise RequestError(
            "samplers are not understood.",
            param="samplers",
            found=", ".join(wrong or named)[:100],
            expected="some of " + ", ".join(SAMPLERS) + ", each once",
        )
    missing = [name for name in SAMPLERS if name not in named]
    values: dict[str, object] = {"samplers": (*named, *missing)}
    for name in missing:
        values |= _NEUTRAL[name]
    wanted = [_FIXED[name] for name in names if name in _FIXED]
    for off in _FIXED.values():
        if off not in wanted:  # names of one sampler have equal values
            values |= off
    return values


TruncationSide = Literal["left", "right"]


class TruncatingBody(msgspec.Struct, kw_only=True):
    """A request that says what becomes of a prompt that is too long, as vLLM spells it."""

    truncate_prompt_tokens: MostTokens | None = None
    truncation_side: TruncationSide | None = None


class _Truncating(Protocol):
    truncate_prompt_tokens: int | None
    truncation_side: TruncationSide | None


def prompt_truncation(body: _Truncating) -> Truncation | None:
    """What a body says of a prompt that is too long; -1 keeps what fits.

    Raises:
        RequestError: Nothing would be kept.
    """
    return Truncation.of_tokens(body.truncate_prompt_tokens, body.truncation_side)


class SamplerFields(msgspec.Struct, kw_only=True):
    """The samplers that OpenAI's, llama.cpp's, SGLang's and Ollama's APIs call alike."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class OllamaSamplerFields(SamplerFields, kw_only=True):
    """The samplers that llama.cpp's and Ollama's APIs call alike."""

    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    typical_p: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    seed: int | None = None


class LlamaCppSamplerFields(OllamaSamplerFields, kw_only=True):
    """The samplers as llama.cpp calls them, which OpenAI's endpoints take too."""

    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Texts | None = None
    samplers: Samplers | None = None
    ignore_eos: bool | None = None


class VllmSamplerFields(LlamaCppSamplerFields, kw_only=True):
    """What vLLM's API has besides, which OpenAI's endpoints and llama.cpp's take."""

    repetition_penalty: float | None = None
    bad_words: Texts | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    speculate: bool | None = None


def check_num_replies(num_prompts: int, n: int = 1, *, param: str = "n") -> None:
    """Refuse more replies than one request may ask for.

    Raises:
        RequestError: Prompts times ``n`` is too many.
    """
    if num_prompts * n > MAX_REPLIES:
        raise RequestError(
            "the request asks for too much at once.",
            param=param,
            found=f"{num_prompts} prompts times {n}" if n > 1 else f"{num_prompts} prompts",
            expected=f"at most {MAX_REPLIES} in all",
        )


def to_prompts(given: Prompts, *, param: str = "prompt", most: int = MAX_PROMPTS) -> list[Prompt]:
    """One prompt or many, as text or token ids; a list of integers is one prompt.

    Raises:
        RequestError: Integers are mixed with others, or there are none or too many.
    """
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if kinds == {int}:
        return [cast("list[int]", given)]  # of millions of ids no copy is made
    if not kinds or int in kinds or len(given) > most:
        raise RequestError(
            f"{param} has the wrong shape.",
            param=param,
            found=f"a list of {len(given)}",
            expected=f"a string, a list of token ids, or a list of these, at most {most}",
        )
    return [each for each in given if not isinstance(each, int)]


class InputTokens(msgspec.Struct, kw_only=True):
    """How many tokens there are."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


def seed_or_random(seed: int | None) -> int:
    """The seed that a body gave for an image or a sound, or one of 31 random bits."""
    return randbits(31) if seed is None else seed


def unix_time() -> int:
    """Seconds since 1970."""
    return int(datetime.now(UTC).timestamp())


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold; OpenAI's floor stands for minus infinity."""
    return max(logprob, -9999.0)
