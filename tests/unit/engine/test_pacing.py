"""Prefill beside decoding takes what the promise leaves it, and never starves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazr.engine.pacing import MIN_TOKENS, Pacing

pytestmark = pytest.mark.smoke

BUDGET = 512


def pacing(share: float = 2.0) -> Pacing:
    return Pacing(share=share, token_budget=BUDGET)


def drive(
    pace: Pacing,
    *,
    decode_s: float,
    token_s: float,
    start_s: float = 0.0,
    first: int = BUDGET,
    num_plain: int = 0,
    steps: int = 60,
) -> float:
    """A machine with these costs under endless prefill; the length of its last step.

    Args:
        pace: Learns them.
        decode_s: Of the step without prefill.
        token_s: Of a token of a prompt.
        start_s: Of reading any.
        first: Tokens of the prompt that is read before anything decodes.
        num_plain: Steps without prefill behind that.
        steps: Those with prefill.
    """
    pace.learn(0, first, start_s + first * token_s)
    for _ in range(num_plain):
        pace.learn(8, 0, decode_s)
    seconds = 0.0
    for _ in range(steps):
        count = pace.prefill_budget(8)
        seconds = decode_s + start_s + count * token_s
        pace.learn(8, count, seconds)
    return seconds


@pytest.mark.parametrize("share", [1.5, 2.0, 3.0])
def test_a_step_with_prefill_is_share_times_one_without(share):
    pace = pacing(share)
    pace.learn(8, 0, 0.1)
    assert drive(pace, decode_s=0.1, token_s=0.0005) == pytest.approx(share * 0.1, rel=0.05)


@pytest.mark.parametrize("first", [BUDGET, 128, 4])
def test_where_reading_costs_much_before_the_first_token_it_reads_as_long_again(first):
    """As where steps with prefill are not recorded, and the model is small."""
    seconds = drive(
        pacing(1.75), decode_s=0.001, token_s=1e-4, start_s=0.004, first=first, num_plain=20
    )
    assert seconds == pytest.approx(0.001 + 2 * 0.004, rel=0.1)


def test_what_reading_costs_before_the_first_token_counts_as_the_rest_does():
    seconds = drive(pacing(1.75), decode_s=0.1, token_s=5e-4, start_s=0.02, num_plain=20)
    assert seconds == pytest.approx(1.75 * 0.1, rel=0.05)


def test_what_was_learned_long_ago_still_tells_the_first_token_from_the_rest():
    pace = pacing(1.75)
    seconds = drive(pace, decode_s=0.001, token_s=1e-4, start_s=0.004, num_plain=20, steps=20_000)
    assert seconds == pytest.approx(0.001 + 2 * 0.004, rel=0.1)


def test_steps_may_take_no_time_as_a_clock_sees_it():
    pace = pacing()
    drive(pace, decode_s=0.0, token_s=0.0, num_plain=3)
    assert MIN_TOKENS <= pace.prefill_budget(8) <= BUDGET


def test_no_step_has_many_more_tokens_than_any_before():
    """That many cost little more than a few is true only up to some number."""
    pace = pacing(1.75)
    pace.learn(8, 0, 0.01)
    for count in (8, 16, 32):
        assert pace.prefill_budget(8) <= count
        pace.learn(8, count, 0.02 + count * 1e-6)


def test_a_crowd_of_prompts_gets_up_to_twice_the_time():
    pace = pacing(1.75)
    pace.learn(0, BUDGET, BUDGET * 0.0005)
    pace.learn(8, 0, 0.1)
    assert pace.prefill_budget(8, 1) == pace.prefill_budget(8, 8) == pytest.approx(150, abs=1)
    assert pace.prefill_budget(8, 12) == pytest.approx(225, abs=1)
    assert pace.prefill_budget(8, 90) == pytest.approx(300, abs=1)


def test_more_sequences_decode_longer_though_no_step_is_without_prefill():
    pace = pacing(2.0)
    pace.learn(0, BUDGET, BUDGET * 0.001)
    pace.learn(1, 0, 0.011)
    for _ in range(50):
        count = pace.prefill_budget(30)
        pace.learn(30, count, 0.01 + 0.001 * (30 + count))
    assert count == pytest.approx(40, abs=4)


def test_it_learns_even_if_no_step_is_without_prefill():
    assert drive(pacing(), decode_s=0.1, token_s=0.0005) == pytest.approx(0.2, rel=0.1)


def test_steps_that_are_held_up_now_and_then_change_little():
    pace = pacing()
    pace.learn(0, BUDGET, BUDGET * 0.0005)
    for step in range(100):
        pace.learn(8, 0, 1.0 if step % 4 == 0 else 0.1)
    assert pace.prefill_budget(8) * 0.0005 == pytest.approx(0.1, rel=0.25)


@given(
    decode_s=st.floats(1e-4, 1.0),
    token_s=st.floats(1e-6, 0.1),
    share=st.floats(1.0, 4.0),
)
def test_prefill_goes_on_within_its_bounds(decode_s, token_s, share):
    pace = pacing(share)
    drive(pace, decode_s=decode_s, token_s=token_s)
    assert MIN_TOKENS <= pace.prefill_budget(8) <= BUDGET
