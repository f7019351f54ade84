"""The promise: a request's tokens depend neither on who else runs nor on its memory's past.

For every layer mix each prompt is answered alone by a fresh engine. Then it is answered among
strangers, from a cached prefix, cut at random places, preempted, forked, and with neighbours that
leave. Tokens must be equal, logits within 1e-5 of their scale. Free memory holds NaN throughout.
"""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest
import torch

from blazr.core import env
from blazr.engine.outputs import FinishReason
from blazr.nn.kernels.cpu import compiled
from blazr.nn.operands.step import GRID
from tests.support.constrained import Automaton
from tests.support.drafts import (
    GuessingDrafter,
    compute_drafts,
    most_drafts,
)
from tests.support.examples import LENGTH_MIXES, MIXES, STORED_MIXES
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.seeds import run_seed

pytestmark = pytest.mark.sample

MAX_TOKENS = 10


# Sums that torch rounds otherwise beside other sequences may become other numbers of fewer bits.
_EXACT = pytest.mark.skipif(
    bool(compiled.missing()) or env.get("BLAZR_KERNELS") == "reference",
    reason="torch's operations are not exact",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every law of every mix; what else these are stored in takes turns with laws."""
    if "lab_of" in metafunc.fixturenames:
        law = sum(metafunc.function.__name__.encode())
        stored = [
            pytest.param(name, marks=[_EXACT, *[pytest.mark.slow] * ((law + number) % 2)])
            for number, name in enumerate(STORED_MIXES)
        ]
        mixes = [*MIXES, *LENGTH_MIXES, *stored]
        metafunc.parametrize("lab_of", mixes, indirect=True, scope="module")


@pytest.fixture(scope="module")
def lab_of(request):
    """Makes engines over a network."""
    mix, stored = STORED_MIXES.get(request.param, (request.param, {}))
    model = build_network((MIXES | LENGTH_MIXES)[mix], seed=3)
    return partial(Lab, model, **stored)


def prompts_of(count: int, seed: int) -> list[list[int]]:
    rng = random.Random(run_seed(seed))
    base = [rng.randrange(VOCAB) for _ in range(200)]
    prompts = []
    for _ in range(count):
        shared = rng.choice([0, 0, 64, 100, 128])
        own = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 90))]
        prompts.append(base[:shared] + own)
    return prompts


@pytest.fixture(scope="module")
def alone(lab_of):
    """Each prompt answered by an engine of its own."""
    answers = []
    for prompt in prompts_of(6, seed=1):
        lab = lab_of(max_running=1, tokens=512, budget=1024, prefix_cache=False)
        request = lab.ask(prompt, max_tokens=MAX_TOKENS)
        lab.run()
        answers.append((prompt, *lab.answer(request)))
    return answers


def agree(answer, expected) -> None:
    tokens, logits = answer
    _, expected_tokens, expected_logits = expected
    assert tokens == expected_tokens
    scale = expected_logits.abs().max()
    for row, wanted in zip(logits, expected_logits, strict=True):
        assert (row - wanted).abs().max() <= 1e-5 * max(1.0, float(scale))


def test_among_strangers(lab_of, alone):
    lab = lab_of()
    asked = [lab.ask(prompt, max_tokens=MAX_TOKENS) for prompt, *_ in alone]
    lab.run()
    for request, expected in zip(asked, alone, strict=True):
        agree(lab.answer(request), expected)


def test_from_a_cached_prefix(lab_of, alone):
    lab = lab_of()
    for _ in range(2):
        asked = [lab.ask(prompt, max_tokens=MAX_TOKENS) for prompt, *_ in alone]
        lab.run()
    for request, expected in zip(asked, alone, strict=True):
        agree(lab.answer(request), expected)
        assert lab.cached[request] == (len(expected[0]) - 1) // 64 * 64


def test_a_prefix_of_a_short_reply_is_not_that_of_a_long_one():
    """Where the length a sequence may reach decides how it is rotated."""
    model = build_network(LENGTH_MIXES["turned by length"], seed=3)
    prompt = random.Random(run_seed(5)).choices(range(VOCAB), k=65)
    lab = Lab(model)
    for max_tokens, cached in ((4, 0), (4, 64), (60, 0), (60, 64), (4, 64)):
        request = lab.ask(prompt, max_tokens=max_tokens)
        lab.run()
        fresh = Lab(model, max_running=1, prefix_cache=False)
        reference = fresh.ask(prompt, max_tokens=max_tokens)
        fresh.run()
        agree(lab.answer(request), (prompt, *fresh.answer(reference)))
        assert lab.cached[request] == cached


def test_cut_at_random_places(lab_of, alone):
    rng = random.Random(run_seed(2))
    lab = lab_of(budget=rng.randint(3, 90))
    pending = list(alone)
    asked = []
    while pending or lab.engine.has_work():
        if pending and rng.random() < 0.4:
            expected = pending.pop()
            asked.append((lab.ask(expected[0], max_tokens=MAX_TOKENS), expected))
        lab.step(prefill_budget=rng.choice([1, 5, 17, 64, None]))
    for request, expected in asked:
        agree(lab.answer(request), expected)


def test_with_drafts_that_are_rejected(lab_of, alone):
    """As speculation would: each reply goes back to any token since its checkpoint, often."""
    rng = random.Random(run_seed(8))
    lab = lab_of()
    asked = [lab.ask(prompt, max_tokens=MAX_TOKENS) for prompt, *_ in alone]
    rejected = 0
    while lab.engine.has_work():
        lab.step()
        for sequence in [each for each in lab.scheduler.running if each.num_output]:
            history, most = sequence.tokens[:], most_drafts(lab.memory, sequence)
            if most < 0 or rng.random() < 0.5:
                continue
            drafts = rng.choices(range(VOCAB), k=rng.randint(0, min(most, 9)))
            assert compute_drafts(lab.scheduler, lab.execute, sequence, drafts)
            edge, last = sequence.computed // 64 * 64, len(history) - 1
            length = rng.choice([last, rng.randint(edge, last)])
            lab.memory.truncate(sequence, length)
            sequence.tokens.extend(history[length:])
            rejected += len(drafts)
    assert rejected > 50
    for request, expected in zip(asked, alone, strict=True):
        agree(lab.answer(request), expected)
        if not compiled.missing():
            tokens, logits = lab.answer(request)
            assert torch.equal(logits[-len(tokens) :], expected[2])


def test_preempted_and_resumed(lab_of, alone):
    rng = random.Random(run_seed(3))
    lab = lab_of(budget=70)
    asked = [lab.ask(prompt, max_tokens=MAX_TOKENS) for prompt, *_ in alone]
    preempted = 0
    while lab.engine.has_work():
        lab.step()
        running = lab.scheduler.running
        if running and rng.random() < 0.8 and preempted < 60:
            lab.scheduler.preempt(rng.choice(running))
            preempted += 1
    assert preempted >= 8
    for request, expected in zip(asked, alone, strict=True):
        agree(lab.answer(request), expected)


def test_forked(lab_of, alone):
    lab = lab_of()
    asked = [lab.ask(prompt, max_tokens=MAX_TOKENS, n=3) for prompt, *_ in alone[:5]]
    lab.run()
    for request, expected in zip(asked, alone, strict=False):
        for index in range(3):
            agree(lab.answer(request, index), expected)


def test_replies_to_one_prompt_compute_it_once(lab_of, alone):
    for expected in alone[:3]:
        lab = lab_of()
        request = lab.ask(expected[0], max_tokens=MAX_TOKENS, n=4)
        lab.run()
        new = sum(len(lab.answer(request, index)[0]) - 1 for index in range(4))
        assert lab.engine.counts.computed_tokens == len(expected[0]) + new


def test_neighbours_cancelled(lab_of, alone):
    rng = random.Random(run_seed(4))
    lab = lab_of(budget=60)
    asked = [lab.ask(prompt, max_tokens=MAX_TOKENS) for prompt, *_ in alone]
    strangers = [lab.ask(prompt, max_tokens=40) for prompt in prompts_of(12, seed=9)]
    while lab.engine.has_work():
        lab.step()
        if strangers and rng.random() < 0.5:
            lab.take(lab.engine.abort(strangers.pop()))
    for request, expected in zip(asked, alone, strict=True):
        agree(lab.answer(request), expected)


def in_memory_for_a_tenth(lab, prompts):
    """All finish, in spite of preemptions, and no token is wrong."""
    asked = [lab.ask(prompt, max_tokens=MAX_TOKENS) for prompt, *_ in prompts]
    for step in itertools.count():
        if not lab.engine.has_work():
            break
        lab.step()
        if step % 5 == 0 and lab.scheduler.running:  # besides those that memory forces
            lab.scheduler.preempt(lab.scheduler.running[-1])
    assert lab.scheduler.counts.preempted > 0
    for request, expected in zip(asked, prompts, strict=True):
        agree(lab.answer(request), expected)


def test_in_memory_for_a_tenth(lab_of, alone):
    in_memory_for_a_tenth(lab_of(max_running=12, tokens=4 * 64, budget=512), alone)


def test_with_drafts_grammars_and_stops(lab_of, alone):
    """In a batch with preemption: replies that follow a grammar, and that end at a token."""
    moves = {state: dict.fromkeys(range(state, VOCAB, 3), (state + 1) % 3) for state in range(3)}
    asked_for = []
    for place, (prompt, tokens, _) in enumerate(alone):
        if place % 2:
            shape, stops = Automaton(moves, set(), vocab_size=VOCAB), range(1, VOCAB, 9)
        else:
            shape, stops = None, [each for each in tokens[3:5] if each != tokens[0]]
        asked_for.append((prompt, shape, tuple(stops)))

    def ask_all(lab):
        return [
            lab.ask(
                prompt,
                max_tokens=MAX_TOKENS,
                constraint=shape and shape.fork(),
                stop_token_ids=stops,
            )
            for prompt, shape, stops in asked_for
        ]

    plain = lab_of()
    asked = ask_all(plain)
    plain.run()
    expected = [
        (prompt, *plain.answer(request))
        for request, (prompt, *_) in zip(asked, asked_for, strict=True)
    ]
    assert len({len(tokens) for _, tokens, _ in expected}) > 1
    drafter = GuessingDrafter(partial(following, expected), VOCAB, 0.8)
    lab = lab_of(drafter=drafter)
    asked = ask_all(lab)
    for step in itertools.count():
        if not lab.engine.has_work():
            break
        lab.step()
        if step % 5 == 4 and lab.scheduler.running:
            lab.scheduler.preempt(lab.scheduler.running[-1])
    assert lab.scheduler.counts.kept_drafts > 0
    for request, each in zip(asked, expected, strict=True):
        agree(lab.answer(request), each)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_in_memory_for_a_tenth(lab_of, alone):
    chosen = random.Random(run_seed(6)).choices(alone, k=1000)
    in_memory_for_a_tenth(lab_of(max_running=12, tokens=4 * 64, budget=512), chosen)


def following(alone, history):
    """What follows a beginning of a prompt and its reply; 0 where none begins so."""
    for prompt, tokens, _ in alone:
        whole = [*prompt, *tokens]
        if len(history) < len(whole) and whole[: len(history)] == list(history):
            return whole[len(history)]
    return 0


@pytest.mark.parametrize("right", [pytest.param(0.0, marks=pytest.mark.slow), 0.5, 1.0])
def test_with_drafts(lab_of, alone, right):
    """In a batch that changes, with preemption and from cached prefixes."""
    drafter = GuessingDrafter(partial(following, alone), VOCAB, right)
    lab = lab_of(drafter=drafter)
    for _ in range(2):
        asked = [lab.ask(prompt, max_tokens=MAX_TOKENS) for prompt, *_ in alone]
        for step in range(100):
            if not lab.engine.has_work():
                break
            lab.step()
            if step % 5 == 4 and lab.scheduler.running:
                lab.scheduler.preempt(lab.scheduler.running[-1])
        for request, expected in zip(asked, alone, strict=True):
            agree(lab.answer(request), expected)
    counts = lab.scheduler.counts
    assert counts.drafts > len(alone)
    if right == 0.0:
        assert counts.kept_drafts < counts.drafts / 4
    if right == 1.0:
        assert counts.kept_drafts == counts.drafts
    assert lab.cached[asked[-1]] > 0 or len(alone[-1][0]) < GRID


def test_a_nan_ends_its_own_request(lab_of, alone):
    end_by_nan(lab_of(), alone, victim=1, after=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_times_a_nan_ends_its_own_request(lab_of, alone):
    lab = lab_of()
    rng = random.Random(run_seed(7))
    for _ in range(100):
        end_by_nan(lab, alone, victim=rng.randrange(4), after=rng.randrange(MAX_TOKENS))


def end_by_nan(lab, alone, *, victim, after):
    """Spoil the scores of one of four requests once it has so many tokens."""
    asked = [lab.ask(prompt, max_tokens=MAX_TOKENS) for prompt, *_ in alone[:4]]
    sample = lab.sample

    def spoil(logits, rows):
        logits = logits.clone()
        for place, sequence in rows:
            if sequence.request_id == asked[victim] and sequence.num_output == after:
                logits[place, 0] = float("nan")
        return sample(logits, rows)

    lab.sample = spoil
    lab.run()
    assert lab.reasons[asked[victim], 0] is FinishReason.ERROR
    assert "NaN" in lab.errors[asked[victim], 0]
    for request, expected in zip(asked, alone, strict=False):
        if request != asked[victim]:
            agree(lab.answer(request), expected)
    again = lab.ask(alone[victim][0], max_tokens=MAX_TOKENS)
    lab.sample = sample
    lab.run()
    assert torch.isfinite(lab.answer(again)[1]).all()
    assert lab.tokens[again, 0] == alone[victim][1]


def test_many_clients_in_a_pool_for_eight():
    """64 ask at once of a pool that holds eight: all finish, in the order they came."""
    model = build_network(MIXES["hybrid"], seed=3)
    rng = random.Random(run_seed(6))
    prompts = [[rng.randrange(VOCAB) for _ in range(70)] for _ in range(64)]
    lab = Lab(model, max_running=16, tokens=8 * 128, budget=128)
    asked = [lab.ask(prompt, max_tokens=70) for prompt in prompts]
    finished: list[int] = []
    while lab.engine.has_work():
        lab.step()
        finished += [r for r in asked if (r, 0) in lab.reasons and r not in finished]
    assert lab.scheduler.counts.preempted > 0
    assert len(finished) == 64
    late = max(abs(place - asked.index(request)) for place, request in enumerate(finished))
    assert late <= 16, "a reply was overtaken by more than what runs at once"
    for request, prompt in list(zip(asked, prompts, strict=True))[::9]:
        alone = Lab(model, max_running=1, prefix_cache=False)
        reference = alone.ask(prompt, max_tokens=70)
        alone.run()
        assert lab.tokens[request, 0] == alone.tokens[reference, 0]


def test_a_failed_step_leaves_nothing_behind_of_what_it_drew():
    """Mirostat follows what is drawn; what a step had drawn before it failed is drawn again."""
    model = build_network(("gqa",), seed=3)

    def replies(*, fails: bool) -> dict[tuple[int, int], list[int]]:
        lab = Lab(model)
        sample, draws = lab.sample, itertools.count()

        def fail_once(logits, rows):
            sampled = sample(logits, rows)
            if fails and next(draws) == 5:
                raise RuntimeError("out of memory")
            return sampled

        lab.sample = fail_once
        for seed in range(2):
            lab.ask([seed + 1] * 5, temperature=0.9, seed=seed, mirostat=2, mirostat_tau=2.0)
        lab.run()
        return lab.tokens

    assert replies(fails=True) == replies(fails=False)
