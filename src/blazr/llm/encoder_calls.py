"""`EncoderCalls`: an encoder in this process, as `LLM` and `AsyncLLM` call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from blazr.core.errors import EngineError, RequestError
from blazr.llm.generation import Prompt, Truncation
from blazr.llm.results import Classification, Embedding, Score
from blazr.llm.room import with_room
from blazr.llm.vectors import cut_of, distinct, score_pairs
from blazr.pipelines.encoders.request import ReadRequest, unit
from blazr.pipelines.kinds import CLASSIFICATION, EMBEDDING, RERANKING

if TYPE_CHECKING:
    from blazr.pipelines.encoders.classifier import Classifier
    from blazr.pipelines.encoders.embedder import Embedder
    from blazr.pipelines.encoders.encoder import Encoder, Gathered
    from blazr.pipelines.encoders.request import TextsRead
    from blazr.pipelines.jobs import Job
    from blazr.pipelines.pipeline import PipelineInfo

T = TypeVar("T")

# The method of `LLM` and `AsyncLLM` by which a model does what it can.
METHODS = {EMBEDDING: "embed", RERANKING: "score", CLASSIFICATION: "classify"}


@dataclass(frozen=True, slots=True)
class EncoderReading(Generic[T]):
    """What an encoder reads, and what is made of what it gives.

    Args:
        request: The texts, of which there may be none.
        finish: What makes the results of some.
    """

    request: ReadRequest
    finish: Callable[[Gathered], list[T]]


class EncoderCalls:
    """An encoder that computes one call after the other, of any thread.

    Args:
        encoder: The model.

    Attributes:
        info: What there is to know about it.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.info: PipelineInfo = encoder.info
        self._encoder: Encoder | None = encoder
        self._lock = Lock()  # its tokenizer keeps settings of a call

    def embed(
        self,
        prompts: Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncation: Truncation | None = None,
        prompt_name: str | None = None,
        normalize: bool = False,
    ) -> EncoderReading[Embedding]:
        """A vector of each text; see `LLM.embed`."""
        embedder = cast("Embedder", self._able_to(EMBEDDING))

        def finish(found: Gathered) -> list[Embedding]:
            vectors = embedder.shorten(found.values, dimensions)
            return [
                Embedding(embedding=vector, prompt_tokens=length)
                for vector, length in zip(
                    (unit(vectors) if normalize else vectors).tolist(), found.lengths, strict=True
                )
            ]

        texts = _texts_of(prompts)
        request = ReadRequest(texts=texts, prompt_name=prompt_name, cut=cut_of(truncation))
        return EncoderReading(request, finish)

    def score(
        self, pairs: Sequence[tuple[str, str]], *, truncation: Truncation | None = None
    ) -> EncoderReading[Score]:
        """How well each pair of texts fits, as the model itself says or by the cosine."""
        encoder = self._able_to(RERANKING)
        cut = cut_of(truncation)
        if EMBEDDING in encoder.info.capabilities:
            return EncoderReading(
                ReadRequest(texts=distinct(pairs), cut=cut),
                lambda found: score_pairs(pairs, unit(found.values)),
            )
        classifier = cast("Classifier", encoder)
        return EncoderReading(
            ReadRequest(texts=pairs, cut=cut),
            lambda found: [Score(score=each) for each in classifier.scores(found.values)],
        )

    def classify(
        self, prompts: Sequence[Prompt], *, truncation: Truncation | None = None
    ) -> EncoderReading[Classification]:
        """The labels of each text; see `LLM.classify`."""
        classifier = cast("Classifier", self._able_to(CLASSIFICATION))
        labels = classifier.labels

        def finish(found: Gathered) -> list[Classification]:
            return [
                Classification(
                    label=labels[int(row.argmax())],
                    probs=row.tolist(),
                    labels=labels,
                    prompt_tokens=length,
                )
                for row, length in zip(
                    classifier.probabilities(found.values), found.lengths, strict=True
                )
            ]

        request = ReadRequest(texts=_texts_of(prompts), cut=cut_of(truncation))
        return EncoderReading(request, finish)

    def read(self, reading: EncoderReading[T]) -> list[T]:
        """Read texts on the caller's thread."""
        from blazr.pipelines.encoders.encoder import Gathered

        request = reading.request
        if not request.texts:
            return []
        found = Gathered(len(request.texts), check=self._open_encoder)
        with self._lock:
            self._open_encoder().read_texts(request, found)
        return reading.finish(found)

    async def read_async(self, reading: EncoderReading[T]) -> list[T]:
        """Read texts on the encoder's thread, whose queue may have to get room first.

        Where the task that waits is cancelled, the work ends behind the batch that is under way.
        """
        from blazr.pipelines.encoders.encoder import Gathered

        request = reading.request
        if not request.texts:
            return []
        found = Gathered(len(request.texts))

        def start() -> Job[TextsRead]:
            encoder = self._open_encoder()
            return encoder.jobs.start(partial(encoder.read_texts, request))

        job = await with_room(start)
        try:
            async for each in job.items():
                found.emit(each)
        finally:
            job.abort()
        return reading.finish(found)

    def close(self) -> None:
        """End the encoder's thread, and drop the encoder. Idempotent.

        A call that runs ends with an error, after the texts that it computes now; nobody waits for
        that here, as a signal handler may close what its own thread is calling.
        """
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            encoder.close()

    def refusal(self, ability: str) -> RequestError:
        """An error that says that the model lacks an ability, and which methods it has."""
        info = self.info
        return RequestError(
            f"this model cannot {ability}.",
            found=f"{info.name:.50}, an encoder for {' and '.join(info.capabilities)}",
            hint="call " + " or ".join(METHODS[x] for x in info.capabilities if x in METHODS),
        )

    def _able_to(self, capability: str) -> Encoder:
        """The encoder, if it can do something.

        Raises:
            RequestError: It cannot.
            EngineError: It is closed.
        """
        if capability not in self.info.capabilities:
            raise self.refusal(METHODS[capability])
        return self._open_encoder()

    def _open_encoder(self) -> Encoder:
        encoder = self._encoder
        if encoder is None:
            raise EngineError("the encoder is not running.", found="it was closed")
        return encoder


def _texts_of(prompts: Sequence[Prompt]) -> list[str]:
    """Return prompts that are texts.

    Raises:
        RequestError: One is a list of token ids.
    """
    texts = [each for each in prompts if isinstance(each, str)]
    if len(texts) < len(prompts):
        raise RequestError(
            "an encoder reads text alone.", param="prompts", found="token ids", expected="text"
        )
    return texts
