"""``POST /generate``: a prompt in, its continuation out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Usage
from blazr.server.run import Run, whole_answer
from blazr.server.service import Call

_DEFAULT_TOKENS = 50


class Body(msgspec.Struct, kw_only=True):
    """The request. Left as it is, it asks for the likeliest 50 tokens."""

    prompt: str
    max_tokens: int | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


async def generate(call: Call[Body]) -> Response:
    """Continue a prompt."""
    request = GenerationRequest(
        prompt=call.body.prompt,
        params=_params(call.body),
        cache_salt=call.tenant,
        timeout_s=call.service.config.request_timeout_s,
    )
    return await whole_answer(await Run.start(call, [request]), _Response())


def _params(body: Body) -> SamplingParams:
    wanted = body.max_new_tokens if body.max_tokens is None else body.max_tokens
    defaults = SamplingParams()
    return SamplingParams(
        max_tokens=_DEFAULT_TOKENS if wanted is None else wanted,
        temperature=0.0 if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=defaults.top_k if body.top_k is None else body.top_k,
        seed=body.seed,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
    )


class _Response:
    """Renders ``{"response": text}``; there is nothing to stream."""

    def event(self, event: object) -> tuple[()]:  # noqa: ARG002
        return ()

    def last(self, usage: Usage) -> tuple[()]:  # noqa: ARG002
        return ()

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        return {"response": completions[0].text}
