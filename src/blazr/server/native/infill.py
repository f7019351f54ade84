"""``POST /infill``: what stands between two texts, as llama.cpp's server spells it."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from blazr.llm.generation import GenerationRequest
from blazr.server.endpoint import Call, Reply
from blazr.server.native.llama_cpp import (
    LlamaCppBody,
    PieceEvent,
    PieceRenderer,
    TextPiece,
    to_params,
)
from blazr.server.run import reply
from blazr.server.schema import Example


class ExtraFile(msgspec.Struct):
    """Another file, to know of."""

    text: str
    filename: str = ""


class InfillBody(LlamaCppBody, kw_only=True):
    """The request; ``prompt`` is more of the prefix."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] | None = None
    prompt: str = ""
    example: ClassVar[Example] = {
        "max_tokens": 32,
        "input_prefix": "def add(a, b):\n    return ",
        "input_suffix": "\n",
    }


async def infill(call: Call[InfillBody]) -> Reply[TextPiece, PieceEvent]:
    """Fill in the middle."""
    body = call.body
    params = await to_params(call)
    before = "".join(f"{extra.filename}\n{extra.text}\n" for extra in body.input_extra or ())
    request = GenerationRequest(
        prompt=before + body.input_prefix + body.prompt,
        suffix=body.input_suffix,
        params=params,
        **call.scheduling(),
    )
    return await reply(call, [request], PieceRenderer(call, params), stream=body.stream)
