"""``POST /v1/decisions``: questions about an input, answered by probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from blazr.server.endpoint import Call
from blazr.server.openai.labels import LabelQuestion, label_probabilities
from blazr.server.openai.replies import ItemUsage, item_usage
from blazr.server.openai.responses.items import Item, ItemPart, text_of, to_messages
from blazr.server.schema import Example, schema_hint
from blazr.text.messages import Message

_MANY = msgspec.Meta(min_length=1, max_length=400)
_OPTIONS = msgspec.Meta(min_length=2, max_length=255)


class Option(msgspec.Struct):
    """One answer to choose."""

    value: Annotated[str, schema_hint(minLength=1)] | bool
    description: str | None = None


class Level(msgspec.Struct):
    """One level of a scale."""

    label: Annotated[str, schema_hint(minLength=1)]
    description: str | None = None


class _Question(msgspec.Struct, kw_only=True, tag_field="type"):
    instructions: str | list[ItemPart] = ""
    name: str | None = None


class PredicateQuestion(_Question, tag="predicate"):
    """Is a statement true?"""


class ChoiceQuestion(_Question, tag="choice"):
    """Which of these fits?"""

    choices: Annotated[list[Option], _OPTIONS]


class ScoreQuestion(_Question, tag="score"):
    """Where on a scale?"""

    levels: Annotated[list[Level], _OPTIONS]


Question = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionBody(msgspec.Struct, kw_only=True):
    """The request."""

    input: str | list[Item]
    questions: Annotated[list[Question], _MANY]
    model: str | None = None
    example: ClassVar[Example] = {
        "input": "Once upon a time",
        "questions": [{"type": "predicate", "instructions": "It is about a cat."}],
    }


class PredicateAnswer(msgspec.Struct, tag_field="type", tag="predicate"):
    """How likely a statement is true."""

    name: str | None
    probability: float


class ChoiceShare(msgspec.Struct):
    """How likely an answer is."""

    value: str | bool
    probability: float


class ChoiceAnswer(msgspec.Struct, tag_field="type", tag="choice"):
    """The likeliest answer, and how likely each is."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceShare]


class LevelShare(msgspec.Struct):
    """How likely a level is."""

    label: str
    value: int
    probability: float


class ScoreAnswer(msgspec.Struct, tag_field="type", tag="score"):
    """The mean of the levels, and how likely each is."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelShare]


class Decisions(msgspec.Struct):
    """An answer to each question."""

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: ItemUsage


async def decide(call: Call[DecisionBody]) -> Decisions:
    """Answer questions about one input; the input is read once."""
    body = call.body
    about = to_messages(body.input)
    questions = [
        LabelQuestion(
            messages=[*about, Message(role="user", content=_prompt(each))], labels=_labels(each)
        )
        for each in body.questions
    ]
    probabilities, usage = await label_probabilities(call, questions)
    answers = [
        _answer(question, shares)
        for question, shares in zip(body.questions, probabilities, strict=True)
    ]
    return Decisions(model=call.service.name, answers=answers, usage=item_usage(usage))


def _labels(question: Question) -> list[str]:
    if isinstance(question, PredicateQuestion):
        return ["yes", "no"]
    if isinstance(question, ScoreQuestion):
        return [level.label for level in question.levels]
    return [_spelled(choice.value) for choice in question.choices]


def _prompt(question: Question) -> str:
    instructions = text_of(question.instructions, param="questions")
    if isinstance(question, PredicateQuestion):
        return f'{instructions}\n\nIs this true? Answer only "yes" or "no".'
    if isinstance(question, ScoreQuestion):
        options = [(level.label, level.description) for level in question.levels]
    else:
        options = [(_spelled(choice.value), choice.description) for choice in question.choices]
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in options]
    return "\n".join([instructions, "", "Answer only with one of these:", *lines])


def _spelled(value: str | bool) -> str:  # noqa: FBT001
    return value if isinstance(value, str) else str(value).lower()


def _answer(
    question: Question, shares: Sequence[float]
) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    if isinstance(question, PredicateQuestion):
        return PredicateAnswer(question.name, shares[0])
    if isinstance(question, ScoreQuestion):
        return ScoreAnswer(
            name=question.name,
            score=sum(value * share for value, share in enumerate(shares)),
            confidence=max(shares),
            probabilities=[
                LevelShare(level.label, value, shares[value])
                for value, level in enumerate(question.levels)
            ],
        )
    values = [choice.value for choice in question.choices]
    return ChoiceAnswer(
        name=question.name,
        choice=values[shares.index(max(shares))],
        confidence=max(shares),
        probabilities=[
            ChoiceShare(value, share) for value, share in zip(values, shares, strict=True)
        ],
    )
