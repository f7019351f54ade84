"""``POST /v1/embeddings``."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Literal

from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.llm.results import Completion, Usage
from blazr.llm.vectors import unit_vectors
from blazr.server.params import TruncatingBody, said, to_prompts
from blazr.server.run import Renderer, Run, whole_answer
from blazr.server.service import Call
from blazr.server.vectors import MAX_INPUTS, vector_requests

_OWN_IDS = "send text: ids are this model's own (LangChain: check_embedding_ctx_length=False)"


class Body(TruncatingBody, kw_only=True):
    """The request."""

    input: str | Annotated[list[str | int | list[int]], said(minItems=1)]
    model: str | None = None
    dimensions: Annotated[int, said(minimum=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None


async def embed(call: Call[Body]) -> Response:
    """Texts as vectors: the mean of a text's hidden states, or the last one."""
    body, service = call.body, call.service
    inputs = to_prompts(body.input, param="input", most=MAX_INPUTS)
    try:
        run = await Run.start(call, vector_requests(call, inputs, body.pooling, body.cut))
    except RequestError as error:
        if any(not isinstance(each, str) for each in inputs):
            error.hint = error.hint or _OWN_IDS
        raise
    return await whole_answer(run, _Vectors(service.name, body))


class _Vectors(Renderer):
    def __init__(self, model: str, body: Body) -> None:
        self._model = model
        self._body = body

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        is_packed = self._body.encoding_format == "base64"
        vectors = unit_vectors(completions, self._body.dimensions)
        return {
            "object": "list",
            "model": self._model,
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    # little-endian float32, as the official client unpacks it
                    "embedding": b64encode(vector.astype("<f4")).decode()
                    if is_packed
                    else vector.tolist(),
                }
                for index, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
        }
