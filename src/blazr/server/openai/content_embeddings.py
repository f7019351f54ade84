"""``POST /embedding`` and ``/embeddings``: texts as vectors, as llama.cpp's server answers.

Source: ``tools/server/README.md`` of llama.cpp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import msgspec

from blazr.core.errors import RequestError
from blazr.pipelines.encoders.request import unit
from blazr.server.endpoint import Call
from blazr.server.openai import embeddings
from blazr.server.openai.embeddings import EmbeddingBody, EmbeddingList, VectorFields
from blazr.server.params import Prompts
from blazr.server.schema import Example, Schema, any_given


class ContentBody(VectorFields, kw_only=True):
    """Texts as ``content``, or as ``input``; their vectors have length 1 (``embd_normalize``)."""

    content: Prompts | None = None
    input: Prompts | None = None
    embd_normalize: Literal[2] | None = None
    schema_extra: ClassVar[Schema] = any_given("content", "input")
    example: ClassVar[Example] = {"content": "Once upon a time"}


class TextVectors(msgspec.Struct):
    """The one vector of a text, in a list, as without pooling there would be more."""

    index: int
    embedding: list[list[float]]


async def embed(call: Call[ContentBody]) -> list[TextVectors]:
    """Texts as vectors, in llama.cpp's form."""
    given = call.body.input if call.body.content is None else call.body.content
    vectors, _ = await embeddings.vectors_of(_with_input(call, given))
    return [TextVectors(index, [row]) for index, row in enumerate(unit(vectors).tolist())]


async def embed_either(call: Call[ContentBody]) -> EmbeddingList | list[TextVectors]:
    """Texts as vectors: of ``content`` in llama.cpp's form, and of ``input`` in OpenAI's."""
    if call.body.content is not None:
        return await embed(call)
    return await embeddings.embed(_with_input(call, call.body.input))


def _with_input(call: Call[ContentBody], given: Prompts | None) -> Call[EmbeddingBody]:
    """The same request in OpenAI's words.

    Raises:
        RequestError: There are no texts.
    """
    if given is None:
        raise RequestError("there is no text.", param="content", expected="content, or input")
    shared = {name: getattr(call.body, name) for name in VectorFields.__struct_fields__}
    return replace(cast("Call[Any]", call), body=EmbeddingBody(input=given, **shared))
