"""``POST /infill``: what stands between two texts, as llama.cpp's server spells it."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from blazr.llm.generation import GenerationRequest
from blazr.server.native.pieces import FRAMING, PieceRenderer, SamplingBody, to_params
from blazr.server.params import scheduling
from blazr.server.run import Run, whole_answer
from blazr.server.service import Call
from blazr.server.sse import EventStream


class Extra(msgspec.Struct):
    """Another file, to know of."""

    text: str
    filename: str = ""


class Body(SamplingBody, kw_only=True):
    """The request; ``prompt`` is more of the prefix."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Extra] | None = None
    prompt: str = ""


async def infill(call: Call[Body]) -> Response:
    """Fill in the middle."""
    body, params = call.body, await to_params(call)
    before = "".join(f"{extra.filename}\n{extra.text}\n" for extra in body.input_extra or ())
    request = GenerationRequest(
        prompt=before + body.input_prefix + body.prompt,
        suffix=body.input_suffix,
        params=params,
        **scheduling(call),
    )
    renderer = PieceRenderer(call, params)
    run = await Run.start(call, [request])
    if body.stream:
        return EventStream(run, renderer, FRAMING)
    return await whole_answer(run, renderer)
