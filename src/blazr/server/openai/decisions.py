"""``POST /v1/decisions``: questions about an input, answered by probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from starlette.responses import Response

from blazr.llm.results import Completion, Usage
from blazr.server.openai.items import Item, ItemPart, text_of, to_messages
from blazr.server.openai.labels import Ask, Ballot
from blazr.server.openai.schema import item_usage
from blazr.server.params import said
from blazr.server.run import Renderer, Run, whole_answer
from blazr.server.service import Call
from blazr.text.messages import Message

_MANY = msgspec.Meta(min_length=1, max_length=400)
_OPTIONS = msgspec.Meta(min_length=2, max_length=255)


class Choice(msgspec.Struct):
    """One answer to choose."""

    value: Annotated[str, said(minLength=1)] | bool
    description: str | None = None


class Level(msgspec.Struct):
    """One level of a scale."""

    label: Annotated[str, said(minLength=1)]
    description: str | None = None


class _Question(msgspec.Struct, kw_only=True, tag_field="type"):
    instructions: str | list[ItemPart] = ""
    name: str | None = None


class Predicate(_Question, tag="predicate"):
    """Is a statement true?"""


class Selection(_Question, tag="choice"):
    """Which of these fits?"""

    choices: Annotated[list[Choice], _OPTIONS]


class Rating(_Question, tag="score"):
    """Where on a scale?"""

    levels: Annotated[list[Level], _OPTIONS]


class Body(msgspec.Struct, kw_only=True):
    """The request."""

    input: str | list[Item]
    questions: Annotated[list[Predicate | Selection | Rating], _MANY]
    model: str | None = None


async def decide(call: Call[Body]) -> Response:
    """Answer questions about one input; the input is read once."""
    body = call.body
    about = to_messages(body.input)
    asks = [
        Ask(messages=[*about, Message(role="user", content=_prompt(each))], labels=_labels(each))
        for each in body.questions
    ]
    ballot = Ballot(call, asks)
    run = await Run.start(call, await ballot.requests())
    return await whole_answer(run, _Answers(call, ballot))


class _Answers(Renderer):
    def __init__(self, call: Call[Body], ballot: Ballot) -> None:
        self._call = call
        self._ballot = ballot

    def whole(self, completions: Sequence[Completion], usage: Usage) -> object:
        found = self._ballot.probabilities(completions)
        pairs = zip(self._call.body.questions, found, strict=True)
        return {
            "model": self._call.service.name,
            "answers": [_answer(question, shares) for question, shares in pairs],
            "usage": item_usage(usage),
        }


def _labels(question: Predicate | Selection | Rating) -> list[str]:
    if isinstance(question, Predicate):
        return ["yes", "no"]
    if isinstance(question, Rating):
        return [level.label for level in question.levels]
    return [_spelled(choice.value) for choice in question.choices]


def _prompt(question: Predicate | Selection | Rating) -> str:
    instructions = text_of(question.instructions, param="questions")
    if isinstance(question, Predicate):
        return f'{instructions}\n\nIs this true? Answer only "yes" or "no".'
    if isinstance(question, Rating):
        options = [(level.label, level.description) for level in question.levels]
    else:
        options = [(_spelled(choice.value), choice.description) for choice in question.choices]
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in options]
    return "\n".join([instructions, "", "Answer only with one of these:", *lines])


def _spelled(value: str | bool) -> str:  # noqa: FBT001
    return value if isinstance(value, str) else str(value).lower()


def _answer(question: Predicate | Selection | Rating, shares: Sequence[float]) -> object:
    if isinstance(question, Predicate):
        return {"type": "predicate", "name": question.name, "probability": shares[0]}
    if isinstance(question, Rating):
        return {
            "type": "score",
            "name": question.name,
            "score": sum(value * share for value, share in enumerate(shares)),
            "confidence": max(shares),
            "probabilities": [
                {"label": level.label, "value": value, "probability": shares[value]}
                for value, level in enumerate(question.levels)
            ],
        }
    values = [choice.value for choice in question.choices]
    return {
        "type": "choice",
        "name": question.name,
        "choice": values[shares.index(max(shares))],
        "confidence": max(shares),
        "probabilities": [
            {"value": value, "probability": share}
            for value, share in zip(values, shares, strict=True)
        ],
    }
