"""The endpoints of text-embeddings-inference: ``/embed``, and ``/rerank`` with ``texts``.

Source: GitHub huggingface/text-embeddings-inference, ``docs/openapi.json``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from blazr.core.errors import RequestError
from blazr.llm.generation import Truncation
from blazr.pipelines.encoders.request import unit
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.openai import scoring
from blazr.server.openai.scoring import Document, RerankBody, RerankReply
from blazr.server.params import rename_field
from blazr.server.schema import Example, Schema, any_given, schema_hint
from blazr.server.vectors import embed_inputs

_Texts = Annotated[list[str], schema_hint(minItems=1)]
_Side = Literal["left", "right", "Left", "Right"]


class TeiError(msgspec.Struct):
    """An error, as text-embeddings-inference writes it."""

    error: str
    error_type: str


class InputsBody(msgspec.Struct, kw_only=True):
    """Texts; those that are too long are refused, unless ``truncate`` says otherwise."""

    inputs: str | _Texts
    model: str | None = None
    truncate: bool | None = None
    truncation_direction: _Side | None = None
    prompt_name: str | None = None
    normalize: bool | None = None
    dimensions: Annotated[int, schema_hint(minimum=1)] | None = None
    example: ClassVar[Example] = {"inputs": "Once upon a time"}


class TextsBody(RerankBody, kw_only=True):
    """A query and documents, which text-embeddings-inference calls ``texts``."""

    documents: Annotated[list[str | Document], schema_hint(minItems=1)] = []
    texts: _Texts | None = None
    truncate: bool | None = None
    truncation_direction: _Side | None = None
    raw_scores: Literal[False] | None = None
    return_text: bool | None = None
    schema_extra: ClassVar[Schema] = any_given("documents", "texts", min_length=1)


class Rank(msgspec.Struct):
    """A text's place and score."""

    index: int
    score: float
    text: str | UnsetType = UNSET


def tei_error(error: HttpError) -> TeiError:
    """The error object of text-embeddings-inference."""
    kinds = {429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
    return TeiError(error.text, kinds.get(error.status, "Validation"))


async def embed(call: Call[InputsBody]) -> list[list[float]]:
    """Texts as vectors; of length 1, unless ``normalize`` leaves it to the model."""
    body = call.body
    vectors, _ = await embed_inputs(
        call,
        [body.inputs] if isinstance(body.inputs, str) else body.inputs,
        truncation=Truncation(drops=_side(body)) if body.truncate else None,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    found: list[list[float]] = (vectors if body.normalize is False else unit(vectors)).tolist()
    return found


async def rerank(call: Call[TextsBody]) -> RerankReply | list[Rank]:
    """Documents in order of relevance: by a cross-encoder, the cosine of vectors, or a yes."""
    body = call.body
    if body.texts is None:
        return await scoring.rerank(call)
    changed = msgspec.structs.replace(body, documents=list(body.texts))
    if body.truncate:
        changed.truncate_prompt_tokens, changed.truncation_side = -1, _side(body)
    try:
        reply = await scoring.rerank(replace(call, body=changed))
    except RequestError as error:
        if error.param == "documents":
            rename_field(error, "texts")
        raise
    texts = body.texts
    return [
        Rank(row.index, row.relevance_score, texts[row.index] if body.return_text else UNSET)
        for row in reply.results
    ]


def _side(body: InputsBody | TextsBody) -> Literal["left", "right"]:
    """Where tokens of a text that is too long go."""
    return "left" if (body.truncation_direction or "").lower() == "left" else "right"
