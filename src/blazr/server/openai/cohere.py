"""``POST /v2/embed`` and ``/v1/embed``: texts as vectors, as Cohere's API answers.

Source: Cohere's API reference, Embed API (v2 and v1).
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from blazr.llm.generation import Truncation
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.schema import Example, OneOf, schema_hint
from blazr.server.vectors import embed_inputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# What texts are for, where that is one of the roles that models have prompts for.
_ROLES: dict[str, Literal["query", "document"]] = {
    "search_query": "query",
    "search_document": "document",
}
_SIDES: dict[str, Literal["left", "right"]] = {"START": "left", "END": "right"}
# Not int8 and uint8: they need to know within which bounds a model's numbers lie.
_Kind = Literal["float", "base64", "binary", "ubinary"]


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
    embedding_types: list[_Kind] | None = None
    output_dimension: Annotated[int, schema_hint(minimum=1)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    example: ClassVar[Example] = {"texts": ["Once upon a time"]}


class ApiVersion(msgspec.Struct):
    """Of Cohere's API."""

    version: str


class BilledUnits(msgspec.Struct):
    """What was read."""

    input_tokens: int


class EmbedMeta(msgspec.Struct):
    """About an answer."""

    billed_units: BilledUnits
    api_version: ApiVersion


class PlainVectors(msgspec.Struct, kw_only=True):
    """A vector for each text."""

    id: str
    response_type: Literal["embeddings_floats"] = "embeddings_floats"
    embeddings: list[list[float]]
    texts: list[str]
    meta: EmbedMeta


class TypedVectors(msgspec.Struct, kw_only=True):
    """A vector for each text, by type.

    Numbers, or their little-endian float32 in base64, or bytes with a bit for each number, which
    tells whether it is above 0; those of ``binary`` are less by 128.
    """

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
    vectors, meta = await _embed(call, "2")
    return _typed(call, vectors, meta)


async def embed_old(call: Call[CohereEmbedBody]) -> OneOf[PlainVectors, TypedVectors]:
    """Texts as vectors, as the first version of the API has them; by type where types are named."""
    vectors, meta = await _embed(call, "1")
    if call.body.embedding_types:
        return _typed(call, vectors, meta)
    return PlainVectors(
        id=f"embed-{call.id}", embeddings=vectors.tolist(), texts=call.body.texts, meta=meta
    )


async def _embed(
    call: Call[CohereEmbedBody], version: str
) -> tuple[NDArray[np.float32], EmbedMeta]:
    body = call.body
    cut = body.truncate or "END"
    vectors, usage = await embed_inputs(
        call,
        body.texts,
        truncation=None if cut == "NONE" else Truncation(drops=_SIDES[cut]),
        dimensions=body.output_dimension,
        role=_ROLES.get(body.input_type or ""),
    )
    return vectors, EmbedMeta(BilledUnits(usage.prompt_tokens), ApiVersion(version))


def _typed(
    call: Call[CohereEmbedBody], vectors: NDArray[np.float32], meta: EmbedMeta
) -> TypedVectors:
    kinds = call.body.embedding_types or ["float"]
    return TypedVectors(
        id=f"embed-{call.id}",
        embeddings={kind: _written(vectors, kind) for kind in kinds},
        texts=call.body.texts,
        meta=meta,
    )


def _written(vectors: NDArray[np.float32], kind: _Kind) -> list[list[float] | str]:
    """Vectors of a type, one for each row."""
    if kind == "float":
        rows: list[list[float] | str] = vectors.tolist()
        return rows
    if kind == "base64":
        return [b64encode(each.astype("<f4")).decode() for each in vectors]
    import numpy as np

    packed = np.packbits(vectors > 0, axis=1).astype(int)
    return (packed if kind == "ubinary" else packed - 128).tolist()
