"""How much of a prompt is computed again: at most one grid interval, on every layer mix."""

from __future__ import annotations

import random

import pytest

from tests.support.examples import MIXES
from tests.support.networks import CONTEXT, VOCAB, Lab, build_network
from tests.support.seeds import run_seed

pytestmark = pytest.mark.sample

GRID = 64


@pytest.fixture(scope="module", params=MIXES)
def model(request):
    return build_network(MIXES[request.param], seed=5)


def tokens_of(count: int, seed: int) -> list[int]:
    rng = random.Random(run_seed(seed))
    return [rng.randrange(VOCAB) for _ in range(count)]


def recomputed(lab: Lab, prompt: list[int], **params: object) -> tuple[int, list[int]]:
    """Prompt tokens that were computed, and the reply."""
    before = lab.engine.counts.computed_tokens
    request = lab.ask(prompt, **params)
    lab.run()
    reply = lab.tokens[request, 0]
    return lab.engine.counts.computed_tokens - before - (len(reply) - 1), reply


def test_a_repeated_prompt(model):
    lab = Lab(model)
    prompt = tokens_of(500, seed=1)
    assert recomputed(lab, prompt)[0] == 500
    assert recomputed(lab, prompt)[0] <= GRID
    other = [(prompt[0] + 1) % VOCAB, *prompt[1:]]
    assert recomputed(lab, other)[0] == 500, "another beginning is another prefix"


def test_the_next_turn_of_a_chat(model):
    lab = Lab(model)
    history = tokens_of(150, seed=2)
    for turn in range(3):
        computed, reply = recomputed(lab, history, max_tokens=50)
        if turn:
            assert computed <= GRID + 30
        question = tokens_of(30, seed=10 + turn)
        history = [*history, *reply, *question]


def test_many_users_behind_one_system_prompt_at_once(model):
    """It is computed once, although all arrive together and part ways in mid-block."""
    lab = Lab(model, budget=128)
    system = tokens_of(400, seed=3)
    users = [tokens_of(90 + 7 * n, seed=20 + n) for n in range(7)]
    asked = [lab.ask(system + user, max_tokens=4) for user in users]
    lab.run()
    alone = Lab(model, prefix_cache=False)
    for request, user in list(zip(asked, users, strict=True))[::3]:
        reference = alone.ask(system + user, max_tokens=4)
        alone.run()
        assert lab.tokens[request, 0] == alone.tokens[reference, 0]
    computed = lab.engine.counts.computed_tokens - len(users) * 3
    own = sum(len(user) for user in users)
    assert computed <= len(system) + own + len(users) * GRID


def test_a_later_user_finds_the_junction(model):
    """Two prompts that part in mid-prompt prove a prefix; the third resumes where they parted."""
    lab = Lab(model)
    system = tokens_of(300, seed=4)
    for user in range(2):
        recomputed(lab, system + tokens_of(200, seed=30 + user))
    computed, _ = recomputed(lab, system + tokens_of(200, seed=40))
    assert computed <= 200 + GRID


def test_the_next_prompt_resumes_at_an_anchor(model):
    lab, prompt = Lab(model), tokens_of(400, seed=13)
    recomputed(lab, prompt, anchors=(250,))
    parting = [*prompt[:250], *tokens_of(100, seed=14)]
    computed, reply = recomputed(lab, parting)
    assert computed == 350 - 250 // GRID * GRID
    assert reply == recomputed(Lab(model, prefix_cache=False), parting)[1]


def test_salts_do_not_share(model):
    lab = Lab(model)
    prompt = tokens_of(200, seed=6)
    recomputed(lab, prompt)
    sequence_request = lab.ask(prompt)
    (waiting,) = lab.scheduler.waiting
    object.__setattr__(waiting.request, "cache_salt", "another tenant")
    lab.run()
    assert lab.cached[sequence_request] == 0


def test_preemption_recomputes_at_most_one_interval(model):
    lab = Lab(model, max_running=2)
    request = lab.ask(tokens_of(400, seed=7), max_tokens=40)
    for _ in range(20):
        lab.step()
    before = lab.engine.counts.computed_tokens
    (running,) = lab.scheduler.running
    held = running.computed
    lab.scheduler.preempt(running)
    lab.step()
    assert lab.engine.counts.computed_tokens - before <= GRID
    assert running.computed > held - GRID
    lab.run()
    assert len(lab.tokens[request, 0]) == 40


def test_a_reply_that_begins_again_reuses_nothing_more_of_its_prompt(model):
    """What is told is what its first start found, also where it forks from another then."""
    lab = Lab(model)
    prompt = tokens_of(100, seed=8)
    asked = [lab.ask(prompt, max_tokens=60) for _ in range(2)]
    while len(lab.tokens.get((asked[1], 0), ())) < 40:
        lab.step()
    held = lab.scheduler.counts.held
    lab.scheduler.forget_prefixes(restarts=True)
    lab.run()
    assert lab.scheduler.counts.held > held
    assert [lab.cached[request] for request in asked] == [0, 99]


def test_reuse_says_why(model):
    lab = Lab(model)
    reasons = []
    engine_step = lab.engine.step

    def step(*arguments):
        outputs = engine_step(*arguments)
        reasons.extend(o.reuse for o in outputs if o.finish_reason)
        return outputs

    lab.engine.step = step
    prompt = tokens_of(600, seed=8)  # with states after 7, 8 and 9 blocks, 6, 4, and 2
    for tokens in (prompt, prompt, prompt[:350] + tokens_of(120, seed=9), prompt[:10]):
        recomputed(lab, tokens, max_tokens=2)
    assert reasons[:2] == ["unknown", "whole"]
    has_states = lab.memory.shape.has_states
    assert reasons[2] == ("no-state" if has_states else "partial")
    assert reasons[3] == "short"


def test_log_probabilities_of_the_prompt_are_all_there(model):
    lab = Lab(model)
    prompt = tokens_of(150, seed=11)
    recomputed(lab, prompt)
    outputs = []
    take = lab.take
    lab.take = lambda new: (outputs.extend(new), take(new))
    recomputed(lab, prompt, prompt_logprobs=2, max_tokens=2)
    first = outputs[0].prompt_logprobs
    assert len(first) == len(prompt)
    assert first[0] is None
    assert [each.token_id for each in first[1:]] == prompt[1:]
    logits = lab.runner.logits(prompt).log_softmax(-1)
    for position, each in enumerate(first[1:]):
        assert each.logprob == pytest.approx(float(logits[position, each.token_id]), abs=1e-4)


def test_a_window_beyond_the_context(model):
    lab = Lab(model)
    request = lab.ask(tokens_of(CONTEXT - 5, seed=12), max_tokens=50)
    lab.run()
    assert len(lab.tokens[request, 0]) == 5
