"""``/api/embed`` and the older ``/api/embeddings``."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from blazr.llm.generation import Truncation
from blazr.server.endpoint import Call
from blazr.server.ollama.catalog import KeepAlive, set_keep_alive, with_tag
from blazr.server.schema import Example, schema_hint
from blazr.server.vectors import embed_inputs


class EmbedBody(msgspec.Struct, kw_only=True):
    """Texts; of those that are too long the end is left out, unless told not to."""

    input: str | Annotated[list[str], schema_hint(minItems=1)]
    model: str | None = None
    dimensions: Annotated[int, schema_hint(minimum=1)] | None = None
    truncate: bool | None = None
    keep_alive: KeepAlive | None = None
    example: ClassVar[Example] = {"input": "Once upon a time"}


class OldEmbedBody(msgspec.Struct, kw_only=True):
    """One text."""

    prompt: str
    model: str | None = None
    keep_alive: KeepAlive | None = None
    example: ClassVar[Example] = {"prompt": "Once upon a time"}


class Vectors(msgspec.Struct):
    """A vector for each text."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int


class Vector(msgspec.Struct):
    """A vector."""

    embedding: list[float]


async def embed(call: Call[EmbedBody]) -> Vectors:
    """Texts as vectors."""
    body = call.body
    set_keep_alive(call, body.keep_alive)
    texts = [body.input] if isinstance(body.input, str) else body.input
    truncation = None if body.truncate is False else Truncation(drops="right")
    vectors, usage = await embed_inputs(
        call, texts, truncation=truncation, dimensions=body.dimensions
    )
    return Vectors(
        model=body.model or with_tag(call.name),
        embeddings=vectors.tolist(),
        prompt_eval_count=usage.prompt_tokens,
    )


async def embed_one(call: Call[OldEmbedBody]) -> Vector:
    """A text as a vector."""
    set_keep_alive(call, call.body.keep_alive)
    vectors, _ = await embed_inputs(call, [call.body.prompt])
    return Vector(vectors[0].tolist())
