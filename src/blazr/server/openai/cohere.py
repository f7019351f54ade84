"""``POST /v2/embed``: texts as vectors, as Cohere's API answers.

Source: Cohere's API reference, Embed API (v2).
"""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, ClassVar, Literal

import msgspec

from blazr.llm.generation import Truncation
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.schema import Example, schema_hint
from blazr.server.vectors import embed_inputs

# What texts are for, where that is one of the roles that models have prompts for.
_ROLES: dict[str, Literal["query", "document"]] = {
    "search_query": "query",
    "search_document": "document",
}
_SIDES: dict[str, Literal["left", "right"]] = {"START": "left", "END": "right"}


class CohereError(msgspec.Struct):
    """An error, as Cohere writes it."""

    message: str


class CohereEmbedBody(msgspec.Struct, kw_only=True):
    """Texts; of those that are too long the end is left out, unless told otherwise."""

    texts: Annotated[list[str], schema_hint(minItems=1)]
    model: str | None = None
    input_type: (
        Literal["search_query", "search_document", "classification", "clustering"] | None
    ) = None
    embedding_types: list[Literal["float", "base64"]] | None = None
    output_dimension: Annotated[int, schema_hint(minimum=1)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    example: ClassVar[Example] = {"texts": ["Once upon a time"]}


class ApiVersion(msgspec.Struct):
    """Of Cohere's API."""

    version: str = "2"


class BilledUnits(msgspec.Struct):
    """What was read."""

    input_tokens: int


class EmbedMeta(msgspec.Struct):
    """About an answer."""

    billed_units: BilledUnits
    api_version: ApiVersion = msgspec.field(default_factory=ApiVersion)


class TypedVectors(msgspec.Struct, kw_only=True):
    """A vector for each text, by type: numbers, or their little-endian float32 in base64."""

    id: str
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
    embeddings: dict[str, list[list[float] | str]]
    texts: list[str]
    meta: EmbedMeta


def cohere_error(error: HttpError) -> CohereError:
    """Cohere's error object."""
    return CohereError(error.text)


async def embed(call: Call[CohereEmbedBody]) -> TypedVectors:
    """Texts as vectors."""
    body = call.body
    cut = body.truncate or "END"
    vectors, usage = await embed_inputs(
        call,
        body.texts,
        truncation=None if cut == "NONE" else Truncation(drops=_SIDES[cut]),
        dimensions=body.output_dimension,
        role=_ROLES.get(body.input_type or ""),
    )
    found: dict[str, list[list[float] | str]] = {}
    for kind in body.embedding_types or ["float"]:
        if kind == "float":
            found[kind] = vectors.tolist()
        else:
            found[kind] = [b64encode(each.astype("<f4")).decode() for each in vectors]
    return TypedVectors(
        id=f"embed-{call.id}",
        embeddings=found,
        texts=body.texts,
        meta=EmbedMeta(BilledUnits(usage.prompt_tokens)),
    )
