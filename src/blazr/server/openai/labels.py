"""Which of several answers a model would give: log-probabilities of labels after a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from time import monotonic

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.results import Usage
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError
from blazr.server.params import finite
from blazr.server.run import Run
from blazr.text.messages import Message

MAX_LABELS = 1024
MAX_TOKENS = 2**22  # of all prompts; each holds the beginning that the questions share


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelQuestion:
    """A question, and the answers to choose from.

    Args:
        messages: What ends with the question.
        labels: The answers.
    """

    messages: Sequence[Message]
    labels: Sequence[str]


async def label_probabilities(
    call: Call[object],
    questions: Sequence[LabelQuestion],
    *,
    param: str,
    context: Sequence[Message] = (),
) -> tuple[list[list[float]], Usage]:
    """For each question the probabilities of its labels, which sum to 1, and what that cost.

    Every label is scored as the continuation of its question, so the questions' common beginning
    is read once.

    Args:
        call: Who asks.
        questions: The questions.
        param: The field that they are made of.
        context: Messages before each of them.

    Raises:
        RequestError: There are too many labels, or tokens in all, or a label is
            empty or there twice.
        HttpError: 408, it takes too long.
    """
    started_s = monotonic()
    _check_labels(questions, param)
    requests = await asyncio.to_thread(
        _scoring_requests, call, questions, context, param=param, started_s=started_s
    )
    run = await Run.start(call, requests)
    completions, usage = await run.result()
    scores = iter(
        sum(finite(token.logprob or 0.0) for token in each.prompt_logprobs or ())
        for each in completions
    )
    probabilities = []
    for question in questions:
        own = [next(scores) for _ in question.labels]
        weights = [exp(score - max(own)) for score in own]
        probabilities.append([weight / sum(weights) for weight in weights])
    return probabilities, usage


def _check_labels(questions: Sequence[LabelQuestion], param: str) -> None:
    labels = [label for question in questions for label in question.labels]
    if not 0 < len(labels) <= MAX_LABELS or not all(labels):
        raise RequestError(
            "the number of answers to choose from is out of range, or one is empty.",
            param=param,
            found=str(len(labels)),
            expected=f"1 to {MAX_LABELS} in all",
        )
    for question in questions:
        if len(set(question.labels)) < len(question.labels):
            twice = max(question.labels, key=question.labels.count)
            raise RequestError(
                "an answer to choose from is there twice.", param=param, found=repr(twice)[:100]
            )


def _scoring_requests(
    call: Call[object],
    questions: Sequence[LabelQuestion],
    context: Sequence[Message],
    *,
    param: str,
    started_s: float,
) -> list[GenerationRequest]:
    """One request for each label, which is scored as the end of its prompt."""
    core = call.llm.core
    common = call.scheduling()
    longest_s = common["timeout_s"]
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    requests: list[GenerationRequest] = []
    num_tokens = 0
    for question in questions:
        common["timeout_s"] = longest_s - (monotonic() - started_s)
        if common["timeout_s"] <= 0:
            raise HttpError(408, "the request took too long.", code="generation_timeout")
        messages = [*context, *question.messages]
        ids = core.encode_chat(GenerationRequest(messages=messages))
        for label in question.labels:
            answer = core.tokenizer.encode(label)
            prompt = [*ids, *answer]
            num_tokens += len(prompt)
            if num_tokens > MAX_TOKENS:
                raise RequestError(
                    "the questions with each of their answers are too long.",
                    param=param,
                    expected=f"at most {MAX_TOKENS:,} tokens in all, the input in each of them",
                    hint="ask fewer at once, or of a shorter input",
                )
            requests.append(
                GenerationRequest(
                    prompt=prompt, params=params, num_scored=len(answer) or 1, **common
                )
            )
    return requests
