"""``POST /v1/decisions``: questions about an input, answered by probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from blazr.server.endpoint import Call
from blazr.server.openai.labels import LabelQuestion, label_probabilities
from blazr.server.openai.responses.items import Item, ItemPart, text_of, to_messages
from blazr.server.openai.shared import ItemUsage, Name, item_usage
from blazr.server.schema import Example, schema_hint
from blazr.text.messages import Message

_QUESTION_COUNT = msgspec.Meta(min_length=1, max_length=400)
_OPTION_COUNT = msgspec.Meta(min_length=2, max_length=255)


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


class Option(msgspec.Struct):
    """One answer to choose."""

    value: Annotated[str, schema_hint(minLength=1)] | bool
    description: str | None = None

    @property
    def label(self) -> str:
        """The answer as a model writes it."""
        return self.value if isinstance(self.value, str) else str(self.value).lower()


class Level(msgspec.Struct):
    """One level of a scale."""

    label: Annotated[str, schema_hint(minLength=1)]
    description: str | None = None


class _Question(msgspec.Struct, kw_only=True, tag_field="type"):
    instructions: str | list[ItemPart] = ""
    name: str | None = None

    def choose_from(self, options: Sequence[Option] | Sequence[Level]) -> LabelQuestion:
        """Ask for one of some options."""
        lines = [
            f"- {each.label}: {each.description}" if each.description else f"- {each.label}"
            for each in options
        ]
        text = text_of(self.instructions, param="questions")
        prompt = "\n".join([text, "", "Answer only with one of these:", *lines])
        return _ask(prompt, [each.label for each in options])


class PredicateQuestion(_Question, tag="predicate"):
    """Is a statement true?"""

    def ask(self) -> LabelQuestion:
        """What to ask the model."""
        text = text_of(self.instructions, param="questions")
        return _ask(f'{text}\n\nIs this true? Answer only "yes" or "no".', ["yes", "no"])

    def answer(self, shares: Sequence[float]) -> PredicateAnswer:
        """The answer that the labels' probabilities give."""
        return PredicateAnswer(self.name, shares[0])


class ChoiceQuestion(_Question, tag="choice"):
    """Which of these fits?"""

    choices: Annotated[list[Option], _OPTION_COUNT]

    def ask(self) -> LabelQuestion:
        """What to ask the model."""
        return self.choose_from(self.choices)

    def answer(self, shares: Sequence[float]) -> ChoiceAnswer:
        """The answer that the labels' probabilities give."""
        values = [choice.value for choice in self.choices]
        return ChoiceAnswer(
            name=self.name,
            choice=values[shares.index(max(shares))],
            confidence=max(shares),
            probabilities=[
                ChoiceShare(value, share) for value, share in zip(values, shares, strict=True)
            ],
        )


class ScoreQuestion(_Question, tag="score"):
    """Where on a scale?"""

    levels: Annotated[list[Level], _OPTION_COUNT]

    def ask(self) -> LabelQuestion:
        """What to ask the model."""
        return self.choose_from(self.levels)

    def answer(self, shares: Sequence[float]) -> ScoreAnswer:
        """The answer that the labels' probabilities give."""
        return ScoreAnswer(
            name=self.name,
            score=sum(value * share for value, share in enumerate(shares)),
            confidence=max(shares),
            probabilities=[
                LevelShare(level.label, value, shares[value])
                for value, level in enumerate(self.levels)
            ],
        )


def _ask(prompt: str, labels: Sequence[str]) -> LabelQuestion:
    return LabelQuestion(messages=[Message(role="user", content=prompt)], labels=labels)


class DecisionBody(msgspec.Struct, kw_only=True):
    """The request."""

    input: str | list[Item]
    questions: Annotated[list[PredicateQuestion | ChoiceQuestion | ScoreQuestion], _QUESTION_COUNT]
    model: str | None = None
    adapter: Name = None
    example: ClassVar[Example] = {
        "input": "Once upon a time",
        "questions": [{"type": "predicate", "instructions": "It is about a cat."}],
    }


class Decisions(msgspec.Struct):
    """An answer to each question."""

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: ItemUsage


async def decide(call: Call[DecisionBody]) -> Decisions:
    """Answer questions about one input; the input is read once."""
    body = call.body
    probabilities, usage = await label_probabilities(
        call,
        [each.ask() for each in body.questions],
        param="questions",
        context=to_messages(body.input),
    )
    pairs = zip(body.questions, probabilities, strict=True)
    answers = [question.answer(shares) for question, shares in pairs]
    return Decisions(model=call.name, answers=answers, usage=item_usage(usage))
