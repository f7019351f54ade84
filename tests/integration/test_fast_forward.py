"""Forced tokens skip the draw, and nothing else: the same reply as drawn one by one."""

import random

import pytest

from blazr.engine.outputs import FinishReason
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from tests.support.constrained import Automaton
from tests.support.examples import MIXES
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.seeds import run_seed


def runs_and_choices(seed: int) -> Automaton:
    """Choices between three tokens, and after each a forced run of up to 90 tokens."""
    rng = random.Random(run_seed(seed))
    moves = []
    while len(moves) < 230:
        moves.append(dict.fromkeys(rng.sample(range(VOCAB), 3), len(moves) + 1))
        for _ in range(rng.choice([0, 2, 7, 90])):
            moves.append({rng.randrange(VOCAB): len(moves) + 1})
    return Automaton([*moves, {}], {len(moves)}, vocab_size=VOCAB)


def answer(lab: Lab, constraint: Automaton, request_id: int, **params: object) -> list[int]:
    request = Request(
        prompt_ids=tuple(range(1, 50)),
        params=SamplingParams(**{"temperature": 0, "max_tokens": 400, **params}),
        constraint=constraint,
        cache_salt=str(request_id),
    )
    lab.engine.add(request, request_id=request_id, now=0.0, seed=7)
    lab.run()
    assert lab.reasons[request_id, 0] is FinishReason.STOP
    return lab.tokens[request_id, 0]


@pytest.mark.parametrize("mix", ["hybrid", "gqa and mlp", "pure mamba2"])
def test_forced_tokens_change_no_reply(mix):
    lab = Lab(build_network(MIXES[mix], seed=3), budget=48)
    constraint = runs_and_choices(1)
    at_once = answer(lab, constraint, 1)
    steps = lab.engine.counts.steps
    one_by_one = answer(lab, constraint, 2, logprobs=0)
    assert at_once == one_by_one
    assert steps < len(one_by_one) < lab.engine.counts.steps - steps + 1
