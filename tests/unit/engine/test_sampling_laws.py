"""Each sampling step against its definition in plain numbers, and who draws from what."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from blazr.engine.request import Request
from blazr.engine.sampling import steps
from blazr.engine.sampling.sampler import Draws, Sampler, _row_of, many_logprobs
from blazr.engine.sampling.steps import (
    NEVER,
    SAMPLING_STEPS,
    Row,
    SamplingStep,
    _step,
    in_order,
    surprises,
)
from blazr.engine.sampling_params import SAMPLERS, SamplingParams
from blazr.nn.ops.sampling import draw, uniform
from tests.support.seeds import examples, run_seed
from tests.unit.engine.test_sampling import NEUTRAL, VOCAB, logits_rows, sequence_of

CPU = torch.device("cpu")
ids = st.integers(0, VOCAB - 1)
texts = st.lists(ids, max_size=6).map(tuple)


def row_of(prompt=(), output=(), *, greedy: bool = False, **given_params) -> Row:
    """What a step sees; ``params`` are those of a request."""
    named = {"bad_words", "stop_ids", "chance", "breakers", "most_surprise", "num_output"}
    more = {name: given_params.pop(name) for name in named & given_params.keys()}
    params = {**NEUTRAL, **given_params}
    if greedy:
        params["temperature"] = 0.0
    bad_words = more.pop("bad_words", ())
    return Row(
        params=SamplingParams(**params),
        prompt=torch.tensor(prompt, dtype=torch.int64),
        output=torch.tensor(output, dtype=torch.int64),
        num_output=more.pop("num_output", len(output)),
        stop_ids=more.pop("stop_ids", ()),
        history=(*prompt, *output),
        num_prompt=len(prompt),
        bad_words=bad_words,
        **more,
    )


def apply(name: str, scores: torch.Tensor, row: Row) -> list[float]:
    """The step's scores; it is asked for, and leaves those it was given as they were."""
    step = SAMPLING_STEPS[name]
    assert step.name == name
    assert step.wanted(row)
    before = scores.clone()
    found = step.apply(scores, row)
    assert torch.equal(scores, before)
    assert found.shape == scores.shape
    assert found.dtype == torch.float32
    return found.tolist()


def kept(found: list[float]) -> set[int]:
    return {place for place, score in enumerate(found) if score > NEVER}


def near(values: list[float]) -> object:
    return pytest.approx(values, rel=1e-5, abs=1e-5)


def shares(scores: torch.Tensor) -> list[float]:
    """Probabilities, by their definition."""
    values = [math.exp(each - float(scores.max())) for each in scores.tolist()]
    return [each / sum(values) for each in values]


def falling(scores: torch.Tensor) -> list[int]:
    """Places by falling score, the first of equals first."""
    return sorted(range(len(scores)), key=lambda place: -float(scores[place]))


def fewest(order: list[int], chances: list[float], wanted: float) -> set[int]:
    """The fewest of these, in order, whose chances sum to so much; not where it is a close call."""
    total, found = 0.0, set()
    for place in order:
        found.add(place)
        total += chances[place]
        assume(abs(total - wanted) > 1e-9 or wanted == 0)
        if total >= wanted:
            break
    return found


@given(scores=logits_rows, bias=st.dictionaries(ids, st.floats(-100, 100, width=32), min_size=1))
def test_a_bias_is_added(scores, bias):
    found = apply("bias", scores, row_of(logit_bias=bias))
    assert found == near([s + bias.get(place, 0) for place, s in enumerate(scores.tolist())])


@given(scores=logits_rows, allowed=st.sets(ids, min_size=1))
def test_only_what_is_allowed_stays(scores, allowed):
    found = apply("allowed", scores, row_of(allowed_token_ids=tuple(allowed)))
    right = [s if place in allowed else NEVER for place, s in enumerate(scores.tolist())]
    assert found == right


@given(
    scores=logits_rows,
    history=st.lists(st.integers(0, 2), max_size=5),
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1),
)
def test_no_bad_word_is_finished(scores, history, words):
    found = apply("bad_words", scores, row_of(history, bad_words=tuple(words)))
    banned = {
        place for place in range(VOCAB) for word in words
        if (*history, place)[-len(word) :] == word and len(word) <= len(history) + 1
    }  # fmt: skip
    assert kept(found) == set(range(VOCAB)) - banned


@given(scores=logits_rows, stops=st.sets(ids, min_size=1), done=st.integers(0, 4))
def test_a_reply_does_not_end_before_its_least_length(scores, stops, done):
    row = row_of(min_tokens=3, stop_ids=tuple(stops), num_output=done)
    assert SAMPLING_STEPS["min_tokens"].wanted(row) == (done < 3)
    if done < 3:
        found = apply("min_tokens", scores, row)
        right = [NEVER if place in stops else s for place, s in enumerate(scores.tolist())]
        assert found == right
    without = row_of(min_tokens=3, num_output=0)
    assert not SAMPLING_STEPS["min_tokens"].wanted(without)


@given(scores=logits_rows, prompt=texts, output=texts, penalty=st.sampled_from([0.5, 1.7]))
def test_penalties_are_of_what_came(scores, prompt, output, penalty):
    row = row_of(prompt, output, repetition_penalty=penalty)
    divided = [
        s if place not in {*prompt, *output} else s / penalty if s > 0 else s * penalty
        for place, s in enumerate(scores.tolist())
    ]
    assert apply("penalties", scores, row) == near(divided)
    times = Counter(output)
    for name, factor in (("presence", lambda n: n > 0), ("frequency", lambda n: n)):
        row = row_of(prompt, output, **{f"{name}_penalty": penalty})
        assert SAMPLING_STEPS["penalties"].wanted(row) == bool(output)
        if output:
            right = [s - penalty * factor(times[at]) for at, s in enumerate(scores.tolist())]
            assert apply("penalties", scores, row) == near(right)


@given(
    scores=logits_rows,
    history=st.lists(st.integers(0, 2), max_size=12),
    look_back=st.sampled_from([-1, 0, 1, 2, 5, 30]),
    least=st.integers(1, 3),
)
def test_dry_grows_with_the_length_of_what_is_repeated(scores, history, look_back, least):
    row = row_of(
        history, dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=least,
        dry_penalty_last_n=look_back,
    )  # fmt: skip
    seen = history if look_back < 0 else history[len(history) - min(look_back, len(history)) :]
    right = scores.tolist()
    for token in set(seen):
        lengths = [
            length
            for place in range(1, len(seen))
            if seen[place] == token
            for length in range(1, place + 1)
            if seen[place - length : place] == seen[len(seen) - length :]
        ]
        if max(lengths, default=0) >= least:
            right[token] -= 0.5 * 2.0 ** (max(lengths) - least)
    assert apply("dry", scores, row) == near(right)


@given(scores=logits_rows, many=st.floats(0.1, 3))
def test_top_n_sigma_is_of_the_standard_deviation(scores, many):
    scores = scores.index_fill(0, torch.tensor([3]), NEVER)  # what is banned counts for nothing
    values = [each for each in scores.tolist() if each > NEVER]
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((each - mean) ** 2 for each in values) / len(values))
    least = max(values) - many * spread
    assume(all(abs(each - least) > 1e-4 for each in values))
    found = apply("top_n_sigma", scores, row_of(top_n_sigma=many))
    assert kept(found) == {place for place, each in enumerate(scores.tolist()) if each > least}


@given(scores=logits_rows, wanted=st.floats(0.01, 0.99))
def test_typical_p_keeps_the_fewest_of_the_expected_surprise(scores, wanted):
    chances = shares(scores)
    expected = -sum(each * math.log(each) for each in chances if each)
    distance = [abs(-math.log(each) - expected) if each else math.inf for each in chances]
    order = sorted(range(VOCAB), key=lambda place: distance[place])
    near_equal = pairwise(order)
    assume(all(abs(distance[a] - distance[b]) > 1e-6 for a, b in near_equal))
    found = apply("typical_p", scores, row_of(typical_p=wanted))
    assert kept(found) == fewest(order, chances, wanted)


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
def test_of_many_tokens_the_same_are_kept_when_only_the_first_are_sorted(spread, monkeypatch):
    torch.manual_seed(run_seed())
    scores = (torch.randn(3000) * spread).mul(8).round().div(8)  # some are equal
    scores[torch.rand(3000) < 0.3] = NEVER
    for share in (0.01, 0.5, 0.99, 0.999999):
        row = row_of(typical_p=share, top_p=share, samplers=SAMPLERS)
        found = [apply(name, scores, row) for name in ("typical_p", "top_p")]
        with monkeypatch.context() as patch:
            patch.setattr(steps, "_FIRST_SORTED", 3000)
            assert [apply(name, scores, row) for name in ("typical_p", "top_p")] == found


# two whose chances are equal, though their scores are not
@example(scores=torch.tensor([0.0, *range(1, VOCAB - 1), 1e-30]), least=0.0)
@given(scores=logits_rows, least=st.floats(0, 0.6))
def test_xtc_leaves_the_least_likely_of_the_likely(scores, least):
    chances = shares(scores)
    assume(all(abs(each - least) > 1e-9 for each in chances))
    likely = [place for place in falling(scores) if chances[place] >= least]
    row = row_of(xtc_probability=0.5, xtc_threshold=least, chance=0.49)
    assert kept(apply("xtc", scores, row)) == set(range(VOCAB)) - set(likely[:-1])


@pytest.mark.parametrize(("chance", "is_wanted"), [(0.0, True), (0.49, True), (0.5, False)])
def test_xtc_comes_as_often_as_is_asked(chance, is_wanted):
    row = row_of(xtc_probability=0.5, xtc_threshold=0.1, chance=chance)
    assert SAMPLING_STEPS["xtc"].wanted(row) == is_wanted


@given(scores=logits_rows, limit=st.floats(0.1, 9), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_mirostat_keeps_what_surprises_no_more(scores, limit, temperature):
    bits = [-math.log2(each or 5e-324) for each in shares(scores / temperature)]
    assume(all(abs(each - limit) > 1e-5 for each in bits))
    likely = {place for place, each in enumerate(bits) if each <= limit}
    row = row_of(mirostat=2, temperature=temperature, most_surprise=limit)
    found = apply("mirostat", scores, row)
    assert kept(found) == (likely or {int(scores.argmax())})
    exact = [pytest.approx(each, rel=1e-6, abs=1e-6) for each in bits if each < 60]
    assert [each for each in surprises(scores, temperature).tolist() if each < 60] == exact


@given(
    scores=logits_rows,
    k=st.integers(1, VOCAB + 2),
    p=st.floats(0, 0.99),
    least=st.floats(0.001, 1),
    temperature=st.sampled_from([0.25, 0.7, 1.0, 2.0]),
)
def test_filters_in_an_order_of_ones_own(scores, k, p, least, temperature):
    ordered = {"samplers": SAMPLERS, "temperature": temperature}
    found = apply("temperature", scores, row_of(**ordered))
    assert found == near([each / temperature for each in scores.tolist()])
    order, chances = falling(scores), shares(scores)
    assert kept(apply("top_k", scores, row_of(top_k=k, **ordered))) == set(order[:k])
    right = fewest(order, chances, p)
    assert kept(apply("top_p", scores, row_of(top_p=p, **ordered))) == right
    assume(all(abs(each / max(chances) - least) > 1e-6 for each in chances[1:]))
    right = {place for place, each in enumerate(chances) if each >= least * max(chances)}
    right.add(order[0])
    assume(all(abs(each / max(chances) - least) > 1e-6 or each == max(chances) for each in chances))
    assert kept(apply("min_p", scores, row_of(min_p=least, **ordered))) == right


FILTERS = {
    "top_n_sigma": {"top_n_sigma": 1.0},
    "typical_p": {"typical_p": 0.5},
    "xtc": {"xtc_probability": 1.0},
    "mirostat": {"mirostat": 2},
    "temperature": {"samplers": SAMPLERS},
    "top_k": {"samplers": SAMPLERS, "top_k": 3},
    "top_p": {"samplers": SAMPLERS, "top_p": 0.5},
    "min_p": {"samplers": SAMPLERS, "min_p": 0.5},
}


@pytest.mark.parametrize("name", FILTERS)
def test_what_is_greedy_is_not_filtered(name):
    wanted = SAMPLING_STEPS[name].wanted
    assert wanted(row_of(**FILTERS[name]))
    assert not wanted(row_of(greedy=True, **FILTERS[name]))


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p"])
def test_the_draw_s_own_filters_are_steps_only_in_an_order_of_ones_own(name):
    named = {"top_k": 3, "top_p": 0.5, "min_p": 0.5, "temperature": 0.5}
    assert SAMPLING_STEPS[name].wanted(row_of(samplers=SAMPLERS, **named))
    assert not SAMPLING_STEPS[name].wanted(row_of(**named))
    neutral = row_of(samplers=SAMPLERS)
    assert SAMPLING_STEPS[name].wanted(neutral) == (name == "temperature")


def test_steps_of_no_sampler_come_first_and_in_their_own_order():
    steps = list(SAMPLING_STEPS.values())
    free = [step.name for step in steps if not step.sampler]
    for samplers in (SAMPLERS, SAMPLERS[::-1]):
        names = [step.name for step in in_order(steps, samplers)]
        assert names[: len(free)] == free
        assert names[len(free) :] == list(samplers)


def test_a_step_is_named_by_its_function():
    def wanted(row):
        return True

    def halve_step(scores, row):
        return scores / 2

    assert _step("top_k", wanted=wanted)(halve_step) == SamplingStep(
        "halve", "top_k", wanted, halve_step
    )


def test_processors_see_the_reply_and_may_change_what_they_get():
    seen = []

    def halve(ids, scores):
        seen.append(ids)
        scores /= 2
        return scores

    def add(ids, scores):
        seen.append(ids)
        return scores + 1

    # what the context had no room for is forgotten
    row = row_of((1, 2), (3, 4, 5), num_output=9, logits_processors=(halve, add))
    assert apply("processors", torch.full((4,), 6.0), row) == [4.0] * 4
    assert seen == [[3, 4, 5], [3, 4, 5]]


some_rows = st.lists(
    st.tuples(
        logits_rows,
        st.sampled_from(
            [
                {"temperature": 0.0},
                {"temperature": 0.0, "logprobs": 2},
                {"temperature": 0.0, "logit_bias": {3: 5.0}},
                {"temperature": 0.9, "logprobs": 0},
                {"temperature": 0.9, "top_k": 3},
                {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 1.0},
                {"temperature": 1.0, "repetition_penalty": 1.5, "repeat_last_n": 2},
                {"temperature": 1.0, "samplers": SAMPLERS[::-1]},
            ]
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(250), deadline=None)
@given(
    drawn=some_rows,
    order=st.randoms(use_true_random=False),
    banned=st.sets(st.integers(-2, VOCAB + 3), max_size=4),
    count=st.integers(1, 5),
)
def test_whoever_draws_gets_what_they_would_alone(drawn, order, banned, count):
    """In whatever order the rows are asked for, and beside rows that cannot be drawn from."""
    logits = torch.stack([row for row, _, _ in drawn])
    for place, (_, _, is_unsound) in enumerate(drawn):
        if is_unsound:
            logits[place, place] = math.nan
    before = logits.clone()
    places = order.sample(range(len(drawn)), min(count, len(drawn)))

    def sequences():
        return [
            sequence_of(output=(4, 4, 5), seed=place, **params)
            for place, (_, params, _) in enumerate(drawn)
        ]

    sampler = Sampler(VOCAB, sorted(banned), CPU)
    own = sequences()
    found = sampler.draws(logits).draw([(place, own[place]) for place in places])
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    assert len(found) == len(places)
    for place, result in zip(places, found, strict=True):
        (other,) = [s for at, s in enumerate(sequences()) if at == place]
        alone = sampler.draws(logits[place : place + 1]).draw([(0, other)])
        assert alone == [result]
        assert (result.error is not None) == (result.token_id == -1) == drawn[place][2]
        if result.error is None:
            assert result.token_id not in banned
            check_draw(before[place], sequences()[place], banned, result)


def check_draw(scores, sequence, banned, result) -> None:
    """A draw is that of the scores that are left, with this place's own number."""
    params = sequence.request.params
    free = scores.clone()
    free[[each for each in banned if 0 <= each < VOCAB]] = NEVER
    logs = scores.log_softmax(-1)
    if params.logprobs is None:
        assert result.logprobs is None
    else:
        assert result.logprobs.token_id == result.token_id
        assert result.logprobs.logprob == pytest.approx(float(logs[result.token_id]), abs=1e-5)
        best = falling(logs)[: params.logprobs]
        assert [each for each, _ in result.logprobs.top] == best
    if params.logit_bias:
        free[3] += 5.0
    if params.is_greedy:
        assert result.token_id == int(free.argmax())
    elif not params.has_mirostat and not params.has_penalties and not params.samplers:
        point = uniform(sequence.seed, len(sequence.tokens))
        wishes = torch.tensor([[params.temperature, params.top_k, params.top_p, 0.0, point]])
        assert result.token_id == int(draw(free[None], wishes.double()))


class Watched(Sampler):
    """Keeps what it was asked to draw from."""

    def __init__(self) -> None:
        super().__init__(VOCAB, (), CPU)
        self.asked: list[torch.Tensor] = []

    def draw_rows(self, logits, sequences):
        self.asked.append(logits)
        return super().draw_rows(logits, sequences)


def test_scores_are_not_copied_where_all_rows_are_drawn_from():
    sampler, logits = Watched(), torch.randn(3, VOCAB)
    own = [sequence_of(**NEUTRAL) for _ in range(3)]
    Draws(sampler, logits, [0, 0, 0]).draw(list(enumerate(own)))
    assert sampler.asked[0] is logits
    Draws(sampler, logits, [0, 0, 0]).draw([(2, own[2]), (1, own[1]), (0, own[0])])
    assert torch.equal(sampler.asked[1], logits.flip(0))
    greedy = sequence_of(temperature=0.0)
    Draws(sampler, logits, [0, 0, 0]).draw([(0, greedy)])
    assert len(sampler.asked) == 2


def test_what_was_banned_is_told():
    sampler = Sampler(VOCAB, [-1, 2, VOCAB], CPU)
    assert sampler.banned == {2}
    assert sampler.banned_ids.tolist() == [2]


@given(scores=st.lists(logits_rows, min_size=1, max_size=3), num_top=st.integers(0, VOCAB + 2))
def test_log_probabilities_of_tokens_and_of_the_likeliest(scores, num_top):
    logits = torch.stack(scores)
    chosen = [place % VOCAB for place in range(5, 5 + len(scores))]
    for row, token, entry in zip(
        scores, chosen, many_logprobs(logits, chosen, num_top), strict=True
    ):
        assert entry.token_id == token
        logs = [math.log(each) if each else -math.inf for each in shares(row)]
        assert entry.logprob == pytest.approx(logs[token], abs=1e-4)
        order = falling(row.log_softmax(-1))[:num_top]  # scores that differ little become equal
        assert [each for each, _ in entry.top] == order
        assert [each for _, each in entry.top] == pytest.approx([logs[i] for i in order], abs=1e-4)
        assert dict(entry.top).get(token, entry.logprob) == entry.logprob


LOOKS = [
    {},
    {"logprobs": 3},
    {"min_tokens": 3},
    {"min_tokens": 4},
    {"logit_bias": {1: 1.0}},
    {"samplers": SAMPLERS},
    {"dry_multiplier": 1.0},
    {"xtc_probability": 0.5},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.5, "repeat_last_n": 0},
    {"repetition_penalty": 1.5, "repeat_last_n": 1},
    {"repetition_penalty": 1.5, "repeat_last_n": 3},
    {"frequency_penalty": 0.5, "repeat_last_n": 5},
    {"frequency_penalty": 0.5, "repeat_last_n": 50},
]


@pytest.mark.parametrize("params", LOOKS, ids=str)
@pytest.mark.parametrize("dropped", [0, 2])
def test_steps_see_what_they_look_at(params, dropped):
    """A row that asks for none is no row; penalties see the latest tokens, by whose they are."""
    sequence = sequence_of(prompt=(1, 2, 3, 4), output=(5, 6, 7), seed=9, stop_ids=(8,), **params)
    sequence.most_surprise = 2.5
    if dropped:  # of a reply beyond the context, as `forget_oldest` does
        del sequence.tokens[1 : 1 + dropped]
        sequence.num_dropped, sequence.num_prompt_left = dropped, 4 - dropped
    asks = {"logit_bias", "samplers", "dry_multiplier", "xtc_probability"} & params.keys()
    is_early = params.get("min_tokens", 0) > 3
    row = _row_of(sequence)
    has_penalties = any(name.endswith("penalty") for name in params)
    assert (row is not None) == bool(asks or is_early or has_penalties)
    if row is None:
        return
    tokens = sequence.tokens.tolist()
    most = params.get("repeat_last_n", -1) if has_penalties else 0
    start = 0 if most < 0 else len(tokens) - min(most, len(tokens))
    prompt = tokens[: 4 - dropped]
    assert row.prompt.tolist() == prompt[start:]
    assert row.output.tolist() == tokens[max(start, len(prompt)) :]
    assert row.prompt.dtype == row.output.dtype == torch.int64
    assert (list(row.history), row.num_output) == (tokens, 3)
    assert (row.stop_ids, row.most_surprise) == ((8,), 2.5)
    assert row.params is sequence.request.params


def test_steps_draw_with_a_number_of_their_own():
    """Uniform, another for each token and seed, and none that the draw itself takes."""
    found = set()
    for seed in range(40):
        for length in range(1, 6):
            sequence = sequence_of(
                prompt=(1,) * length, output=(2,), seed=seed, logit_bias={1: 1.0}
            )
            row = _row_of(sequence)
            assert row is not None
            found |= {row.chance, uniform(seed, length + 1)}
    assert len(found) == 2 * 40 * 5
    assert 0 <= min(found) < 0.05
    assert 0.95 < max(found) < 1


def test_ends_and_words_reach_the_steps():
    request = Request(
        prompt_ids=(1, 2),
        params=SamplingParams(stop_token_ids=(5, 6), min_tokens=2, bad_words=("x",)),
        stop_ids=frozenset({7}),
        dry_breakers=frozenset({3}),
        bad_words=((4, 5),),
    )
    row = _row_of(replace(sequence_of(prompt=(1, 2)), request=request))
    assert row is not None
    assert sorted(row.stop_ids) == [5, 6, 7]
    assert (row.breakers, row.bad_words) == ({3}, ((4, 5),))


@given(scores=logits_rows, seed=st.integers(0, 99), eta=st.sampled_from([0.1, 1.0]))
def test_mirostat_follows_what_was_drawn(scores, seed, eta):
    sequence = sequence_of(
        temperature=0.8, mirostat=2, mirostat_tau=1.5, mirostat_eta=eta, seed=seed
    )
    before = sequence.most_surprise
    assert before == 3.0
    (found,) = Sampler(VOCAB, (), CPU).draws(scores[None]).draw([(0, sequence)])
    bits = float(surprises(torch.tensor(apply_mirostat(scores, before)), 0.8)[found.token_id])
    assert found.most_surprise == pytest.approx(before - eta * (bits - 1.5))
    assert sequence.most_surprise == before  # until the token is taken


def apply_mirostat(scores, limit) -> list[float]:
    row = row_of(mirostat=2, temperature=0.8, most_surprise=limit)
    return apply("mirostat", scores, row)
