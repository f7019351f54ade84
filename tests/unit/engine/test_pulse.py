"""How long a step may take before the engine counts as stalled."""

from __future__ import annotations

from math import inf

import pytest

from blazr.engine.pulse import FAILURES, STALL_FACTOR, STALL_S, UNKNOWN_S, Pulse


def allowed_s(pulse: Pulse, num_tokens: int) -> float:
    pulse.step(num_tokens)
    return pulse.allowed_s


def test_the_first_step_may_take_long():
    assert allowed_s(Pulse(), 512) == UNKNOWN_S


def test_steps_that_are_fast_have_stalled_after_two_seconds():
    pulse = Pulse()
    pulse.learn(16, 0.01)
    assert allowed_s(pulse, 1) == allowed_s(pulse, 16) == STALL_S


def test_a_slow_machine_has_longer():
    pulse = Pulse()
    pulse.learn(1, 3.0)
    assert allowed_s(pulse, 1) == STALL_FACTOR * 3.0


def test_a_long_prefill_is_judged_by_shorter_ones():
    pulse = Pulse()
    pulse.learn(16, 1.0)
    assert allowed_s(pulse, 512) == pytest.approx(STALL_FACTOR * 32.0)
    pulse.learn(512, 2.0)
    assert allowed_s(pulse, 512) == pytest.approx(STALL_FACTOR * 2.0)
    # and a step of one token by steps of few alone
    pulse.learn(1, 0.01)
    assert allowed_s(pulse, 1) == STALL_S


def test_a_step_that_was_held_up_is_forgotten():
    pulse = Pulse()
    pulse.learn(4, 1000.0)
    for _ in range(200):
        pulse.learn(4, 0.01)
    assert allowed_s(pulse, 4) == STALL_S


def test_recording_within_a_step_takes_long_and_rest_as_long_as_it_likes():
    pulse = Pulse()
    pulse.learn(1, 0.01)
    pulse.step(1)
    pulse.extend()
    assert pulse.allowed_s == UNKNOWN_S
    pulse.rest()
    assert pulse.allowed_s == inf
    pulse.extend()
    assert pulse.allowed_s == inf


def test_requests_that_fail_in_a_row_count_once_each():
    pulse = Pulse()
    for _ in range(2 * FAILURES):
        pulse.fail(1)
    assert not pulse.has_failed
    for number in range(FAILURES):
        pulse.fail(number)
    assert pulse.has_failed
    pulse.succeed()
    assert not pulse.has_failed
