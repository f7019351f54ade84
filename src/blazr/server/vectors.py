"""Prompts as vectors: what the endpoints that embed and compare have in common."""

from __future__ import annotations

from collections.abc import Sequence

from blazr.core.errors import RequestError
from blazr.engine.request import Pooling
from blazr.llm.generation import GenerationRequest, Prompt, Truncation
from blazr.llm.vectors import ONLY_READ
from blazr.server.endpoint import Call

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
    common = call.scheduling()
    return [
        GenerationRequest(
            prompt=each,
            params=ONLY_READ,
            pooling=pooling or "mean",
            truncation=truncation,
            **common,
        )
        for each in inputs
    ]
