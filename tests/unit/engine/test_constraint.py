"""Constraints in the engine: masks, ends, forced tokens; alone, in a batch, after a preemption."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.engine.outputs import FinishReason
from tests.support.constrained import Automaton, RandomScores, ask, drain, engine_over
from tests.support.seeds import examples

VOCAB = 40
EOS = 39


def chain(*tokens: int) -> Automaton:
    """Exactly these tokens."""
    moves = [{token: i + 1} for i, token in enumerate(tokens)]
    return Automaton([*moves, {}], {len(tokens)}, vocab_size=VOCAB)


@st.composite
def automata(draw):
    """Some steps, each with one token or several, and loops; it may end early."""
    length = draw(st.integers(1, 12))
    moves = []
    for state in range(length):
        tokens = draw(st.sets(st.integers(0, EOS - 1), min_size=1, max_size=3))
        if draw(st.booleans()):
            tokens = set(list(tokens)[:1])
        back = draw(st.integers(0, state)) if len(tokens) > 1 else state + 1
        moves.append(dict.fromkeys(tokens, state + 1) | {max(tokens): back})
        if len(tokens) > 1:
            moves[-1][min(tokens)] = state + 1
    ends = {length} | draw(st.sets(st.integers(1, length), max_size=2))
    return Automaton([*moves, {}], ends, vocab_size=VOCAB)


def tokens_of(outputs) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def reply(constraint, *, liked=(), **params):
    """One reply alone: its outputs."""
    engine = engine_over(RandomScores(VOCAB, liked))
    ask(engine, constraint, 1, **{"stop_ids": (EOS,), "max_tokens": 60, **params})
    return drain(engine)[1, 0]


@given(automata(), st.sampled_from([0.0, 1.0]), st.integers(1, 30))
@settings(max_examples=examples(60))
def test_a_reply_is_in_the_language_and_ends_only_where_it_may(automaton, temperature, most):
    outputs = reply(automaton, temperature=temperature, max_tokens=most)
    tokens = tokens_of(outputs)
    reason = outputs[-1].finish_reason
    if reason is FinishReason.STOP:
        assert automaton.accepts(tokens)
    else:
        assert reason is FinishReason.LENGTH
        assert len(tokens) == most
    state = 0
    for token in tokens:
        state = automaton.moves[state][token]


@given(automata(), st.sampled_from([0.0, 1.0]), st.integers(0, 3))
@settings(max_examples=examples(40))
def test_forced_tokens_change_nothing_but_the_number_of_steps(automaton, temperature, seed):
    params = {"temperature": temperature, "seed": seed}
    at_once = reply(automaton, **params)
    one_by_one = reply(automaton, **params, logprobs=0)
    unaware = automaton.fork()
    unaware.forces = False
    assert tokens_of(at_once) == tokens_of(one_by_one) == tokens_of(reply(unaware, **params))
    assert at_once[-1].finish_reason == one_by_one[-1].finish_reason
    assert len(at_once) <= len(one_by_one)
    assert all(len(output.logprobs) == len(output.token_ids) for output in one_by_one)


def test_a_forced_run_is_one_step():
    model = RandomScores(VOCAB)
    engine = engine_over(model)
    ask(engine, chain(3, 1, 4, 1, 5), 1)
    (outputs,) = drain(engine).values()
    assert [output.token_ids for output in outputs] == [(3, 1, 4, 1, 5)]
    assert model.num_drawn == 1
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].stop_id is None


def test_a_forced_run_stops_at_the_limit():
    outputs = reply(chain(*range(20)), max_tokens=7)
    assert tokens_of(outputs) == list(range(7))
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_a_forced_run_stops_before_a_token_that_ends_the_reply():
    outputs = reply(chain(1, 2, 3, 4), stop_token_ids=(3,))
    assert tokens_of(outputs) == [1, 2]
    assert (outputs[-1].finish_reason, outputs[-1].stop_id) == (FinishReason.STOP, 3)


def test_the_end_token_ends_where_it_may_however_much_it_is_liked():
    automaton = Automaton([{7: 1}, {8: 2}, {9: 2}], {2}, vocab_size=VOCAB)
    outputs = reply(automaton, liked=(EOS,), temperature=0.0)
    assert tokens_of(outputs) == [7, 8]
    assert outputs[-1].stop_id == EOS
    assert outputs[-1].stop_logprobs is None
    (*_, last) = reply(automaton, liked=(EOS,), temperature=0.0, logprobs=0)
    assert last.stop_logprobs.token_id == last.stop_id == EOS


def test_min_tokens_and_ignore_eos_keep_a_reply_going():
    automaton = Automaton([{7: 0}], {0}, vocab_size=VOCAB)
    at_will = len(tokens_of(reply(automaton, liked=(EOS,), temperature=0.0)))
    outputs = reply(automaton, liked=(EOS,), temperature=0.0, min_tokens=at_will + 1)
    assert at_will < len(tokens_of(outputs)) < 60
    assert outputs[-1].stop_id == EOS
    outputs = reply(automaton, liked=(EOS,), ignore_eos=True, max_tokens=9)
    assert tokens_of(outputs) == [7] * 9


@given(automata(), st.integers(1, 4))
@settings(max_examples=examples(40))
def test_every_choice_has_a_state_of_its_own_and_a_batch_changes_nothing(automaton, choices):
    alone = [tokens_of(reply(automaton, seed=5, n=choices))]
    engine = engine_over(RandomScores(VOCAB))
    ask(engine, automaton, 1, seed=5, n=choices, stop_ids=(EOS,), max_tokens=60)
    ask(engine, chain(1, 2, 3), 2)
    ask(engine, None, 3, max_tokens=12)
    together = drain(engine)
    assert tokens_of(together[1, 0]) == alone[0]
    assert tokens_of(together[2, 0]) == [1, 2, 3]
    free = engine_over(RandomScores(VOCAB))
    ask(free, None, 3, max_tokens=12)
    assert tokens_of(together[3, 0]) == tokens_of(drain(free)[3, 0])
    for index in range(choices):
        outputs = together[1, index]
        if outputs[-1].finish_reason is FinishReason.STOP:
            assert automaton.accepts(tokens_of(outputs))
    assert automaton.state == 0, "the request's own constraint stays at its beginning"


@given(automata(), st.lists(st.booleans(), min_size=1, max_size=12))
@settings(max_examples=examples(40))
def test_a_preempted_reply_goes_on_in_its_state(automaton, preempts):
    alone = tokens_of(reply(automaton))
    engine = engine_over(RandomScores(VOCAB), budget=3)
    ask(engine, automaton, 1, stop_ids=(EOS,), max_tokens=60)
    outputs = []
    for turn in range(1000):
        if not engine.has_work():
            break
        outputs += engine.step(0.0)
        # not for ever: a long reply would be read again from one preemption to the next
        is_due = preempts[turn % len(preempts)] and turn % 5 == 0 and turn < 100
        if is_due and engine.scheduler.running:
            engine.scheduler.preempt(engine.scheduler.running[0])
    assert tokens_of(outputs) == alone


class Failing(Automaton):
    """Fails in one of its methods after the first token."""

    def __init__(self, method: str) -> None:
        super().__init__([dict.fromkeys(range(EOS), 0)], set(), vocab_size=VOCAB)
        self.method = method
        self.count = 0

    def fork(self):
        return Failing(self.method)

    def fill_mask(self, mask) -> None:
        self.fail("fill_mask")
        super().fill_mask(mask)

    def forced(self):
        self.fail("forced")
        return []

    def accept(self, token_id: int) -> None:
        self.fail("accept")
        self.count += 1

    def fail(self, method: str) -> None:
        if self.method == method and self.count:
            raise OverflowError("too many states")


@pytest.mark.parametrize("method", ["fill_mask", "forced", "accept"])
def test_a_failing_constraint_ends_its_own_reply_alone(method):
    engine = engine_over(RandomScores(VOCAB))
    ask(engine, Failing(method), 1, max_tokens=20)
    ask(engine, chain(5, 6, 7, 8), 2)
    outputs = drain(engine)
    assert outputs[1, 0][-1].finish_reason is FinishReason.ERROR
    assert outputs[1, 0][-1].error == "OverflowError: too many states"
    assert tokens_of(outputs[2, 0]) == [5, 6, 7, 8]


def test_a_broken_model_is_not_hidden_by_a_mask():
    model = RandomScores(VOCAB)
    model.bonus[11] = float("nan")
    engine = engine_over(model)
    ask(engine, chain(1, 2), 1)
    (outputs,) = drain(engine).values()
    assert outputs[-1].finish_reason is FinishReason.ERROR
    assert "no finite score" in (outputs[-1].error or "")
