"""``POST /v1/score`` and ``/v1/rerank``: how well texts fit each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from starlette.responses import Response

from blazr.core.errors import RequestError
from blazr.llm.results import Completion, Usage
from blazr.llm.vectors import distinct, pairs_of, score_pairs, unit_vectors
from blazr.server.openai.labels import Ask, Ballot
from blazr.server.params import TruncatingBody, said, unix_time
from blazr.server.run import Renderer, Run, whole_answer
from blazr.server.service import Call
from blazr.server.vectors import MAX_INPUTS, vector_requests
from blazr.text.messages import Message

_INSTRUCTION = "Given a query, retrieve passages that answer it."
_JUDGE = (
    "Judge whether the document meets the requirements of the query and the instruction. "
    'Answer only "yes" or "no".'
)

_Texts = Annotated[list[str], said(minItems=1)]
Method = Literal["embedding", "labels"]
Show = Callable[[list[float], Usage], object]


class Document(msgspec.Struct):
    """A document as an object."""

    text: str


class ScoreBody(TruncatingBody, kw_only=True):
    """Texts in pairs: one with one, one with many, or many with as many."""

    text_1: str | _Texts
    text_2: str | _Texts
    model: str | None = None
    method: Method | None = None
    instruction: str | None = None


class RerankBody(TruncatingBody, kw_only=True):
    """A query and documents to put in order."""

    query: str
    documents: Annotated[list[str | Document], said(minItems=1)]
    model: str | None = None
    top_n: Annotated[int, said(minimum=1)] | None = None
    return_documents: bool | None = None
    method: Method | None = None
    instruction: str | None = None


async def score(call: Call[ScoreBody]) -> Response:
    """How well pairs of texts fit: cosine of their vectors, or the probability of a yes."""
    body = call.body
    pairs = pairs_of(body.text_1, body.text_2)

    def show(scores: list[float], usage: Usage) -> object:
        rows = [{"object": "score", "index": i, "score": each} for i, each in enumerate(scores)]
        return {
            "id": f"score-{call.id}",
            "object": "list",
            "created": unix_time(),
            "model": call.service.name,
            "data": rows,
            "usage": _usage(usage),
        }

    return await _compare(call, pairs, body.method or "embedding", show)


async def rerank(call: Call[RerankBody]) -> Response:
    """Documents in order of relevance: the probability of a yes, or cosine of their vectors."""
    body = call.body
    texts = [each if isinstance(each, str) else each.text for each in body.documents]

    def show(scores: list[float], usage: Usage) -> object:
        order = sorted(range(len(texts)), key=lambda index: -scores[index])
        results: list[dict[str, object]] = [
            {"index": index, "relevance_score": scores[index]} for index in order[: body.top_n]
        ]
        if body.return_documents is not False:
            for each, index in zip(results, order, strict=False):
                each["document"] = {"text": texts[index]}
        return {
            "id": f"rerank-{call.id}",
            "model": call.service.name,
            "results": results,
            "usage": _usage(usage),
        }

    if not texts or (body.top_n is not None and body.top_n < 1):
        raise RequestError("there is nothing to put in order.", param="documents")
    pairs = [(body.query, text) for text in texts]
    return await _compare(call, pairs, body.method or "labels", show)


async def _compare(
    call: Call[ScoreBody] | Call[RerankBody],
    pairs: Sequence[tuple[str, str]],
    method: Method,
    show: Show,
) -> Response:
    body, truncation = call.body, call.body.cut
    if method == "labels" and truncation is not None:
        raise RequestError(
            "a question that is cut off cannot be answered.",
            param="truncate_prompt_tokens",
            expected='only with "method": "embedding"',
        )
    if method == "labels":
        wanted = body.instruction or _INSTRUCTION
        asks = [
            Ask(
                messages=(
                    Message(role="system", content=_JUDGE),
                    Message(
                        role="user",
                        content=f"<Instruct>: {wanted}\n<Query>: {query}\n<Document>: {text}",
                    ),
                ),
                labels=("yes", "no"),
            )
            for query, text in pairs
        ]
        ballot = Ballot(call, asks)
        run = await Run.start(call, await ballot.requests())
        yeses = _Shown(lambda each: [p[0] for p in ballot.probabilities(each)], show)
        return await whole_answer(run, yeses)
    texts = distinct(pairs)
    if len(texts) > MAX_INPUTS:
        raise RequestError("there are too many texts.", expected=f"at most {MAX_INPUTS}")

    def cosines(completions: Sequence[Completion]) -> list[float]:
        return [each.score for each in score_pairs(pairs, unit_vectors(completions))]

    run = await Run.start(call, vector_requests(call, texts, None, truncation))
    return await whole_answer(run, _Shown(cosines, show))


class _Shown(Renderer):
    def __init__(self, scores: Callable[[Sequence[Completion]], list[float]], show: Show) -> None:
        self._scores = scores
        self._show = show

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        return self._show(self._scores(completions), usage)


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
