"""``POST /v1/score`` and ``/v1/rerank``: how well texts fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from blazr.core.errors import ContextLengthError, RequestError, too_many
from blazr.llm.generation import Truncation
from blazr.llm.results import Usage
from blazr.llm.vectors import distinct, pairs_of, score_pairs, vector_of
from blazr.pipelines.encoders.request import unit
from blazr.pipelines.kinds import CLASSIFICATION
from blazr.server.endpoint import Call
from blazr.server.foreign_fields import rename_field
from blazr.server.openai.labels import MAX_LABELS, LabelQuestion, label_probabilities
from blazr.server.openai.shared import CachedTokens, EmbeddingUsage, Name
from blazr.server.params import TruncatingBody, prompt_truncation, unix_time
from blazr.server.run import Run
from blazr.server.schema import Example, schema_hint
from blazr.server.served import ServedPipeline
from blazr.server.vectors import MAX_INPUTS, beginnings, embed_inputs, read_texts
from blazr.text.messages import Message

if TYPE_CHECKING:
    from blazr.llm.rank_head import RankHead
    from blazr.pipelines.encoders.classifier import Classifier

_INSTRUCTION = "Given a query, retrieve passages that answer it."
_JUDGE = (
    "Judge whether the document meets the requirements of the query and the instruction. "
    'Answer only "yes" or "no".'
)
_VERDICTS = ("yes", "no")
_MAX_JUDGED = MAX_LABELS // len(_VERDICTS)  # pairs

_TextList = Annotated[list[str], schema_hint(minItems=1)]
Method = Literal["embedding", "labels"]


class Document(msgspec.Struct):
    """A document as an object."""

    text: str


class ScoreBody(TruncatingBody, kw_only=True):
    """Texts in pairs: one with one, one with many, or many with as many."""

    text_1: str | _TextList
    text_2: str | _TextList
    model: str | None = None
    adapter: Name = None
    method: Method | None = None
    instruction: str | None = None
    example: ClassVar[Example] = {"text_1": "a cat", "text_2": "a dog"}


class RerankBody(TruncatingBody, kw_only=True):
    """A query and documents to put in order."""

    query: str
    documents: Annotated[list[str | Document], schema_hint(minItems=1)]
    model: str | None = None
    adapter: Name = None
    top_n: Annotated[int, schema_hint(minimum=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, schema_hint(minimum=1)] | None = None  # Cohere's
    method: Method | None = None
    instruction: str | None = None
    example: ClassVar[Example] = {"query": "a cat", "documents": ["The cat sat.", "The sun rose."]}


class ComparisonUsage(EmbeddingUsage):
    """What was read, and how much of it was not computed again."""

    prompt_tokens_details: CachedTokens


class ScoreRow(msgspec.Struct, kw_only=True):
    """How well a pair fits."""

    object: Literal["score"] = "score"
    index: int
    score: float


class ScoreList(msgspec.Struct, kw_only=True):
    """A score for each pair."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreRow]
    usage: ComparisonUsage


class RankedDocument(msgspec.Struct):
    """A document's text."""

    text: str


class RerankRow(msgspec.Struct):
    """A document's place and score."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankReply(msgspec.Struct):
    """Documents, the best first."""

    id: str
    model: str
    results: list[RerankRow]
    usage: ComparisonUsage


async def score(call: Call[ScoreBody]) -> ScoreList:
    """How well pairs of texts fit: by a cross-encoder, the cosine of vectors, or a yes."""
    body = call.body
    pairs = pairs_of(body.text_1, body.text_2)
    with _naming("text_1", "text_2", pairs):
        scores, usage = await _compare(call, pairs, body.method, default="embedding")
    return ScoreList(
        id=f"score-{call.id}",
        created=unix_time(),
        model=call.name,
        data=[ScoreRow(index=index, score=each) for index, each in enumerate(scores)],
        usage=usage,
    )


async def rerank(call: Call[RerankBody]) -> RerankReply:
    """Documents in order of relevance: by a cross-encoder, the cosine of vectors, or a yes."""
    body = call.body
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    if not texts:
        raise RequestError("there is nothing to put in order.", param="documents")
    for name in ("top_n", "max_tokens_per_doc"):
        value = getattr(body, name)
        if value is not None and value < 1:
            raise RequestError(
                f"{name} is out of range.", param=name, found=str(value)[:20], expected="at least 1"
            )
    read = texts
    if body.max_tokens_per_doc is not None:
        read = await beginnings(call, texts, body.max_tokens_per_doc)
    pairs = [(body.query, text) for text in read]
    with _naming("query", "documents", pairs):
        scores, usage = await _compare(call, pairs, body.method, default="labels")
    rows = [RerankRow(index, each) for index, each in enumerate(scores)]
    rows = sorted(rows, key=lambda row: -row.relevance_score)[: body.top_n]
    if body.return_documents is not False:
        for row in rows:
            row.document = RankedDocument(texts[row.index])
    return RerankReply(f"rerank-{call.id}", call.name, rows, usage)


@contextmanager
def _naming(first: str, second: str, pairs: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Let an error that is about a text name the field that it is in.

    What reads the texts does not say which it was: the longest, or the shortest where one is empty.

    Args:
        first: The field with the first texts of the pairs.
        second: That with the second ones.
        pairs: Texts.
    """
    try:
        yield
    except RequestError as error:
        if error.param in {"input", "prompt", "messages"}:
            left, right = ([len(text) for text in side] for side in zip(*pairs, strict=True))
            is_long = isinstance(error, ContextLengthError) or error.found
            is_first = max(left) >= max(right) if is_long else min(left) <= min(right)
            rename_field(error, first if is_first else second)
            if is_long and not is_first and second == "documents":
                error.hint = "max_tokens_per_doc keeps the beginning of each"
        raise


async def _compare(
    call: Call[ScoreBody] | Call[RerankBody],
    pairs: Sequence[tuple[str, str]],
    method: Method | None,
    *,
    default: Method,
) -> tuple[list[float], ComparisonUsage]:
    """A score for each pair, and what they cost.

    Args:
        call: Who asks.
        pairs: Texts.
        method: How, as the client wants it.
        default: How a language model does it where the client says nothing.
    """
    truncation = prompt_truncation(call.body)
    many = "documents" if isinstance(call.body, RerankBody) else "text_2"
    if len(pairs) > MAX_INPUTS:
        raise too_many(pairs, MAX_INPUTS, "pairs", param=many)
    if isinstance(call.model, ServedPipeline):
        if method == "labels" or call.body.instruction is not None:
            raise RequestError(
                "this model answers no questions.",
                param="method" if method == "labels" else "instruction",
            )
        if CLASSIFICATION in call.model.capabilities:
            classifier = cast("Classifier", call.model.pipeline)
            logits, usage = await read_texts(call, classifier, pairs, truncation)
            return classifier.scores(logits), _usage(usage)
        method = "embedding"
    if (method or _default(call, default)) == "embedding":
        found, usage = await _cosines(call, pairs, truncation, many=many)
        return found, _usage(usage)
    if truncation is not None:
        raise RequestError(
            "a question that is cut off cannot be answered.",
            param="truncate_prompt_tokens",
            expected='only with "method": "embedding"',
        )
    if len(pairs) > _MAX_JUDGED:
        raise too_many(pairs, _MAX_JUDGED, "pairs to judge", param=many)
    head = _rank_head(call)
    if head is not None and call.body.instruction is None:
        return await _ranked(call, pairs, head)
    wanted = call.body.instruction or _INSTRUCTION
    questions = [
        LabelQuestion(
            messages=(
                Message(role="system", content=_JUDGE),
                Message(
                    role="user",
                    content=f"<Instruct>: {wanted}\n<Query>: {query}\n<Document>: {text}",
                ),
            ),
            labels=_VERDICTS,
        )
        for query, text in pairs
    ]
    probabilities, usage = await label_probabilities(call, questions, param=many)
    return [yes for yes, _ in probabilities], _usage(usage)


def _rank_head(call: Call[ScoreBody] | Call[RerankBody]) -> RankHead | None:
    """How a language model scores documents, where it was made for that."""
    bundle = call.llm.core.bundle
    return None if bundle is None else bundle.rank_head


def _default(call: Call[ScoreBody] | Call[RerankBody], default: Method) -> Method:
    return default if _rank_head(call) is None else "labels"


async def _ranked(
    call: Call[ScoreBody] | Call[RerankBody], pairs: Sequence[tuple[str, str]], head: RankHead
) -> tuple[list[float], ComparisonUsage]:
    """A score for each pair by a model that was made to rank, and what they cost."""
    common = call.scheduling()
    requests = head.requests(pairs, call.llm.core.tokenizer)
    run = await Run.start(call, [replace(each, **common) for each in requests])
    completions, usage = await run.result()
    return [head.score(vector_of(each)) for each in completions], _usage(usage)


async def _cosines(
    call: Call[ScoreBody] | Call[RerankBody],
    pairs: Sequence[tuple[str, str]],
    truncation: Truncation | None,
    *,
    many: str,
) -> tuple[list[float], Usage]:
    """The cosine of each pair's vectors; in a search the first text is a query.

    Args:
        call: Who asks.
        pairs: Texts.
        truncation: What becomes of texts that are too long.
        many: The field that may have many texts.
    """
    texts = distinct(pairs)
    if len(texts) > MAX_INPUTS:
        raise too_many(texts, MAX_INPUTS, "texts", param=many)
    is_search = isinstance(call.body, RerankBody)
    if not is_search or not isinstance(call.model, ServedPipeline):
        vectors, usage = await embed_inputs(call, texts, truncation=truncation)
        return [each.score for each in score_pairs(pairs, unit(vectors))], usage
    query = pairs[0][0]  # the same in all pairs of a search
    documents = list(dict.fromkeys(document for _, document in pairs))
    asked, usage = await embed_inputs(call, [query], truncation=truncation, role="query")
    found, more = await embed_inputs(call, documents, truncation=truncation, role="document")
    cosines = dict(zip(documents, (unit(asked) @ unit(found).T)[0].tolist(), strict=True))
    scores = [cosines[document] for _, document in pairs]
    return scores, Usage(prompt_tokens=usage.prompt_tokens + more.prompt_tokens)


def _usage(usage: Usage) -> ComparisonUsage:
    details = CachedTokens(usage.cached_tokens)
    return ComparisonUsage(usage.prompt_tokens, usage.total_tokens, details)
