"""Samplers in an order of one's own, and penalties that look back no further than is wanted."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.core.errors import RequestError
from blazr.engine.sampling_params import SAMPLERS, SamplingParams
from tests.support.seeds import examples
from tests.unit.engine.test_sampling import VOCAB, logits_rows, sample, sequence_of, some_params

LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.0, *[-30.0] * (VOCAB - 4)]])


def drawn(num: int = 400, logits: torch.Tensor = LOGITS, **params) -> Counter[int]:
    """How often each token is drawn."""
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    rows = [sequence_of(seed=seed, **{**neutral, **params}) for seed in range(num)]
    found = sample(logits.expand(num, -1).contiguous(), rows)
    return Counter(each.token_id for each in found)


@settings(max_examples=examples(100), deadline=None)
@given(row=logits_rows, params=some_params, seed=st.integers(0, 10**6))
def test_the_usual_order_is_the_order_of_the_draw(row, params, seed):
    usual = sequence_of(output=(4, 4, 5), seed=seed, **params)
    named = sequence_of(output=(4, 4, 5), seed=seed, samplers=SAMPLERS, **params)
    assert sample(row[None], [usual]) == sample(row[None], [named])


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.lists(
        st.tuples(logits_rows, some_params, st.permutations(SAMPLERS)), min_size=1, max_size=4
    )
)
def test_a_batch_of_orders_is_each_row_alone(rows):
    sequences = [
        sequence_of(output=(4, 4, 5), samplers=tuple(order), **params) for _, params, order in rows
    ]
    logits = torch.stack([row for row, _, _ in rows])
    whole = sample(logits, sequences)
    for index, sequence in enumerate(sequences):
        assert sample(logits[index : index + 1], [sequence]) == [whole[index]]


def test_filters_see_what_the_ones_before_have_left():
    # probabilities are 0.57, 0.21, 0.13, 0.08; at a temperature of 2: 0.40, 0.24, 0.19, 0.15
    first = ("temperature", "top_p", "top_k", "min_p", "penalties")
    last = ("top_p", "temperature", "top_k", "min_p", "penalties")
    heat = {"temperature": 2.0, "top_p": 0.7}
    assert set(drawn(samplers=first, **heat)) == {0, 1, 2}
    assert set(drawn(samplers=last, **heat)) == {0, 1}
    # of two tokens the first has 0.73, of all 0.57
    both = {"top_k": 2, "top_p": 0.6}
    assert set(drawn(samplers=("top_k", "top_p", *last[1:2], "min_p", "penalties"), **both)) == {0}
    assert set(drawn(samplers=("top_p", "top_k", *last[1:2], "min_p", "penalties"), **both)) == {
        0,
        1,
    }


def test_penalties_may_come_after_the_filters():
    heavy = {"repetition_penalty": 100.0, "top_k": 1}
    logits = torch.zeros(1, VOCAB)
    # the prompt has 1
    logits[0, 1] = 3.0
    logits[0, 5] = 2.0
    rest = ("temperature", "top_p", "min_p")
    assert set(drawn(20, logits, samplers=("penalties", "top_k", *rest), **heavy)) == {5}
    assert set(drawn(20, logits, samplers=("top_k", "penalties", *rest), **heavy)) == {1}


def test_greedy_is_greedy_in_every_order():
    for order in permutations(SAMPLERS):
        params = {"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.2}
        assert set(drawn(2, samplers=order, **params)) == {0}


@pytest.mark.parametrize("temperature", [1e-30, 1e-39, 1e-300])
def test_a_temperature_near_zero_is_greedy_in_every_order(temperature):
    for order in permutations(SAMPLERS):
        assert set(drawn(2, 9 * LOGITS, samplers=order, temperature=temperature)) == {0}


@pytest.mark.parametrize("order", [("top_k",), (*SAMPLERS, "top_k"), (*SAMPLERS[:4], "typ_p")])
def test_orders_that_are_none(order):
    with pytest.raises(RequestError, match="samplers"):
        SamplingParams(samplers=order)


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 3.0), ("presence_penalty", 2.0), ("frequency_penalty", 2.0)],
)
def test_penalties_look_back_so_far(name, value):
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = 1.5
    logits[0, 8] = 1.0

    def likeliest(look_back: int) -> int:
        params = {"temperature": 0.0, name: value, "repeat_last_n": look_back}
        sequence = sequence_of(prompt=(1,), output=(7, 2, 3), **params)
        return sample(logits, [sequence])[0].token_id

    assert [likeliest(n) for n in (-1, 4, 3, 2, 1, 0)] == [8, 8, 8, 7, 7, 7]


def test_the_prompt_is_looked_back_at_too():
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = 1.5
    logits[0, 8] = 1.0
    params = {"temperature": 0.0, "repetition_penalty": 3.0}
    for look_back, token in ((3, 8), (2, 7)):
        sequence = sequence_of(prompt=(7, 2), output=(3,), repeat_last_n=look_back, **params)
        assert sample(logits, [sequence])[0].token_id == token


def test_ends_are_banned_however_short_the_look_back():
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = 5.0
    sequence = sequence_of(
        output=(3, 4), stop_ids=(9,), min_tokens=3, repeat_last_n=0, temperature=0.0
    )
    assert sample(logits, [sequence])[0].token_id != 9
