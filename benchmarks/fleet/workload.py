"""Conversations: who asks what and when, from a seed alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.fleet.replica import VOCAB_SIZE

GRID = 64


@dataclass(frozen=True)
class Plan:
    """A workload.

    Args:
        users: Conversations at any time; one that ends is followed by a new one.
        system: Tokens of the instructions that all conversations of a kind begin with.
        kinds: Different instructions.
        question: Tokens that a user adds in a turn, in the mean.
        reply: Tokens of a reply, in the mean.
        turns: Turns of a conversation, in the mean.
        think_s: Seconds from a reply to the next question, in the mean.
        seed: Of everything.
    """

    users: int
    system: int = 600
    kinds: int = 20
    question: int = 80
    reply: int = 200
    turns: int = 6
    think_s: float = 45.0
    seed: int = 0


@dataclass(frozen=True)
class Turn:
    """One request.

    Args:
        prompt: Token ids.
        reply: Token ids that come back, if the model says what the plan has it say.
        anchors: Where turns end.
        names: Of the prompt's blocks, for a router.
        known: Tokens of the prompt that some replica has computed before.
        think_s: Seconds from the reply before it to this question.
        is_first: Of its conversation.
    """

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    anchors: tuple[int, ...]
    names: list[bytes]
    known: int
    think_s: float
    is_first: bool


class User:
    """Has one conversation after another.

    Args:
        plan: What all of them do.
        number: Which one this is.
    """

    def __init__(self, plan: Plan, number: int) -> None:
        self._plan = plan
        self._number = number

    def turns(self) -> Iterator[Turn]:
        """Requests without end; each comes when the reply before was thought about."""
        plan = self._plan
        chance = Random(f"{plan.seed}/{self._number}")
        count = 0
        while True:
            count += 1
            kind = chance.randrange(plan.kinds)
            text = array("i", _ids(f"{plan.seed}/kind {kind}", plan.system))
            anchors = [plan.system]
            known = plan.system
            for turn in range(_around(chance, plan.turns)):
                text.extend(chance.choices(range(VOCAB_SIZE), k=_around(chance, plan.question)))
                reply = tuple(chance.choices(range(VOCAB_SIZE), k=_around(chance, plan.reply)))
                yield Turn(
                    prompt=tuple(text),
                    reply=reply,
                    anchors=tuple(anchors),
                    names=self._names(kind, count, len(text)),
                    known=known,
                    think_s=chance.expovariate(1 / plan.think_s),
                    is_first=turn == 0,
                )
                text.extend(reply)
                known = len(text)
                anchors.append(len(text))

    def _names(self, kind: int, count: int, length: int) -> list[bytes]:
        """A name for each 64 tokens, as `block_names` gives one for each 256 bytes of text."""
        shared = self._plan.system // GRID
        names = [b"%d/%d" % (kind, block) for block in range(shared)]
        names += [
            b"%d/%d/%d" % (self._number, count, block) for block in range(shared, length // GRID)
        ]
        # what is behind the last whole block goes on in the next turn, and then is another
        return [*names, b"%d/%d/%d" % (self._number, count, -length)]


def _ids(seed: str, length: int) -> list[int]:
    return Random(seed).choices(range(VOCAB_SIZE), k=length)


def _around(chance: Random, mean: int) -> int:
    """Half as much to half more."""
    return max(1, round(mean * chance.uniform(0.5, 1.5)))
