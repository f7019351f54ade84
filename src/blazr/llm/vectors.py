"""Texts as vectors, and how well they fit each other."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from blazr.core.errors import EngineError, RequestError
from blazr.engine.request import Pooling
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Prompt, Truncation
from blazr.llm.results import Completion, Embedding, Score
from blazr.pipelines.encoders.request import Cut, first_numbers, unit

ONLY_READ = SamplingParams(max_tokens=0)


def vector_of(completion: Completion) -> array[float]:
    """Return the vector of a request for one.

    Raises:
        EngineError: It has none, because it failed.
    """
    if completion.embedding is None:
        found = completion.error or completion.finish_reason
        raise EngineError("a text was not read to its end.", found=found)
    return completion.embedding


def unit_vectors(
    completions: Sequence[Completion], dimensions: int | None = None
) -> NDArray[np.float32]:
    """Return the vectors of requests for embeddings, (B, C) float32, each of length 1.

    Args:
        completions: B replies.
        dimensions: Keep this many numbers of each; None keeps all C.

    Raises:
        RequestError: There are fewer.
        EngineError: A reply has none, because it failed.
    """
    vectors = np.array([vector_of(each) for each in completions], np.float32)
    return unit(first_numbers(vectors, dimensions))


def cut_of(truncation: Truncation | None) -> Cut | None:
    """Return the same for the texts of an encoder."""
    if truncation is None:
        return None
    return Cut(truncation.most, "left" if truncation.drops == "left" else "right")


def embedding_requests(
    prompts: Sequence[Prompt], pooling: Pooling, truncation: Truncation | None = None
) -> list[GenerationRequest]:
    """Return requests for one vector of each prompt, pooled in this way.

    Args:
        prompts: Texts, or the token ids of texts.
        pooling: How hidden states become a vector.
        truncation: What becomes of prompts that are too long; None refuses them.
    """
    return [
        GenerationRequest(prompt=each, params=ONLY_READ, pooling=pooling, truncation=truncation)
        for each in prompts
    ]


def embeddings(completions: Sequence[Completion], dimensions: int | None = None) -> list[Embedding]:
    """Return the vectors of the replies to `embedding_requests`; see `unit_vectors`."""
    if not completions:
        return []
    vectors = unit_vectors(completions, dimensions)
    return [
        Embedding(embedding=vector.tolist(), prompt_tokens=each.usage.prompt_tokens)
        for vector, each in zip(vectors, completions, strict=True)
    ]


def pairs_of(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
    """Return texts in pairs: one with one, one with many, or many with as many.

    Raises:
        RequestError: They do not form pairs, or are no texts.
    """
    left, right = _texts("text_1", first), _texts("text_2", second)
    found = f"{len(left)} and {len(right)}"
    if len(left) == 1:
        left *= len(right)
    if len(left) != len(right) or not left:
        raise RequestError(
            "the texts do not form pairs.",
            param="text_2",
            found=found,
            expected="one and any number, or equal numbers",
        )
    return list(zip(left, right, strict=True))


def _texts(name: str, given: object) -> list[str]:
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable) or not all(isinstance(each, str) for each in given):
        raise RequestError(
            f"{name} cannot be read.",
            param=name,
            found=f"{given!r:.80}",
            expected="a text, or a list of texts",
        )
    return list(given)


def score_pairs(pairs: Sequence[tuple[str, str]], vectors: NDArray[np.float32]) -> list[Score]:
    """Return the cosine of each pair.

    Args:
        pairs: Texts.
        vectors: Of `distinct` texts of these pairs, (B, C), each of length 1.
    """
    place = {text: index for index, text in enumerate(distinct(pairs))}
    return [Score(score=float(vectors[place[a]] @ vectors[place[b]])) for a, b in pairs]


def distinct(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the texts of some pairs, each once."""
    return list(dict.fromkeys(text for pair in pairs for text in pair))
