"""``POST /v1/embeddings``."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec

from blazr.llm.results import Usage
from blazr.server.endpoint import Call
from blazr.server.openai.shared import EmbeddingUsage, Name
from blazr.server.params import Prompts, TruncatingBody, prompt_truncation, to_prompts
from blazr.server.schema import Example, schema_hint
from blazr.server.vectors import MAX_INPUTS, embed_inputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class VectorFields(TruncatingBody, kw_only=True):
    """How vectors are made and written."""

    model: str | None = None
    adapter: Name = None
    dimensions: Annotated[int, schema_hint(minimum=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None
    prompt_name: str | None = None


class EmbeddingBody(VectorFields, kw_only=True):
    """The request."""

    input: Prompts
    example: ClassVar[Example] = {"input": "Once upon a time"}


class EmbeddingRow(msgspec.Struct, kw_only=True):
    """A vector: numbers, or their little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, kw_only=True):
    """A vector for each input."""

    object: Literal["list"] = "list"
    model: str
    data: list[EmbeddingRow]
    usage: EmbeddingUsage


async def embed(call: Call[EmbeddingBody]) -> EmbeddingList:
    """Texts as vectors: by an embedding model, or as a language model's hidden states."""
    body = call.body
    vectors, usage = await vectors_of(call)
    numbers: list[list[float] | str]
    if body.encoding_format == "base64":
        numbers = [b64encode(vector.astype("<f4")).decode() for vector in vectors]
    else:
        numbers = vectors.tolist()
    return EmbeddingList(
        model=call.name,
        data=[EmbeddingRow(index=index, embedding=each) for index, each in enumerate(numbers)],
        usage=EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens),
    )


async def vectors_of(call: Call[EmbeddingBody]) -> tuple[NDArray[np.float32], Usage]:
    """One vector for each input, (B, C), and what they cost."""
    body = call.body
    inputs = await call.translate(lambda: to_prompts(body.input, param="input", most=MAX_INPUTS))
    return await embed_inputs(
        call,
        inputs,
        pooling=body.pooling,
        truncation=prompt_truncation(body),
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
