"""Prompts as vectors: what the endpoints that embed and compare have in common."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blazr.core.errors import RequestError
from blazr.engine.request import Pooling
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest, Prompt, Truncation
from blazr.llm.results import Completion
from blazr.server.params import scheduling
from blazr.server.service import Call

MAX_INPUTS = 2048


def vector_requests(
    call: Call[object],
    inputs: Sequence[Prompt],
    pooling: Pooling | None,
    truncation: Truncation | None = None,
) -> list[GenerationRequest]:
    """Requests that give one vector for each input; the mean of its hidden states by default.

    Raises:
        RequestError: There are none or too many.
    """
    if not 0 < len(inputs) <= MAX_INPUTS:
        raise RequestError(
            "the number of inputs is out of range.",
            param="input",
            found=str(len(inputs)),
            expected=f"1 to {MAX_INPUTS}",
        )
    params = SamplingParams(max_tokens=0)
    common = scheduling(call)
    return [
        GenerationRequest(
            prompt=each, params=params, pooling=pooling or "mean", truncation=truncation, **common
        )
        for each in inputs
    ]


def unit_vectors(
    completions: Sequence[Completion], dimensions: int | None = None
) -> NDArray[np.float32]:
    """The vectors of such requests, (B, C), each of length 1.

    Args:
        completions: B replies.
        dimensions: Keep this many numbers of each; None keeps all C.

    Raises:
        RequestError: There are fewer.
    """
    vectors = np.array([each.embedding or array("f") for each in completions], np.float32)
    size = vectors.shape[1]
    if dimensions is not None and not 0 < dimensions <= size:
        raise RequestError(
            "dimensions is out of range.",
            param="dimensions",
            found=str(dimensions)[:20],
            expected=f"1 to {size}",
        )
    vectors = vectors[:, :dimensions]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
