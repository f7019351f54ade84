"""Which of several answers a model would give: log-probabilities of labels after a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Completion
from blazr.server.params import finite, scheduling
from blazr.server.service import Call
from blazr.text.messages import Message

MAX_LABELS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question.

    Args:
        messages: What ends with the question.
        labels: The answers to choose from.
    """

    messages: Sequence[Message]
    labels: Sequence[str]


class Ballot:
    """Questions on their way to probabilities.

    Every label is scored as the continuation of its question, so the questions' common beginning
    is read once.

    Args:
        call: The request they came with.
        asks: The questions.

    Raises:
        RequestError: There are too many labels, or one is empty.
    """

    def __init__(self, call: Call[object], asks: Sequence[Ask]) -> None:
        num_labels = sum(len(ask.labels) for ask in asks)
        if not 0 < num_labels <= MAX_LABELS or not all(x for ask in asks for x in ask.labels):
            raise RequestError(
                "the number of answers to choose from is out of range, or one is empty.",
                found=str(num_labels),
                expected=f"1 to {MAX_LABELS} in all",
            )
        self._call = call
        self._asks = asks
        self._num_tokens: list[int] = []

    async def requests(self) -> list[GenerationRequest]:
        """What to run: one request for each label of each question."""
        return await asyncio.to_thread(lambda: list(self._requests()))

    def _requests(self) -> Iterator[GenerationRequest]:
        core, common = self._call.service.llm.core, scheduling(self._call)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        for ask in self._asks:
            context = core.encode_chat(GenerationRequest(messages=ask.messages))
            for label in ask.labels:
                ids = core.tokenizer.encode(label)
                self._num_tokens.append(len(ids))
                yield GenerationRequest(prompt=[*context, *ids], params=params, **common)

    def probabilities(self, completions: Sequence[Completion]) -> list[list[float]]:
        """For each question the probability of each label; they sum to 1."""
        scores = iter(
            sum(finite(token.logprob or 0.0) for token in (each.prompt_logprobs or ())[-count:])
            for each, count in zip(completions, self._num_tokens, strict=True)
        )
        found = []
        for ask in self._asks:
            mine = [next(scores) for _ in ask.labels]
            weights = [exp(score - max(mine)) for score in mine]
            found.append([weight / sum(weights) for weight in weights])
        return found
