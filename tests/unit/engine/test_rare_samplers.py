"""The samplers that few ask for: what each leaves out, and that it does nothing unless asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blazr.core.errors import RequestError
from blazr.engine.sampling.steps import repetitions
from blazr.engine.sampling_params import RANGES, SamplingParams
from tests.support.seeds import examples
from tests.unit.engine.test_sampler_order import drawn
from tests.unit.engine.test_sampling import VOCAB, sample, sequence_of

# probabilities 0.5, 0.25, 0.125, 0.0625, ...
HALVES = torch.tensor([[-0.6931 * place for place in range(VOCAB)]])


def test_top_n_sigma_keeps_what_is_near_the_largest() -> None:
    logits = torch.tensor([[10.0, 9.0, 8.0, *[0.0] * (VOCAB - 3)]])
    spread = float(logits.std(correction=0))
    assert set(drawn(200, logits, top_n_sigma=1.5 / spread, temperature=2.0)) == {0, 1}
    assert set(drawn(200, logits, top_n_sigma=0.1)) == {0}
    for off in (-1, 0):
        assert drawn(200, logits, top_n_sigma=off) == drawn(200, logits)


def test_typical_p_leaves_out_what_is_too_likely_and_what_is_too_unlikely() -> None:
    # 0.4 each for two, the rest small: their surprise is far above what is expected
    logits = torch.tensor([[0.0, 0.0, *[-4.0] * (VOCAB - 2)]])
    assert set(drawn(200, logits, typical_p=0.5)) == {0, 1}
    # of halves the expected surprise is 2 bits: that of the second token
    assert set(drawn(200, HALVES, typical_p=0.2)) == {1}
    assert drawn(200, HALVES, typical_p=1.0) == drawn(200, HALVES)


def test_xtc_leaves_out_the_likeliest_but_the_last_of_them() -> None:
    assert set(drawn(300, HALVES, xtc_probability=1.0, xtc_threshold=0.2)).isdisjoint({0})
    found = drawn(300, HALVES, xtc_probability=1.0, xtc_threshold=0.1)
    assert found[0] == found[1] == 0 < found[2]
    assert drawn(100, HALVES, xtc_probability=1.0, xtc_threshold=0.6) == drawn(100, HALVES)
    part = drawn(1000, HALVES, xtc_probability=0.5, xtc_threshold=0.2)[0]
    assert 150 < part < 350  # half of 500, within six standard deviations


def test_mirostat_leaves_out_what_surprises_too_much() -> None:
    # the limit begins at twice the surprise wanted; tokens surprise by 1, 2, 3, ... bits
    assert set(drawn(200, HALVES, mirostat=2, mirostat_tau=1.0)) == {0, 1}
    assert set(drawn(200, HALVES, mirostat=2, mirostat_tau=1.0, top_k=1)) == {0, 1}
    assert set(drawn(200, HALVES, mirostat=2, mirostat_tau=0.1)) == {0}
    assert drawn(200, HALVES, mirostat=0, mirostat_tau=0.1) == drawn(200, HALVES)


@pytest.mark.parametrize("wanted", [0.7, 1.2])
def test_mirostat_holds_the_surprise(wanted: float) -> None:
    """Of a thousand tokens in the mean, whatever the scores are."""
    chance = torch.Generator().manual_seed(5)
    sequence = sequence_of(
        temperature=1.0, mirostat=2, mirostat_tau=wanted, mirostat_eta=0.1, max_tokens=10_000
    )
    total = 0.0
    for _ in range(1000):
        logits = 2 * torch.randn(1, VOCAB, generator=chance)
        (found,) = sample(logits, [sequence])
        assert found.most_surprise is not None
        sequence.tokens.append(found.token_id)
        total += wanted + (sequence.most_surprise - found.most_surprise) / 0.1
        sequence.most_surprise = found.most_surprise
    assert abs(total / 1000 - wanted) < 0.1


def test_greedy_stays_greedy() -> None:
    rare = {"mirostat": 2, "xtc_probability": 1.0, "typical_p": 0.1, "top_n_sigma": 1.0}
    assert set(drawn(3, HALVES, temperature=0.0, **rare)) == {0}


def likeliest(logits: torch.Tensor, **given: object) -> int:
    return sample(logits, [sequence_of(temperature=0.0, **given)])[0].token_id


def test_only_allowed_ids_come() -> None:
    assert likeliest(HALVES, allowed_token_ids=(3, 7)) == 3
    assert set(drawn(50, HALVES, allowed_token_ids=[4, 5])) <= {4, 5}


def test_what_rules_out_every_token_is_the_request_s_fault() -> None:
    banned = sequence_of(allowed_token_ids=(4,))
    banned.request = replace(banned.request, bad_words=((4,),))
    ends = sequence_of(allowed_token_ids=(4,), min_tokens=5, stop_ids=(4,))
    for found in sample(HALVES.repeat(2, 1), [banned, ends]):
        assert found.is_refusal
        assert "no token" in (found.error or "")
    (found,) = sample(HALVES * torch.nan, [sequence_of()])
    assert not found.is_refusal
    assert "finite" in (found.error or "")


def test_xtc_counts_no_token_that_is_ruled_out() -> None:
    for threshold in (0.0, 1e-320):
        asked = {"xtc_probability": 1.0, "xtc_threshold": threshold}
        assert set(drawn(50, HALVES, top_n_sigma=1e-9, **asked)) == {0}
        assert set(drawn(50, HALVES, typical_p=0.0, **asked)) == {1}


_FILTERS = {
    name: st.sampled_from([low, high, (low + high) // 2]) | st.integers(low, high)
    if name in {"top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n"}
    else st.sampled_from([low, high, max(low, 1e-320), max(low, 1e-9)]) | st.floats(low, high)
    for name, (low, high) in takewhile(lambda row: row[0] != "seed", RANGES.items())
    if name != "mirostat"
} | {"mirostat": st.sampled_from([0, 2])}


@settings(max_examples=examples(400), deadline=None)
@given(
    params=st.fixed_dictionaries({}, optional=_FILTERS),
    logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=VOCAB, max_size=VOCAB),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=60),
    allowed=st.none() | st.integers(0, VOCAB - 1).map(lambda token: (token,)),
)
def test_penalties_and_filters_always_leave_a_token(
    params: dict[str, float],
    logits: list[float],
    output: list[int],
    allowed: tuple[int, ...] | None,
) -> None:
    """Whatever their values are within their ranges, and if only one token may come at all."""
    sequence = sequence_of(output=output, seed=5, allowed_token_ids=allowed, **params)
    (found,) = sample(torch.tensor([logits]), [sequence])
    assert found.error is None
    assert found.token_id in (allowed or range(VOCAB))


def test_processors_have_the_last_word_before_the_filters() -> None:
    seen = []

    def swap(ids, scores):
        seen.append(ids)
        scores[0] = -100.0
        return scores

    assert likeliest(HALVES, output=(5, 6), logits_processors=[swap]) == 1
    assert seen == [[5, 6]]


def test_dry_is_harder_on_longer_repetitions() -> None:
    history = (1, 2, 3, 9, 8, 1, 2)
    assert repetitions(history, set()) == {3: 2}
    assert repetitions(history, {2}) == {}
    assert repetitions(history, {1}) == {3: 1}
    assert repetitions((4, 4, 4, 4), set()) == {4: 3}
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 5] = 1.0, 0.5
    ask = {"prompt": history[:3], "output": history[3:], "dry_multiplier": 0.8}
    assert likeliest(logits, **ask) == 5
    assert likeliest(logits, dry_allowed_length=3, **ask) == 3
    assert likeliest(logits, dry_penalty_last_n=3, **ask) == 3


@settings(max_examples=examples(200), deadline=None)
@given(history=st.lists(st.integers(0, 3), max_size=30), breakers=st.sets(st.integers(0, 3)))
def test_repetitions_are_those_that_are_there(history: list[int], breakers: set[int]) -> None:
    expected: dict[int, int] = {}
    for place in range(len(history) - 1):
        length = 0
        while length <= place and history[place - length] == history[-1 - length]:
            if history[place - length] in breakers:
                break
            length += 1
        token = history[place + 1]
        if length and token not in breakers:
            expected[token] = max(expected.get(token, 0), length)
    assert repetitions(history, breakers) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("typical_p", 1.5),
        ("mirostat", 1),
        ("mirostat_eta", 2.0),
        ("xtc_probability", -0.1),
        ("dry_base", 0.5),
        ("dry_multiplier", float("nan")),
        ("bad_words", [""]),
        ("bad_words", ["a"] * 1000),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
    ],
)
def test_values_out_of_range(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_a_seed_gives_the_same_whatever_else_is_sampled() -> None:
    rng = Random(5)
    rows = [
        {"xtc_probability": 0.5, "xtc_threshold": 0.05, "dry_multiplier": 0.5, "seed": number}
        for number in range(6)
    ]
    logits = torch.tensor([[rng.gauss(0, 2) for _ in range(VOCAB)] for _ in rows])
    sequences = [sequence_of(output=(1, 2, 1), **row) for row in rows]
    together = sample(logits, sequences)
    alone = [sample(logits[i : i + 1], [each])[0] for i, each in enumerate(sequences)]
    assert together == alone
