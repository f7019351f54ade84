"""``POST /classify``: texts and their labels, as vLLM answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import msgspec

from blazr.server.endpoint import Call
from blazr.server.openai.shared import EmbeddingUsage
from blazr.server.params import TruncatingBody, prompt_truncation, unix_time
from blazr.server.schema import Example, schema_hint
from blazr.server.vectors import read_texts

if TYPE_CHECKING:
    from blazr.pipelines.encoders.classifier import Classifier


class ClassifyBody(TruncatingBody, kw_only=True):
    """Texts to label."""

    input: str | Annotated[list[str], schema_hint(minItems=1)]
    model: str | None = None
    example: ClassVar[Example] = {"input": "What a nice day!"}


class LabelRow(msgspec.Struct, kw_only=True):
    """The likeliest label of a text, and the probability of each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class LabelList(msgspec.Struct, kw_only=True):
    """A label for each text."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[LabelRow]
    usage: EmbeddingUsage


async def classify(call: Call[ClassifyBody]) -> LabelList:
    """Label texts."""
    body = call.body
    texts = [body.input] if isinstance(body.input, str) else body.input
    classifier = cast("Classifier", call.pipeline)
    logits, usage = await read_texts(call, classifier, texts, prompt_truncation(body))
    labels = classifier.labels
    return LabelList(
        id=f"classify-{call.id}",
        created=unix_time(),
        model=call.name,
        data=[
            LabelRow(
                index=index,
                label=labels[int(row.argmax())],
                probs=row.tolist(),
                num_classes=len(labels),
            )
            for index, row in enumerate(classifier.probabilities(logits))
        ],
        usage=EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens),
    )
