"""``POST /``: what clients of the Hugging Face hub ask, who know an address and no path.

A model that writes text answers as text-generation-inference does, an encoder as
text-embeddings-inference, each of which has this path.

Source: GitHub huggingface/text-embeddings-inference, ``router/src/http/server.rs`` (run);
huggingface_hub, ``inference/_providers/hf_inference.py``; huggingface.js,
``packages/inference/src/providers/hf-inference.ts``.
"""

from __future__ import annotations

from dataclasses import replace
from math import tanh
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import msgspec

from blazr.core.errors import RequestError
from blazr.pipelines.kinds import CLASSIFICATION, COMPLETION, EMBEDDING, RERANKING
from blazr.server.endpoint import Call, Reply
from blazr.server.models import unsuited
from blazr.server.native import tgi
from blazr.server.native.tgi import TgiBody, TgiChunk, TgiParameters, TgiReply
from blazr.server.openai import tei
from blazr.server.openai.tei import (
    InputsBody,
    OneOrTwo,
    PredictBody,
    Prediction,
    Rank,
    Sentences,
    Side,
    SimilarityBody,
    TextList,
    TextsBody,
)
from blazr.server.schema import Example, OneOf, Schema, one_given, schema_hint

B = TypeVar("B", bound=msgspec.Struct)


class HubParameters(TgiParameters, kw_only=True):
    """How to sample; of labels, which numbers are told of how many of them (``top_k``)."""

    function_to_apply: Literal["none", "sigmoid", "softmax"] | None = None


class HubBody(msgspec.Struct, kw_only=True):
    """A text to continue, to embed or to label, by what the model can do.

    Encoders also take lists of texts and, where they embed, a sentence to compare with others. With
    ``query`` and ``texts`` the texts are put in order.
    """

    inputs: str | Annotated[list[str | OneOrTwo], schema_hint(minItems=1)] | Sentences | None = None
    parameters: HubParameters | None = None
    query: str | None = None
    texts: TextList | None = None
    model: str | None = None
    stream: bool | None = None
    truncate: bool | None = None
    truncation_direction: Side | None = None
    prompt_name: str | None = None
    normalize: bool | None = None
    dimensions: Annotated[int, schema_hint(minimum=1)] | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    schema_extra: ClassVar[Schema] = one_given("inputs", "texts")
    example: ClassVar[Example] = {
        "inputs": "Once upon a time",
        "parameters": {"max_new_tokens": 32},
    }


_Answer = OneOf[list[TgiReply], list[list[float]], list[float], list[list[Prediction]], list[Rank]]


async def answer(call: Call[HubBody]) -> Reply[_Answer, TgiChunk]:
    """Continue a text, or embed, compare, label or order texts, by what the model can do."""
    found: Any = await _answer(call)
    return cast("Reply[_Answer, TgiChunk]", found)


async def _answer(call: Call[HubBody]) -> object:
    body, capabilities = call.body, call.model.capabilities
    given = body.inputs
    if (given is None) == (body.texts is None):
        raise RequestError(
            "there is nothing to answer." if given is None else "there are two questions.",
            param="inputs",
            expected="inputs, or query and texts, and only one of them",
        )
    if given is None:
        _check(call, RERANKING)
        if body.query is None:
            raise RequestError(
                "there is nothing to compare with.", param="query", expected="query, a text"
            )
        return await tei.rerank(_call_with(call, TextsBody))
    if isinstance(given, Sentences):
        _check(call, EMBEDDING)
        return await tei.similarity(_call_with(call, SimilarityBody, parameters=None))
    if CLASSIFICATION in capabilities:
        return await _label(call)
    if COMPLETION not in capabilities and EMBEDDING in capabilities:
        if not all(isinstance(each, str) for each in given):
            raise _not_understood("a text, or a list of texts")
        return await tei.embed(_call_with(call, InputsBody))
    _check(call, COMPLETION)
    if not isinstance(given, str):
        raise _not_understood("a text: this model continues it")
    return await tgi.generate_compatibly(_call_with(call, TgiBody))


async def _label(call: Call[HubBody]) -> list[list[Prediction]]:
    """The labels of each text, of one text too: so both of the hub's clients read them."""
    wanted = call.body.parameters or HubParameters()
    if wanted.top_k is not None and wanted.top_k < 1:
        raise RequestError(
            "top_k is out of range.",
            param="top_k",
            found=str(wanted.top_k)[:20],
            expected="at least 1",
        )
    is_raw = wanted.function_to_apply in {"none", "sigmoid"}
    asked = _call_with(call, PredictBody, raw_scores=is_raw or call.body.raw_scores)
    found = await tei.predict(asked)
    rows = cast("list[list[Prediction]]", [found] if isinstance(found[0], Prediction) else found)
    if wanted.function_to_apply == "sigmoid":
        for each in (each for row in rows for each in row):
            each.score = (1 + tanh(each.score / 2)) / 2  # the sigmoid, of any number
    return [row[: wanted.top_k] for row in rows]


def _call_with(call: Call[HubBody], kind: type[B], **changed: object) -> Call[B]:
    """The same request in the words of another endpoint."""
    known = set(HubBody.__struct_fields__) & set(kind.__struct_fields__)
    fields = {name: getattr(call.body, name) for name in known} | changed
    return replace(cast("Call[Any]", call), body=kind(**fields))


def _check(call: Call[HubBody], capability: str) -> None:
    if capability not in call.model.capabilities:
        raise unsuited(call.name, capability)


def _not_understood(expected: str) -> RequestError:
    return RequestError("the inputs are not understood.", param="inputs", expected=expected)
