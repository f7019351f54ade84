"""``POST /v1/embeddings``."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, ClassVar, Literal

import msgspec

from blazr.core.errors import RequestError
from blazr.llm.vectors import unit_vectors
from blazr.server.endpoint import Call
from blazr.server.openai.shared import EmbeddingUsage
from blazr.server.params import Prompts, TruncatingBody, prompt_truncation, to_prompts
from blazr.server.schema import Example, schema_hint
from blazr.server.vectors import MAX_INPUTS, embed_inputs

_OWN_IDS = "send text: ids are this model's own (LangChain: check_embedding_ctx_length=False)"


class EmbeddingBody(TruncatingBody, kw_only=True):
    """The request."""

    input: Prompts
    model: str | None = None
    dimensions: Annotated[int, schema_hint(minimum=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None
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
    """Texts as vectors: the mean of a text's hidden states, or the last one."""
    body = call.body
    inputs = await call.translate(lambda: to_prompts(body.input, param="input", most=MAX_INPUTS))
    try:
        completions, usage = await embed_inputs(
            call,
            inputs,
            pooling=body.pooling or "mean",
            truncation=prompt_truncation(body),
        )
    except RequestError as error:
        if any(not isinstance(each, str) for each in inputs):
            error.hint = error.hint or _OWN_IDS
        raise
    rows = []
    for index, vector in enumerate(unit_vectors(completions, body.dimensions)):
        # little-endian float32, as the official client unpacks it
        packed = b64encode(vector.astype("<f4")).decode()
        is_packed = body.encoding_format == "base64"
        rows.append(EmbeddingRow(index=index, embedding=packed if is_packed else vector.tolist()))
    return EmbeddingList(
        model=call.service.name,
        data=rows,
        usage=EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens),
    )
