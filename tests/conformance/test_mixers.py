"""The laws of every mixer: however a sequence is cut, packed or resumed, it comes out the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import MIXER_EXAMPLES
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.seeds import run_seed
from tests.support.tolerances import assert_as_right, sensitivity

pytestmark = pytest.mark.sample


@pytest.fixture(scope="module", params=MIXER_EXAMPLES)
def lab(request) -> Lab:
    return Lab(build_network((request.param,)))


@pytest.fixture(scope="module")
def loss(lab) -> float:
    """What float32 loses in this network."""
    ids = torch.tensor([tokens_of(200, 1)])
    with torch.inference_mode():
        return sensitivity(lab.runner.model, lambda model: model.forward_sequences(ids))


def tokens_of(count: int, seed: int) -> list[int]:
    chance = torch.Generator().manual_seed(run_seed(seed))
    return torch.randint(0, VOCAB, (count,), generator=chance).tolist()


def whole(lab: Lab, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():  # so that both sides run the same kernels
        return lab.runner.model.forward_sequences(torch.tensor([ids]))[0]


@settings(max_examples=12, deadline=None)
@given(
    count=st.integers(1, 200),
    cuts=st.lists(st.integers(1, 199), max_size=6),
    seed=st.integers(0, 10**6),
)
def test_any_cutting_is_the_whole(lab, loss, count, cuts, seed):
    ids = tokens_of(count, seed)
    assert_as_right(lab.runner.logits(ids, cuts), whole(lab, ids), loss)


def test_token_by_token_is_the_whole(lab, loss):
    ids, class_of = tokens_of(130, 130), lab.runner.model.config.length_class
    stepwise = lab.runner.logits(ids, range(1, 130))
    for count in (130, 65, 64, 63):  # beyond the second edge of the grid, and around the first
        if class_of(count) != class_of(130):
            stepwise = lab.runner.logits(ids[:count], range(1, count))
        assert_as_right(stepwise[:count], whole(lab, ids[:count]), loss)


def test_a_packed_batch_is_each_alone(lab, loss):
    prompts = [tokens_of(count, 100 + count) for count in (1, 2, 63, 64, 65, 90, 128, 129)]
    asked = [lab.ask(prompt, max_tokens=8) for prompt in prompts]
    lab.run()
    for prompt, request_id in zip(prompts, asked, strict=True):
        tokens, logits = lab.answer(request_id)
        reference = whole(lab, prompt + tokens[:-1])[len(prompt) - 1 :]
        assert_as_right(logits, reference, loss)


def test_with_gradients_side_by_side_is_each_alone(lab, loss):
    """As in training, where no kernel stands in for a reference."""
    both = [tokens_of(100, 7), tokens_of(100, 8)]
    with torch.enable_grad():
        found = lab.runner.model.forward_sequences(torch.tensor(both))
    for ids, scores in zip(both, found, strict=True):
        assert_as_right(scores, whole(lab, ids), loss)


def test_the_future_is_not_seen(lab, loss):
    ids = tokens_of(100, 3)
    other = [*ids[:70], *tokens_of(30, 4)]
    assert_as_right(whole(lab, ids)[:70], whole(lab, other)[:70], loss)


def test_the_past_matters(lab):
    """Guards the laws above against a mixer that ignores its memory; some see two tokens only."""
    ids = tokens_of(40, 5)
    changed = [(ids[0] + 1) % VOCAB, *ids[1:]]
    assert not torch.allclose(whole(lab, ids)[2], whole(lab, changed)[2], atol=1e-6)
