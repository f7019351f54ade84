"""Every sampling step does what it says, and a row of a batch is that row alone."""

from __future__ import annotations

from array import array
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.core.errors import RequestError
from blazr.engine.request import Request
from blazr.engine.sampling.sampler import Sampled, Sampler, many_logprobs, sampled_token
from blazr.engine.sampling.steps import SAMPLING_STEPS, Row
from blazr.engine.sampling_params import SAMPLERS, SamplingParams
from blazr.engine.sequence import Sequence
from blazr.nn.ops.sampling import uniform, uniforms
from tests.support.seeds import examples

VOCAB = 12
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def sequence_of(prompt=(1, 2, 3), output=(), *, seed: int = 0, stop_ids=(), **params) -> Sequence:
    request = Request(
        prompt_ids=tuple(prompt), params=SamplingParams(**params), stop_ids=frozenset(stop_ids)
    )
    tokens = array("i", [*prompt, *output])
    return Sequence(
        request_id=1,
        request=request,
        index=0,
        order=(0, 1, 0),
        tokens=tokens,
        seed=seed,
        max_length=100,
        max_output=100,
    )


def sample(logits, sequences, banned=()) -> list[Sampled]:
    """A token for each row."""
    draws = Sampler(VOCAB, banned, torch.device("cpu")).draws(logits)
    return draws.draw(list(enumerate(sequences)))


def row_of(prompt=(1, 2, 3), output=(), stop_ids=(), **params) -> Row:
    return Row(
        SamplingParams(**{**NEUTRAL, **params}),
        torch.tensor(prompt, dtype=torch.int64),
        torch.tensor(output, dtype=torch.int64),
        len(output),
        tuple(stop_ids),
    )


logits_rows = st.lists(
    st.floats(-20, 20, width=32), min_size=VOCAB, max_size=VOCAB, unique=True
).map(torch.tensor)
some_params = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.01, 0.7, 1.0, 2.0]),
        "top_p": st.sampled_from([0.0, 0.3, 0.9, 1.0]),
        "top_k": st.integers(0, VOCAB + 3),
        "min_p": st.sampled_from([0.0, 0.1, 1.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.4]),
    }
)


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.lists(st.tuples(logits_rows, some_params, st.integers(0, 9)), min_size=1, max_size=6)
)
def test_a_batch_is_each_row_alone(rows):
    sequences = [sequence_of(output=(4, 4, 5), seed=seed, **params) for _, params, seed in rows]
    logits = torch.stack([row for row, _, _ in rows])
    together = sample(logits, sequences)
    for index, sequence in enumerate(sequences):
        assert sample(logits[index : index + 1], [sequence]) == [together[index]]


@settings(max_examples=examples(60), deadline=None)
@given(row=logits_rows, top_p=st.floats(0, 1), top_k=st.integers(0, 20), min_p=st.floats(0, 1))
def test_temperature_zero_is_argmax_whatever_the_filters(row, top_p, top_k, min_p):
    sequence = sequence_of(temperature=0, top_p=top_p, top_k=top_k, min_p=min_p)
    assert sample(row[None], [sequence])[0].token_id == int(row.argmax())


# By name of a step, parameters that ask for it.
ASKS = {
    "bias": {"logit_bias": {1: 1.0}},
    "allowed": {"allowed_token_ids": (1,)},
    "bad_words": {"bad_words": ("a",)},
    "min_tokens": {"min_tokens": 1},
    "penalties": {"repetition_penalty": 1.1},
    "dry": {"dry_multiplier": 0.5},
    "processors": {"logits_processors": (lambda _, scores: scores,)},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "typical_p": {"typical_p": 0.5},
    "xtc": {"xtc_probability": 0.5},
    "mirostat": {"mirostat": 2},
    **{name: {"samplers": SAMPLERS} for name in ("temperature", "top_k", "top_p", "min_p")},
}


@pytest.mark.parametrize("name", SAMPLING_STEPS)
def test_who_asks_for_a_step_is_not_drawn_without_it(name):
    """A new step needs a row above, and its field a place in `has_rules` or its like."""
    assert not SamplingParams(**ASKS[name]).draws_plainly


@pytest.mark.parametrize("step", SAMPLING_STEPS.values(), ids=lambda step: step.name)
def test_neutral_parameters_ask_for_nothing(step):
    assert not step.wanted(row_of(output=(4, 4)))


def test_a_seed_repeats_and_another_differs():
    logits = torch.zeros(1, VOCAB)

    def draw(seed: int) -> list[int]:
        history: list[int] = []
        for _ in range(20):
            sequence = sequence_of(output=history, seed=seed, **NEUTRAL)
            history.append(sample(logits, [sequence])[0].token_id)
        return history

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_draws_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, *[-9.0] * (VOCAB - 3)]])
    counts = torch.zeros(VOCAB)
    for seed in range(4000):
        sequence = sequence_of(seed=seed * 7919, **NEUTRAL)
        counts[sample(logits, [sequence])[0].token_id] += 1
    assert torch.allclose(counts / 4000, logits[0].softmax(-1), atol=0.03)


def test_uniform_is_uniform():
    values = torch.tensor([uniform(seed, position) for seed in range(60) for position in range(60)])
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    assert abs(float(values.mean()) - 0.5) < 0.02
    assert abs(float(values.var()) - 1 / 12) < 0.01


def test_top_k_and_top_p_keep_what_they_should():
    logits = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.1] + [1e-9] * (VOCAB - 4)))[None]
    drawn = {"top_k": set(), "top_p": set(), "min_p": set()}
    for seed in range(400):
        for name, value in (("top_k", 2), ("top_p", 0.7), ("min_p", 0.4)):
            sequence = sequence_of(seed=seed, **{**NEUTRAL, name: value})
            drawn[name].add(sample(logits, [sequence])[0].token_id)
    assert drawn == {"top_k": {0, 1}, "top_p": {0, 1}, "min_p": {0, 1}}


def test_penalties():
    repetition = SAMPLING_STEPS["penalties"].apply(
        torch.tensor([2.0, -2.0, 1.0, 1.0]), row_of((0, 1), (2,), repetition_penalty=2.0)
    )
    assert repetition.tolist() == [1.0, -4.0, 0.5, 1.0]
    presence = SAMPLING_STEPS["penalties"].apply(
        torch.zeros(4), row_of((0,), (2, 2, 3), presence_penalty=1.5)
    )
    assert presence.tolist() == [0.0, 0.0, -1.5, -1.5]
    frequency = SAMPLING_STEPS["penalties"].apply(
        torch.zeros(4), row_of((0,), (2, 2, 3), frequency_penalty=0.5)
    )
    assert frequency.tolist() == [0.0, 0.0, -1.0, -0.5]


def test_banned_ids_are_never_drawn():
    logits = torch.arange(VOCAB, dtype=torch.float32)[None]
    banned = [VOCAB - 1, VOCAB + 50]
    assert sample(logits, [sequence_of(temperature=0)], banned)[0].token_id == VOCAB - 2
    drawn = {
        sample(logits, [sequence_of(seed=s, **NEUTRAL)], range(1, VOCAB))[0].token_id
        for s in range(50)
    }
    assert drawn == {0}


@pytest.mark.parametrize(
    "wish", [{"temperature": 0}, NEUTRAL, {"logprobs": 0}, {"allowed_token_ids": (2,)}]
)
def test_a_model_that_wants_banned_ids_alone_is_unsound(wish):
    """As where the device draws: what it is told is the same."""
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, 2] = 1.0
    (found,) = sample(logits, [sequence_of(**wish)], [2])
    assert found == sampled_token(-1)
    logits[0, 3] = 0.0
    (found,) = sample(logits, [sequence_of(allowed_token_ids=(2,))], [2])
    assert found.is_refusal
    assert found.error != sampled_token(-1).error


def test_bias_and_min_tokens():
    logits = torch.arange(VOCAB, dtype=torch.float32)[None]
    biased = sequence_of(temperature=0, logit_bias={3: 50.0})
    assert sample(logits, [biased])[0].token_id == 3
    early = sequence_of(temperature=0, min_tokens=2, stop_ids=[VOCAB - 1])
    assert sample(logits, [early])[0].token_id == VOCAB - 2
    late = sequence_of(output=(1, 1), temperature=0, min_tokens=2, stop_ids=[VOCAB - 1])
    assert sample(logits, [late])[0].token_id == VOCAB - 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_unsound_row_fails_alone(bad):
    logits = torch.zeros(2, VOCAB)
    logits[0, 5] = bad
    logits[1, 2] = 1.0
    first, second = sample(logits, [sequence_of(), sequence_of(temperature=0)])
    assert first.error is not None
    assert second.token_id == 2


def test_logprobs_come_from_one_array():
    logits = torch.randn(2, VOCAB)
    best, other = many_logprobs(logits, [int(logits[0].argmax()), 7], 3)
    assert best.top[0] == (best.token_id, best.logprob)
    assert len(best.top) == 3
    assert best.logprob == pytest.approx(float(logits[0].log_softmax(-1).max()))
    assert other.logprob == float(logits[1].log_softmax(-1)[7])
    assert many_logprobs(logits, [0, 0], 0)[1].top == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 3), ("temperature", -0.1), ("temperature", float("nan")), ("top_p", 1.5),
        ("max_tokens", -2), ("n", 0), ("n", 10**9), ("top_k", -2), ("repetition_penalty", 0),
        ("repetition_penalty", 0.009), ("repetition_penalty", 101),
        ("logprobs", 21), ("stop", ("",)), ("stop", ("x",) * 17), ("logit_bias", {1: 101.0}),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_no_more_tokens_are_wanted_than_there_may_be():
    with pytest.raises(RequestError, match="max_tokens \\(5\\)"):
        SamplingParams(min_tokens=6, max_tokens=5)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(
            (name, 1.5, "a whole number")
            for name in ("max_tokens", "top_k", "n", "seed", "logprobs")
        ),
        *(
            (name, 5, "texts")
            for name in ("stop", "bad_words", "dry_sequence_breakers", "samplers")
        ),
        ("stop", ["a", 5], "texts"),
        ("bad_words", [["a"]], "texts"),
        ("stop_token_ids", 5, "ids of tokens"),
        ("stop_token_ids", ["a"], "ids of tokens"),
        ("allowed_token_ids", [1.0], "ids of tokens"),
        ("logits_processors", ["a"], "functions"),
        ("logit_bias", [1], "number"),
        ("logit_bias", {"1": 1}, "number"),
        ("logit_bias", {1: "1"}, "number"),
        ("grammar", "a+", "regex"),
        ("structured_outputs", {"regex": "a+"}, "StructuredOutputsParams("),
        *((name, "no", "True or False") for name in ("ignore_eos", "speculate", "include_stop")),
        ("skip_special_tokens", [], "True or False"),
    ],
    ids=str,
)
def test_values_of_another_type_are_refused_by_name(name, value, expected):
    """In Python; what comes over HTTP has its types. Some failed in the middle of a step."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert expected in caught.value.expected


def test_type_checkers_let_lists_through():
    types = {each.name: each.type for each in fields(SamplingParams)}
    for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logits_processors"):
        assert types[name].startswith("Sequence[")


def test_lists_may_be_arrays_and_flags_numpy_s():
    params = SamplingParams(
        stop=np.array(["a"]), stop_token_ids=torch.tensor([1, 2]), ignore_eos=np.bool_(True)
    )
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("a",), (1, 2), True)
    assert type(params.stop_token_ids[0]) is int


def test_none_is_the_default_where_it_has_no_other_meaning():
    """As vLLM's callers pass what was not given."""
    names = [each.name for each in fields(SamplingParams)]
    assert SamplingParams(**dict.fromkeys(names)) == SamplingParams(max_tokens=None)


def test_one_text_is_a_list_of_one():
    params = SamplingParams(stop="ab", bad_words="cd", dry_sequence_breakers="ef")
    assert (params.stop, params.bad_words) == (("ab",), ("cd",))
    assert params.dry_sequence_breakers == ("ef",)


def test_uniforms_of_many_are_those_of_each():
    seeds = [0, 1, -1, 1234567, 2**63 - 1, -(2**63), 0x632BE59BD9B4E019]
    pairs = [(seed, position) for seed in seeds for position in (0, 1, 77, 2**40)]
    many = uniforms(*torch.tensor(pairs).unbind(1))
    assert many.tolist() == [uniform(*pair) for pair in pairs]


def test_random_numbers_are_those_of_splitmix64():
    """The reference's first outputs for this seed."""
    right = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    found = tuple(uniform(1234567, position) for position in range(3))
    assert found == tuple((each >> 11) / 2**53 for each in right)
