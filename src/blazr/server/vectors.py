"""Prompts as vectors: what the endpoints that embed and compare have in common."""

from __future__ import annotations

from collections.abc import Sequence

from blazr.core.errors import RequestError
from blazr.engine.request import Pooling
from blazr.llm.generation import GenerationRequest, Prompt, Truncation
from blazr.llm.results import Completion, Usage
from blazr.llm.vectors import ONLY_READ
from blazr.server.endpoint import Call
from blazr.server.run import Run

MAX_INPUTS = 2048


async def embed_inputs(
    call: Call[object],
    inputs: Sequence[Prompt],
    *,
    pooling: Pooling = "mean",
    truncation: Truncation | None = None,
) -> tuple[list[Completion], Usage]:
    """One vector for each input, and what they cost.

    Raises:
        RequestError: There are none or too many, or one asks for something impossible.
    """
    if not 0 < len(inputs) <= MAX_INPUTS:
        raise RequestError(
            "the number of inputs is out of range.",
            param="input",
            found=str(len(inputs)),
            expected=f"1 to {MAX_INPUTS}",
        )
    common = call.scheduling()
    requests = [
        GenerationRequest(
            prompt=each, params=ONLY_READ, pooling=pooling, truncation=truncation, **common
        )
        for each in inputs
    ]
    run = await Run.start(call, requests)
    return await run.result()
