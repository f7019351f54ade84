"""Texts as vectors: what the endpoints that embed and compare have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

from blazr.core.errors import RequestError
from blazr.engine.request import Pooling
from blazr.llm.generation import GenerationRequest, Prompt, Truncation
from blazr.llm.results import Usage
from blazr.llm.vectors import ONLY_READ, cut_of, unit_vectors
from blazr.llm.workers import run_on_worker
from blazr.pipelines.encoders.request import ReadRequest, TextsRead, without_prompts
from blazr.server.endpoint import Call
from blazr.server.run import Run
from blazr.server.served import ServedPipeline
from blazr.server.work import PipelineRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from blazr.pipelines.encoders.embedder import Embedder
    from blazr.pipelines.encoders.encoder import Encoder, Gathered
    from blazr.pipelines.jobs import Outlet

MAX_INPUTS = 2048
_OWN_IDS = "send text: ids are this model's own (LangChain: check_embedding_ctx_length=False)"


async def embed_inputs(
    call: Call[object],
    inputs: Sequence[Prompt],
    *,
    pooling: Pooling | None = None,
    truncation: Truncation | None = None,
    dimensions: int | None = None,
    prompt_name: str | None = None,
    role: Literal["query", "document"] | None = None,
) -> tuple[NDArray[np.float32], Usage]:
    """One vector for each input, (B, C), and what they cost.

    Those of a language model have length 1; those of an encoder the length that it gives them.

    Args:
        call: Who asks.
        inputs: B texts, or a language model's tokens.
        pooling: How a language model makes a vector; None is its own way, mostly the mean.
        truncation: What becomes of inputs that are too long; None refuses them.
        dimensions: Keep this many numbers of each; None keeps all C.
        prompt_name: Which of an encoder's prompts stands before each.
        role: What an input is in a search, where an encoder has a prompt for that.

    Raises:
        RequestError: There are none or too many, or one asks for something impossible.
    """
    _check_inputs(inputs)
    if isinstance(call.model, ServedPipeline):
        if pooling is not None:
            raise RequestError("this model has a pooling of its own.", param="pooling")
        texts = [each for each in inputs if isinstance(each, str)]
        if len(texts) < len(inputs):
            raise RequestError("this model reads text alone.", param="input", hint=_OWN_IDS)
        embedder = cast("Embedder", call.model.pipeline)
        request = ReadRequest(
            texts=texts, prompt_name=prompt_name, role=role, cut=cut_of(truncation)
        )
        found = await _read_by(call, embedder, request)
        return embedder.shorten(found.values, dimensions), _usage(found)
    if prompt_name is not None:
        raise without_prompts()
    common = call.scheduling()
    requests = [
        GenerationRequest(
            prompt=each,
            params=ONLY_READ,
            pooling=pooling or call.llm.core.info.pooling,
            truncation=truncation,
            **common,
        )
        for each in inputs
    ]
    try:
        run = await Run.start(call, requests)
        completions, usage = await run.result()
    except RequestError as error:
        if any(not isinstance(each, str) for each in inputs):
            error.hint = error.hint or _OWN_IDS
        raise
    return unit_vectors(completions, dimensions), usage


async def read_texts(
    call: Call[object],
    encoder: Encoder,
    texts: Sequence[str | tuple[str, str]],
    truncation: Truncation | None,
) -> tuple[NDArray[np.float32], Usage]:
    """An encoder's output for texts or pairs of them, (B, C), and what that cost.

    Raises:
        RequestError: There are none or too many, or one is too long.
    """
    _check_inputs(texts)
    found = await _read_by(call, encoder, ReadRequest(texts=texts, cut=cut_of(truncation)))
    return found.values, _usage(found)


async def read_states(
    call: Call[object],
    texts: Sequence[str],
    *,
    truncation: Truncation | None,
    prompt_name: str | None,
) -> list[NDArray[np.float32]]:
    """The hidden states of each text's tokens, (T, C) each, as the network leaves them.

    Args:
        call: Who asks.
        texts: The texts.
        truncation: What becomes of texts that are too long; None refuses them.
        prompt_name: Which of the model's prompts stands before each.

    Raises:
        RequestError: There are none or too many, one is too long, or the model is no encoder.
    """
    _check_inputs(texts)
    if not isinstance(call.model, ServedPipeline):
        raise RequestError(
            "a language model gives one vector for a text.",
            param="model",
            found=f"{call.name:.50}",
            hint="name an embedding model",
        )
    request = ReadRequest(
        texts=texts, prompt_name=prompt_name, cut=cut_of(truncation), per_token=True
    )
    return (await _read_by(call, cast("Encoder", call.model.pipeline), request)).rows


async def beginnings(call: Call[object], texts: Sequence[str], most: int) -> list[str]:
    """The beginnings of texts, of so many tokens of the model's at most.

    Args:
        call: Who asks.
        texts: The texts.
        most: Tokens, 1 or more.
    """
    if isinstance(call.model, ServedPipeline):
        encoder = cast("Encoder", call.model.pipeline)

        def work(outlet: Outlet[str]) -> None:
            for text in texts:
                outlet.emit(encoder.beginning(text, most))

        return await PipelineRun[str](call, work).result()
    tokenizer = call.llm.tokenizer

    def beginning(text: str) -> str:
        ids = tokenizer.encode(text)
        if len(ids) <= most:
            return text
        kept = tokenizer.decode(ids[:most])
        # the last character may lack some of its tokens
        return kept if text.startswith(kept) else kept.rstrip("\ufffd")

    return await run_on_worker(
        lambda: [beginning(text) for text in texts], length=sum(map(len, texts))
    )


async def _read_by(call: Call[object], encoder: Encoder, request: ReadRequest) -> Gathered:
    """What an encoder has made of the texts of a request."""
    from blazr.pipelines.encoders.encoder import Gathered

    run = PipelineRun[TextsRead](call, lambda outlet: encoder.read_texts(request, outlet))
    found = Gathered(len(request.texts))
    for item in await run.result():
        found.emit(item)
    return found


def _usage(found: Gathered) -> Usage:
    return Usage(prompt_tokens=found.num_tokens)


def _check_inputs(inputs: Sequence[object]) -> None:
    """Refuse an empty list of inputs, and one that is too long.

    Raises:
        RequestError: It is.
    """
    if not 0 < len(inputs) <= MAX_INPUTS:
        raise RequestError(
            "the number of inputs is out of range.",
            param="input",
            found=str(len(inputs)),
            expected=f"1 to {MAX_INPUTS}",
        )
