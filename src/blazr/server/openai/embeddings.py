"""``POST /v1/embeddings``."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, ClassVar, Literal

import msgspec

from blazr.server.endpoint import Call
from blazr.server.openai.shared import EmbeddingUsage
from blazr.server.params import Prompts, TruncatingBody, prompt_truncation, to_prompts
from blazr.server.schema import Example, schema_hint
from blazr.server.vectors import MAX_INPUTS, embed_inputs


class EmbeddingBody(TruncatingBody, kw_only=True):
    """The request."""

    input: Prompts
    model: str | None = None
    dimensions: Annotated[int, schema_hint(minimum=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None
    prompt_name: str | None = None
    example: ClassVar[Example] = {"input": "Once upon a time"}


class EmbeddingRow(msgspec.Struct, kw_only=True):
    """A vector; in base64 it is float32, little end first."""

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
    inputs = await call.translate(lambda: to_prompts(body.input, param="input", most=MAX_INPUTS))
    vectors, usage = await embed_inputs(
        call,
        inputs,
        pooling=body.pooling,
        truncation=prompt_truncation(body),
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    rows = []
    for index, vector in enumerate(vectors):
        # little-endian float32, as the official client unpacks it
        packed = b64encode(vector.astype("<f4")).decode()
        is_packed = body.encoding_format == "base64"
        rows.append(EmbeddingRow(index=index, embedding=packed if is_packed else vector.tolist()))
    return EmbeddingList(
        model=call.name,
        data=rows,
        usage=EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens),
    )
