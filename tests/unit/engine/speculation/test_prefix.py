"""What followed in other replies that begin alike is proposed."""

from __future__ import annotations

import pytest

from blazr.engine.engine import Engine
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.speculation.prefix import PrefixDrafter
from tests.support.drafts import fake_engine

pytestmark = pytest.mark.smoke
GRID = 8


def answered(*salts: str) -> tuple[dict[int, list[int]], Engine]:
    """The same prompt for each salt, one after the other."""
    engine = fake_engine(PrefixDrafter(GRID), grid=GRID)
    replies: dict[int, list[int]] = {}
    for number, salt in enumerate(salts):
        params = SamplingParams(temperature=0, max_tokens=40)
        request = Request(prompt_ids=(1, 2, 3), params=params, cache_salt=salt)
        engine.add(request, request_id=number, now=0.0, seed=0)
        while engine.has_work():
            for output in engine.step(0.0):
                replies.setdefault(number, []).extend(output.token_ids)
    return replies, engine


def test_a_reply_given_before_is_drafted_whole() -> None:
    replies, engine = answered("", "")
    assert replies[0] == replies[1]
    stats = engine.stats()
    assert stats["kept_draft_tokens"] == stats["draft_tokens"] > 20


def test_replies_of_another_salt_are_not_seen() -> None:
    replies, engine = answered("one", "another")
    assert replies[0] == replies[1]
    assert engine.stats()["draft_tokens"] == 0
