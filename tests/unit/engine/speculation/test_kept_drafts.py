"""Drafts of replies that take the likeliest token are kept at once, as if drawn one by one."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from blazr.engine.engine import Engine
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.sequence import Sequence
from tests.support.drafts import GuessingDrafter, fake_engine
from tests.support.fake_model import GRID, VOCAB, next_token

pytestmark = pytest.mark.smoke

EVEN = 2  # requests of which the model tells what is likeliest

Ended = tuple[tuple[int, ...], object, int | None]


def answer(
    prompt: tuple[int, ...], params: SamplingParams, stop_ids: frozenset[int], *, drafts: bool
) -> tuple[Ended, Engine]:
    """A reply, why it ended and with which token; and who gave it."""
    drafter = GuessingDrafter(next_token, VOCAB, right=0.8) if drafts else None
    engine = fake_engine(drafter, grid=GRID)
    request = Request(prompt_ids=prompt, params=params, stop_ids=stop_ids)
    engine.add(request, request_id=EVEN, now=0.0, seed=0)
    tokens: list[int] = []
    while True:
        for output in engine.step(0.0):
            tokens += output.token_ids
            if output.finish_reason is not None:
                return (tuple(tokens), output.finish_reason, output.stop_id), engine


def test_replies_end_where_they_do_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Counter[bool]()
    at_once = Engine._append_if_nothing_ends

    def counted(self: Engine, sequence: Sequence, token_ids: tuple[int, ...]) -> bool:
        is_taken = at_once(self, sequence, token_ids)
        taken[is_taken] += 1
        return is_taken

    monkeypatch.setattr(Engine, "_append_if_nothing_ends", counted)
    rng = Random(3)
    reasons = Counter[object]()
    for _ in range(250):
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 9)))
        params = SamplingParams(
            temperature=0,
            max_tokens=(most := rng.randint(1, 30)),
            min_tokens=rng.randint(0, most) if rng.random() < 0.5 else 0,
            ignore_eos=rng.random() < 0.3,
            stop_token_ids=tuple(rng.sample(range(VOCAB), rng.randint(0, 1))),
        )
        stop_ids = frozenset(rng.sample(range(VOCAB), rng.randint(0, 1)))
        expected, _ = answer(prompt, params, stop_ids, drafts=False)
        found, engine = answer(prompt, params, stop_ids, drafts=True)
        assert found == expected
        assert engine.counts.generated_tokens == len(found[0])
        reasons[found[1]] += 1
    assert len(reasons) == 2, reasons
    assert min(taken[True], taken[False]) >= 20, taken
