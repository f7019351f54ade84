"""The endpoints of text-embeddings-inference: ``/embed``, ``/predict``, ``/info`` and such.

Source: GitHub huggingface/text-embeddings-inference, ``docs/openapi.json``,
``router/src/http/types.rs`` (PredictInput, SimilarityRequest, EmbedAllRequest),
``core/src/infer.rs`` (predict),
``router/src/lib.rs`` (Info).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, cast

import msgspec
from msgspec import UNSET, UnsetType

import blazr
from blazr.core.errors import RequestError
from blazr.llm.generation import Truncation
from blazr.pipelines.encoders.request import unit
from blazr.pipelines.kinds import CLASSIFICATION, COMPLETION, EMBEDDING, RERANKING
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.foreign_fields import rename_field
from blazr.server.openai import scoring
from blazr.server.openai.scoring import Document, RerankBody, RerankReply
from blazr.server.schema import Example, Schema, any_given, schema_hint
from blazr.server.vectors import MAX_INPUTS, embed_inputs, read_states, read_texts

if TYPE_CHECKING:
    from blazr.pipelines.encoders.classifier import Classifier
    from blazr.pipelines.encoders.embedder import Embedder
    from blazr.pipelines.encoders.encoder import Encoder

TextList = Annotated[list[str], schema_hint(minItems=1)]
OneOrTwo = Annotated[list[str], schema_hint(minItems=1, maxItems=2)]
_READERS = {EMBEDDING, RERANKING, CLASSIFICATION}
_POOLINGS = {"lasttoken": "last_token"}  # names that differ from those of sentence-transformers
Side = Literal["left", "right", "Left", "Right"]


class TeiError(msgspec.Struct):
    """An error, as text-embeddings-inference writes it."""

    error: str
    error_type: str


class AllInputsBody(msgspec.Struct, kw_only=True):
    """Texts; those that are too long are refused, unless ``truncate`` says otherwise."""

    inputs: str | TextList
    model: str | None = None
    truncate: bool | None = None
    truncation_direction: Side | None = None
    prompt_name: str | None = None
    example: ClassVar[Example] = {"inputs": "Once upon a time"}


class InputsBody(AllInputsBody, kw_only=True):
    """Texts; those that are too long are refused, unless ``truncate`` says otherwise."""

    normalize: bool | None = None
    dimensions: Annotated[int, schema_hint(minimum=1)] | None = None


class Sentences(msgspec.Struct, kw_only=True):
    """A sentence, and those that it is compared with."""

    source_sentence: str
    sentences: TextList


class SimilarityParameters(msgspec.Struct, kw_only=True):
    """How sentences are read."""

    truncate: bool | None = None
    truncation_direction: Side | None = None
    prompt_name: str | None = None


class SimilarityBody(msgspec.Struct, kw_only=True):
    """Sentences to compare; those that are too long are refused, unless told otherwise."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None
    model: str | None = None
    example: ClassVar[Example] = {
        "inputs": {"source_sentence": "a cat", "sentences": ["The cat sat.", "The sun rose."]}
    }


class PredictBody(msgspec.Struct, kw_only=True):
    """A text or a pair of texts to label, or a batch of lists with one or two texts each."""

    inputs: str | Annotated[list[str | OneOrTwo], schema_hint(minItems=1)]
    model: str | None = None
    truncate: bool | None = None
    truncation_direction: Side | None = None
    raw_scores: bool | None = None
    example: ClassVar[Example] = {"inputs": "What a nice day!"}


class _Truncating(Protocol):
    truncate: bool | None
    truncation_direction: Side | None


class Prediction(msgspec.Struct):
    """A label, and its score."""

    score: float
    label: str


class TextsBody(RerankBody, kw_only=True):
    """A query and documents, which text-embeddings-inference calls ``texts``."""

    documents: Annotated[list[str | Document], schema_hint(minItems=1)] = []
    texts: TextList | None = None
    truncate: bool | None = None
    truncation_direction: Side | None = None
    raw_scores: Literal[False] | None = None
    return_text: bool | None = None
    schema_extra: ClassVar[Schema] = any_given("documents", "texts", min_length=1)


class EmbeddingType(msgspec.Struct):
    """An embedding model: how it makes a vector of hidden states."""

    pooling: str


class ClassifierType(msgspec.Struct):
    """A classifier or a cross-encoder: its labels, by their numbers."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(msgspec.Struct, omit_defaults=True):
    """What an encoder does; one of the three."""

    embedding: EmbeddingType | UnsetType = UNSET
    reranker: ClassifierType | UnsetType = UNSET
    classifier: ClassifierType | UnsetType = UNSET


class Info(msgspec.Struct, kw_only=True):
    """What an encoder is, and what a request to it may have."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None = None
    max_client_batch_size: int = MAX_INPUTS
    auto_truncate: bool = False
    tokenization_workers: int = 1
    version: str = blazr.__version__
    sha: str | None = None
    docker_label: str | None = None


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
        truncation=_truncation(body),
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    found: list[list[float]] = (vectors if body.normalize is False else unit(vectors)).tolist()
    return found


async def embed_all(call: Call[AllInputsBody]) -> list[list[list[float]]]:
    """A vector for each token of texts, those of the marks around a text too: no text's own."""
    body = call.body
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    states = await read_states(
        call, texts, truncation=_truncation(body), prompt_name=body.prompt_name
    )
    return [each.tolist() for each in states]


async def similarity(call: Call[SimilarityBody]) -> list[float]:
    """How alike a sentence is to each of others: the cosine of their vectors."""
    given = call.body.inputs
    if not given.sentences:
        raise RequestError("there is nothing to compare with.", param="inputs.sentences")
    parameters = call.body.parameters or SimilarityParameters()
    vectors, _ = await embed_inputs(
        call,
        [given.source_sentence, *given.sentences],
        truncation=_truncation(parameters),
        prompt_name=parameters.prompt_name,
    )
    source, *others = unit(vectors)
    return [float(source @ each) for each in others]


async def info(call: Call[None]) -> Info:
    """What an encoder is, and what a request to it may have; the query's ``model`` names one."""
    if not _READERS & set(call.model.capabilities) or COMPLETION in call.model.capabilities:
        raise RequestError(
            "this is told of encoders alone.",
            param="model",
            found=f"{call.name:.50}, a model for {', '.join(call.model.capabilities)}",
            hint="name an encoder of this server: /info?model=NAME",
        )
    from blazr.pipelines.encoders.encoder import MAX_BATCH_TOKENS

    encoder = cast("Encoder", call.pipeline)
    return Info(
        model_id=call.name,
        model_dtype=str(encoder.dtype).removeprefix("torch."),
        model_type=_type_of(encoder),
        max_concurrent_requests=encoder.max_waiting,
        max_input_length=encoder.max_tokens,
        max_batch_tokens=MAX_BATCH_TOKENS,
    )


def _type_of(encoder: Encoder) -> ModelType:
    capabilities = encoder.info.capabilities
    if EMBEDDING in capabilities:
        pooling = cast("Embedder", encoder).pooling
        return ModelType(embedding=EmbeddingType(_POOLINGS.get(pooling, pooling)))
    labels = cast("Classifier", encoder).labels
    about = ClassifierType(
        {str(place): label for place, label in enumerate(labels)},
        {label: place for place, label in enumerate(labels)},
    )
    return ModelType(reranker=about) if RERANKING in capabilities else ModelType(classifier=about)


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


async def predict(call: Call[PredictBody]) -> list[Prediction | list[Prediction]]:
    """Label a text, or each of a batch: all labels with their scores, the highest first.

    Scores of several labels sum to 1, whatever the model's config says of them;
    ``"raw_scores": true`` gives the numbers that they are made of.
    """
    body = call.body
    sequences = _sequences(body.inputs)
    classifier = cast("Classifier", call.pipeline)
    scores, _ = await read_texts(call, classifier, sequences, _truncation(body))
    if not body.raw_scores:
        scores = classifier.probabilities(scores, is_single_label=True)
    labels = classifier.labels
    found = [
        sorted(map(Prediction, row, labels), key=lambda each: -each.score)
        for row in scores.tolist()
    ]
    is_batch = isinstance(body.inputs, list) and isinstance(body.inputs[0], list)
    return [*found] if is_batch else [*found[0]]


def _sequences(inputs: str | list[str | list[str]]) -> list[str | tuple[str, str]]:
    """The texts and pairs of texts that ``inputs`` of `PredictBody` holds.

    Raises:
        RequestError: It is something else, such as a list of three texts.
    """
    given = [inputs] if isinstance(inputs, str) else inputs
    texts = [each for each in given if isinstance(each, str)]
    rows = [each for each in given if isinstance(each, list)]
    if texts and not rows:
        rows = [texts]
    elif texts:
        rows = []
    if not rows or not all(0 < len(row) <= 2 for row in rows):
        raise RequestError(
            "the inputs are not understood.",
            param="inputs",
            found=f"a list of {len(given)}",
            expected="a text, a pair [a, b], or a batch [[a], [a, b], ...]",
        )
    return [row[0] if len(row) == 1 else (row[0], row[1]) for row in rows]


def _truncation(body: _Truncating) -> Truncation | None:
    """What becomes of texts that are too long; None refuses them."""
    return Truncation(drops=_side(body)) if body.truncate else None


def _side(body: _Truncating) -> Literal["left", "right"]:
    """Where tokens of a text that is too long go."""
    return "left" if (body.truncation_direction or "").lower() == "left" else "right"
