"""`EncoderCalls`: an encoder in this process, as `LLM` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, cast

from blazr.core.errors import RequestError
from blazr.llm.generation import Prompt, Truncation
from blazr.llm.results import Classification, Embedding, Score
from blazr.llm.vectors import cut_of, distinct, score_pairs
from blazr.pipelines.encoders.request import ReadRequest, unit
from blazr.pipelines.kinds import CLASSIFICATION, EMBEDDING, RERANKING

if TYPE_CHECKING:
    from blazr.pipelines.encoders.classifier import Classifier
    from blazr.pipelines.encoders.embedder import Embedder
    from blazr.pipelines.encoders.encoder import Encoder, Gathered
    from blazr.pipelines.pipeline import PipelineInfo

# The method of `LLM` by which a model does what it can.
METHODS = {EMBEDDING: "embed", RERANKING: "score", CLASSIFICATION: "classify"}


class EncoderCalls:
    """An encoder that computes one call after the other, of any thread, on the caller's.

    Args:
        encoder: The model.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._lock = Lock()  # its tokenizer keeps settings of a call

    def embed(
        self,
        prompts: Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncation: Truncation | None = None,
        prompt_name: str | None = None,
        normalize: bool = False,
    ) -> list[Embedding]:
        """Return a vector of each text; see `LLM.embed`."""
        embedder = cast("Embedder", self._able_to(EMBEDDING))
        texts = _texts_of(prompts)
        if not texts:
            return []
        request = ReadRequest(texts=texts, prompt_name=prompt_name, cut=cut_of(truncation))
        found = self._read(request)
        vectors = embedder.shorten(found.values, dimensions)
        return [
            Embedding(embedding=vector, prompt_tokens=length)
            for vector, length in zip(
                (unit(vectors) if normalize else vectors).tolist(), found.lengths, strict=True
            )
        ]

    def score(
        self, pairs: Sequence[tuple[str, str]], *, truncation: Truncation | None = None
    ) -> list[Score]:
        """Return how well each pair of texts fits, as the model itself says or by the cosine."""
        encoder = self._able_to(RERANKING)
        cut = cut_of(truncation)
        if EMBEDDING in encoder.info.capabilities:
            found = self._read(ReadRequest(texts=distinct(pairs), cut=cut))
            return score_pairs(pairs, unit(found.values))
        found = self._read(ReadRequest(texts=pairs, cut=cut))
        return [Score(score=each) for each in cast("Classifier", encoder).scores(found.values)]

    def classify(
        self, prompts: Sequence[Prompt], *, truncation: Truncation | None = None
    ) -> list[Classification]:
        """Return the labels of each text; see `LLM.classify`."""
        classifier = cast("Classifier", self._able_to(CLASSIFICATION))
        texts = _texts_of(prompts)
        if not texts:
            return []
        found = self._read(ReadRequest(texts=texts, cut=cut_of(truncation)))
        labels = classifier.labels
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

    @property
    def info(self) -> PipelineInfo:
        """What there is to know about the encoder."""
        return self._encoder.info

    def close(self) -> None:
        """End the encoder's thread. Idempotent."""
        self._encoder.close()

    def refusal(self, ability: str) -> RequestError:
        """An error that says that the model lacks an ability, and which methods it has."""
        info = self.info
        return RequestError(
            f"this model cannot {ability}.",
            found=f"{info.name:.50}, an encoder for {' and '.join(info.capabilities)}",
            hint="call " + " or ".join(METHODS[x] for x in info.capabilities if x in METHODS),
        )

    def _able_to(self, capability: str) -> Encoder:
        if capability not in self._encoder.info.capabilities:
            raise self.refusal(METHODS[capability])
        return self._encoder

    def _read(self, request: ReadRequest) -> Gathered:
        from blazr.pipelines.encoders.encoder import Gathered

        found = Gathered(len(request.texts))
        with self._lock:
            self._encoder.read_texts(request, found)
        return found


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
