"""``POST /generate``: a prompt in, its continuation out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion, Usage
from blazr.server.params import Stop, sampling_params, scheduling
from blazr.server.run import Renderer, Run, whole_answer
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
    stop: Stop | None = None


async def generate(call: Call[Body]) -> Response:
    """Continue a prompt."""
    request = GenerationRequest(
        prompt=call.body.prompt,
        params=_params(call.body),
        **scheduling(call),
    )
    return await whole_answer(await Run.start(call, [request]), _Response())


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


class _Response(Renderer):
    """Renders ``{"response": text}``; there is nothing to stream."""

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        return {"response": completions[0].text}
