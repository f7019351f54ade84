"""A reply that is read late, or seldom, takes little memory, and says the same."""

from __future__ import annotations

from functools import partial

import pytest

from blazr.engine.sampling_params import SamplingParams
from blazr.llm.generation import GenerationRequest
from blazr.llm.reply import MOST_WAITING, Reply
from blazr.llm.results import Completion, fold
from blazr.llm.text_engine import TextEngine
from tests.support.scripted import scripted_core, wait_until

WORDS = 5 * MOST_WAITING


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n": 3},
        {"logprobs": 2, "n": 2},
        {"stop": (f"n{3 * MOST_WAITING + 7} ",)},
    ],
)
def test_steps_that_wait_are_joined(params: dict[str, object]) -> None:
    core = scripted_core(text=" ".join(f"n{each}" for each in range(WORDS)), max_seq_len=9 * WORDS)
    asked = GenerationRequest(prompt="a", params=SamplingParams(max_tokens=8 * WORDS, **params))

    def answer(*, is_late: bool) -> tuple[list[Completion], int]:
        reply = Reply(core.engine, core.tokenizer, [core.prepare(asked)], notify=lambda: None)
        if is_late:
            wait_until(lambda: not core.engine.num_running)
        num_waiting = len(reply._inbox)
        events = []
        while not reply.is_done:
            events += reply.take()
        return fold(events), num_waiting

    early, _ = answer(is_late=False)
    late, num_waiting = answer(is_late=True)
    assert late == early
    num_tokens = sum(len(each.token_ids) for each in late)
    choices = asked.params.n
    assert num_waiting <= MOST_WAITING + choices * (len(core.engine.script) // MOST_WAITING + 3)
    assert num_tokens > 2 * num_waiting
    core.close()


def begin(core: TextEngine, asked: GenerationRequest, pause_s: float) -> tuple[Reply, list[None]]:
    """A reply, and a list that grows each time there is something to take."""
    calls: list[None] = []
    notify = partial(calls.append, None)
    prepared = [core.prepare(asked)]
    return Reply(core.engine, core.tokenizer, prepared, notify=notify, pause_s=pause_s), calls


def test_whoever_wants_whole_replies_is_not_woken_by_each_token() -> None:
    core = scripted_core(text=" ".join(f"n{each}" for each in range(WORDS)), max_seq_len=9 * WORDS)

    def num_woken(pause_s: float, **params: object) -> int:
        sampling = SamplingParams(max_tokens=8 * WORDS, **params)
        asked = GenerationRequest(prompt="a", params=sampling)
        reply, calls = begin(core, asked, pause_s)
        wait_until(lambda: not core.engine.num_running)
        events = reply.take()
        assert reply.is_done
        assert len(fold(events)[0].token_ids) > WORDS
        return len(calls)

    assert num_woken(0.0) > WORDS // MOST_WAITING
    assert num_woken(3600.0) == 2  # by the first token and the end
    assert num_woken(3600.0, stop=("never",)) > WORDS // MOST_WAITING
    core.close()


def test_steps_that_are_joined_are_told_of_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reply would run on long after what ends its turn."""
    now_s = 100.0
    monkeypatch.setattr("blazr.llm.reply.monotonic", lambda: now_s)
    core = scripted_core(text=" ".join(f"n{each}" for each in range(WORDS)), max_seq_len=9 * WORDS)
    asked = GenerationRequest(prompt="a", params=SamplingParams(max_tokens=8 * WORDS))
    core.engine.halts_after = MOST_WAITING + 1
    reply, calls = begin(core, asked, pause_s=1.0)
    wait_until(lambda: not core.engine.go.is_set())
    assert len(calls) == 1
    now_s += 1.0
    core.engine.halts_after = MOST_WAITING + 50
    core.engine.go.set()
    wait_until(lambda: not core.engine.go.is_set())
    assert len(reply._inbox) == MOST_WAITING
    assert len(calls) == 2
    reply.abort()
    core.close()
