"""``/api/embed`` and the older ``/api/embeddings``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from starlette.responses import Response

from blazr.llm.generation import Truncation
from blazr.llm.results import Completion, Usage
from blazr.llm.vectors import unit_vectors
from blazr.server.ollama.models import KeepAlive, keep, with_tag
from blazr.server.params import said
from blazr.server.run import Renderer, Run, whole_answer
from blazr.server.service import Call
from blazr.server.vectors import vector_requests


class EmbedBody(msgspec.Struct, kw_only=True):
    """Texts; of those that are too long the end is left out, unless told not to."""

    input: str | Annotated[list[str], said(minItems=1)]
    model: str | None = None
    dimensions: Annotated[int, said(minimum=1)] | None = None
    truncate: bool | None = None
    keep_alive: KeepAlive | None = None


class OldBody(msgspec.Struct, kw_only=True):
    """One text."""

    prompt: str
    model: str | None = None
    keep_alive: KeepAlive | None = None


async def embed(call: Call[EmbedBody]) -> Response:
    """Texts as vectors."""
    given = call.body.input
    keep(call, call.body.keep_alive)
    texts = [given] if isinstance(given, str) else given
    truncation = None if call.body.truncate is False else Truncation(drops="right")
    run = await Run.start(call, vector_requests(call, texts, None, truncation))
    return await whole_answer(
        run, _Vectors(call.body.model or with_tag(call.service.name), call.body.dimensions)
    )


async def embed_one(call: Call[OldBody]) -> Response:
    """A text as a vector."""
    keep(call, call.body.keep_alive)
    run = await Run.start(call, vector_requests(call, [call.body.prompt], None))
    return await whole_answer(run, _Vector())


class _Vectors(Renderer):
    def __init__(self, model: str, dimensions: int | None) -> None:
        self._model = model
        self._dimensions = dimensions

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        vectors = unit_vectors(completions, self._dimensions).tolist()
        count = usage.prompt_tokens
        return {"model": self._model, "embeddings": vectors, "prompt_eval_count": count}


class _Vector(Renderer):
    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:  # noqa: ARG002
        return {"embedding": unit_vectors(completions)[0].tolist()}
