"""What the requests have in common, and the pieces the replies are made of.

Unknown fields are ignored: clients send many that mean nothing here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import msgspec

import blazr
from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.results import Usage
from blazr.server.service import Call, Service
from blazr.text.events import TokenText

MAX_REPLIES = 256

# Fields that SamplingParams has under the same name.
_SAME_NAMES = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "logit_bias",
    "n",
)


class StreamOptions(msgspec.Struct):
    """What a stream holds besides the text."""

    include_usage: bool | None = None


class SamplingBody(msgspec.Struct, kw_only=True):
    """The fields of every request to generate."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[int, float] | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    cache_salt: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


def to_params(body: SamplingBody, **more: object) -> SamplingParams:
    """The sampling parameters of a request; those left out or null take our defaults.

    Args:
        body: The request.
        more: Values that go before the body's; None is left out.

    Raises:
        RequestError: A value is out of range, or asks for what there is not.
    """
    kind = (body.response_format or {}).get("type", "text")
    if kind != "text":
        raise RequestError(
            "response_format is not supported yet.",
            param="response_format",
            found=repr(kind)[:50],
            expected="'text'",
        )
    values: dict[str, Any] = {name: getattr(body, name) for name in _SAME_NAMES}
    values["stop"] = (body.stop,) if isinstance(body.stop, str) else body.stop
    values["include_stop"] = body.include_stop_str_in_output
    # -1 is how others spell "keep all"
    values["top_k"] = 0 if body.top_k == -1 else body.top_k
    values |= more
    return SamplingParams(**{name: value for name, value in values.items() if value is not None})


class Scheduling(TypedDict):
    """Fields of a `GenerationRequest` that say when it runs and what it shares."""

    cache_salt: str
    priority: int
    timeout_s: float


def scheduling(call: Call[SamplingBody]) -> Scheduling:
    """When a request runs, for how long, and with whom it shares prefixes.

    A client's salt divides its key's prefixes further; it never reaches another key's.
    """
    body, longest_s = call.body, call.service.config.request_timeout_s
    return {
        # a key's name is hexadecimal, so no salt can turn one into another's
        "cache_salt": f"{call.tenant}/{body.cache_salt}" if body.cache_salt else call.tenant,
        "priority": body.priority or 0,
        "timeout_s": longest_s if body.timeout is None else min(body.timeout, longest_s),
    }


def check_num_replies(num_prompts: int, n: int) -> None:
    """Refuse more replies than one request may ask for.

    Raises:
        RequestError: Prompts times ``n`` is too many.
    """
    if num_prompts * n > MAX_REPLIES:
        raise RequestError(
            "the request asks for too many replies.",
            param="n",
            found=f"{num_prompts} prompts times {n}",
            expected=f"at most {MAX_REPLIES} in all",
        )


def envelope(service: Service, *, prefix: str, kind: str) -> dict[str, object]:
    """The fields around every reply and chunk."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(datetime.now(UTC).timestamp()),
        "model": service.name,
        "system_fingerprint": f"blazr-{blazr.__version__}",
    }


def usage_object(usage: Usage) -> Mapping[str, object]:
    """Usage, in OpenAI's names."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold; OpenAI's floor stands for minus infinity."""
    return max(logprob, -9999.0)


def distinct_tops(token: TokenText) -> Sequence[TokenText]:
    """The alternatives of a token, with the token itself when it is not among them."""
    if any(each.token_id == token.token_id for each in token.top):
        return token.top
    return (*token.top, token)
