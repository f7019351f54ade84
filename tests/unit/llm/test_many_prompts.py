"""Requests with many prompts: how their time runs, and how much of them is looked at in one go."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.reply import Reply
from blazr.llm.text_engine import TextEngine
from blazr.text.events import PromptDone
from tests.support.scripted import scripted_core, wait_until

LENGTH = 100


@pytest.fixture
def core() -> Iterator[TextEngine]:
    made = scripted_core()
    yield made
    made.close()


def reply_to(core: TextEngine, count: int, **more) -> Reply:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    requests = [
        GenerationRequest(prompt=[each + 1] * LENGTH, params=params, timeout_s=600.0, **more)
        for each in range(count)
    ]
    prepared = [core.prepare(each) for each in requests]
    return Reply(core.engine, core.tokenizer, prepared, notify=threading.Event().set)


def test_the_time_of_prompts_that_have_to_wait_runs(core: TextEngine) -> None:
    core.engine.max_unfinished = 1
    reply = reply_to(core, 4)
    while not reply.is_done:
        wait_until(lambda: reply.has_more or reply.is_starved)
        reply.take()
    first, *others = [each.timeout_s for each in core.engine.submitted]
    assert first == 600.0
    assert len(others) == 3
    assert [600.0, *others] == sorted({600.0, *others}, reverse=True)
    assert min(others) >= 0


def test_scores_of_many_prompts_are_not_read_in_one_go(core: TextEngine) -> None:
    reply = reply_to(core, 6)
    wait_until(lambda: not core.engine.num_running)
    found = []
    while not reply.is_done:
        found.append(sum(isinstance(each, PromptDone) for each in reply.take(LENGTH + 2)))
    assert found == [2, 2, 2]


@pytest.mark.parametrize("num_scored", [None, 1, 7, LENGTH + 1])
def test_scores_are_told_of_as_many_of_the_last_tokens_as_are_asked(
    core: TextEngine, num_scored: int | None
) -> None:
    reply = reply_to(core, 1, num_scored=num_scored)
    wait_until(lambda: reply.has_more)
    begin = reply.take()[0]
    assert isinstance(begin, PromptDone)
    assert len(begin.logprobs or ()) == min(num_scored or LENGTH, LENGTH)
