"""Log-probabilities of prompts and vectors of them: the same from cached, chunked, preempted."""

from __future__ import annotations

import random

import numpy as np
import pytest

from blazr.engine.outputs import FinishReason, TokenOutput
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from tests.support.examples import MIXES
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.seeds import run_seed

GRID = 64


@pytest.fixture(scope="module", params=["pure mamba2", "gqa and mlp", "hybrid of all"])
def model(request):
    return build_network(MIXES[request.param], seed=5)


def tokens_of(count: int, seed: int) -> list[int]:
    rng = random.Random(run_seed(seed))
    return [rng.randrange(VOCAB) for _ in range(count)]


class Scoring(Lab):
    """A lab that keeps the last output of every request, and asks for whatever is wanted."""

    def __init__(self, *arguments, **changes) -> None:
        super().__init__(*arguments, **changes)
        self.prompts: dict[int, tuple] = {}
        self.last: dict[int, TokenOutput] = {}

    def take(self, outputs) -> None:
        super().take(outputs)
        for output in outputs:
            self.last[output.request_id] = output
            if output.prompt_logprobs is not None:
                self.prompts.setdefault(output.request_id, output.prompt_logprobs)

    def score(self, prompt: list[int], num_top: int = 1) -> int:
        return self.ask(prompt, max_tokens=1, prompt_logprobs=num_top)

    def embed(self, prompt: list[int], pooling: str) -> int:
        self._ids += 1
        params = SamplingParams(max_tokens=0)
        request = Request(prompt_ids=tuple(prompt), params=params, pooling=pooling)
        self.engine.add(request, request_id=self._ids, now=0.0, seed=7)
        return self._ids

    def check(self, request: int, prompt: list[int], num_top: int = 1) -> None:
        """The scores are those of the network's logits, with the likeliest beside them."""
        found = self.prompts[request]
        logits = self.runner.logits(prompt).log_softmax(-1)
        assert found[0] is None
        assert [each.token_id for each in found[1:]] == prompt[1:]
        for position, each in enumerate(found[1:]):
            assert each.logprob == pytest.approx(float(logits[position, each.token_id]), abs=1e-4)
            assert len(each.top) == num_top
            assert not num_top or each.top[0][1] == pytest.approx(
                float(logits[position].max()), abs=1e-4
            )


@pytest.mark.parametrize("together", [True, False])
def test_many_answers_to_one_context_compute_it_once(model, together: bool) -> None:
    lab = Scoring(model, budget=128)
    context = tokens_of(500, seed=1)  # the first answers end after an edge, the others before it
    prompts = [context + tokens_of(18 - 3 * n, seed=10 + n) for n in range(6)]
    asked = []
    for prompt in prompts:
        asked.append(lab.score(prompt))
        if not together:
            lab.run()
    lab.run()
    for request, prompt in zip(asked, prompts, strict=True):
        lab.check(request, prompt)
    own = sum(len(prompt) - len(context) for prompt in prompts)
    again = 0 if together else len(prompts) * GRID  # who comes later begins at a whole block
    assert lab.engine.counts.computed_tokens <= len(context) + own + again


@pytest.mark.sample
@pytest.mark.parametrize("length", [20, 100, 128])
@pytest.mark.parametrize("budget", [30, 512])
def test_answers_part_from_one_another_anywhere(model, length: int, budget: int) -> None:
    """A context of any length is read once, and the scores are to the bit those of each alone."""
    tree = [tokens_of(length, seed=1)]
    tree += [tree[0] + tokens_of(30, seed=2), tree[0] + tokens_of(17, seed=3)]
    prompts = [base + tokens_of(2 + n, seed=50 + n) for n, base in enumerate((*tree, *tree))]
    lab = Scoring(model, budget=budget)
    asked = [lab.score(prompt) for prompt in prompts]
    lab.run()
    parts = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}
    # no prefix is computed twice, but for the few tokens that are not worth waiting for
    assert lab.engine.counts.computed_tokens <= len(parts) + len(prompts) * GRID // 4
    for request, prompt in zip(asked, prompts, strict=True):
        lab.check(request, prompt)
        alone = Scoring(model)
        only = alone.score(prompt)
        alone.run()
        assert lab.prompts[request] == alone.prompts[only]
        assert lab.tokens[request, 0] == alone.tokens[only, 0]


@pytest.mark.parametrize("num_top", [0, 1, 2])
def test_answers_that_go_on_where_others_part_may_want_fewer_of_the_likeliest(
    model, num_top: int
) -> None:
    lab = Scoring(model, budget=60)
    context = tokens_of(150, seed=1)
    prompts = [context + tokens_of(100, seed=10 + n) for n in range(2)]
    asked = [lab.score(prompts[0], num_top=5), lab.score(prompts[1], num_top)]
    lab.run()
    assert lab.cached[asked[1]] == len(context)
    for request, prompt, wanted in zip(asked, prompts, (5, num_top), strict=True):
        lab.check(request, prompt, wanted)


@pytest.mark.parametrize("length", [63, 64, 65, 150])
def test_later_answers_score_as_they_do_alone(model, length: int) -> None:
    """To the bit, wherever they part: also from a block's first token on, or one that ended."""
    context = tokens_of(length, seed=1)
    answers = [[n % 3, *tokens_of(5 + 40 * n, seed=10 + n)] for n in range(6)]
    prompts = [context, *(context + answer for answer in answers)]
    lab = Scoring(model)
    for prompt, num_top in zip(prompts, (1, 2, 0, 1, 2, 2, 1), strict=True):
        request, alone = lab.score(prompt, num_top), Scoring(model)
        only = alone.score(prompt, num_top)
        lab.run()
        alone.run()
        assert lab.prompts[request] == alone.prompts[only]
        assert lab.tokens[request, 0] == alone.tokens[only, 0]


def test_answers_that_go_on_where_others_part_may_be_preempted_and_end(model) -> None:
    context = tokens_of(150, seed=1)
    prompts = [context + tokens_of(40, seed=10 + n) for n in range(5)]
    lab = Scoring(model, budget=60)
    asked = [lab.score(prompt) for prompt in prompts]
    while len(lab.scheduler.running) < len(prompts):
        lab.step()
    lab.scheduler.preempt(lab.scheduler.running[1])
    lab.take(lab.engine.abort(asked[0]))
    lab.take(lab.engine.abort(asked[2]))
    lab.run()
    for place in (1, 3, 4):
        lab.check(asked[place], prompts[place])


def test_more_answers_than_there_is_room_for(model) -> None:
    lab = Scoring(model, max_running=3)
    context = tokens_of(200, seed=1)
    prompts = [context + tokens_of(5, seed=10 + n) for n in range(8)]
    asked = [lab.score(prompt) for prompt in prompts]
    lab.run()
    for request, prompt in zip(asked, prompts, strict=True):
        lab.check(request, prompt)


def test_prompts_that_are_continued_share_what_they_have_in_common(model) -> None:
    common = tokens_of(150, seed=1)
    prompts = [common + tokens_of(9, seed=10 + n) for n in range(4)]
    lab = Scoring(model, budget=40)
    asked = [lab.ask(prompt, max_tokens=6) for prompt in prompts]
    lab.run()
    replies = sum(len(lab.tokens[request, 0]) - 1 for request in asked)
    own = sum(len(prompt) - len(common) for prompt in prompts)
    assert lab.engine.counts.computed_tokens <= len(common) + own + replies
    for request, prompt in zip(asked, prompts, strict=True):
        alone = Scoring(model)
        only = alone.ask(prompt, max_tokens=6)
        alone.run()
        assert lab.tokens[request, 0] == alone.tokens[only, 0]
    assert [lab.cached[request] for request in asked] == [0, 150, 150, 150]


def test_scores_are_reused_only_where_there_are_enough(model) -> None:
    lab = Scoring(model)
    prompt = tokens_of(300, seed=2)
    for num_top, cached in ((None, 0), (1, 0), (1, 256), (3, 0), (2, 256), (0, 256)):
        request = lab.ask(prompt, max_tokens=1, prompt_logprobs=num_top)
        lab.run()
        assert lab.cached[request] == cached, num_top
        if num_top:
            lab.check(request, prompt, num_top)


def test_scores_survive_a_preemption(model) -> None:
    lab = Scoring(model, budget=100)
    prompt = tokens_of(400, seed=3)
    request = lab.score(prompt)
    lab.step()
    lab.step()
    (running,) = lab.scheduler.running
    lab.scheduler.preempt(running)
    lab.run()
    lab.check(request, prompt)


def test_scores_are_not_taken_from_who_has_handed_them_out(model) -> None:
    """A reply that begins again reads its prompt, but gathers no scores of it any more."""
    lab = Scoring(model, budget=48)
    prompt = tokens_of(150, seed=3)
    first = lab.ask(prompt, max_tokens=8, prompt_logprobs=1)
    while first not in lab.prompts:
        lab.step()
    lab.scheduler.forget_prefixes(restarts=True)
    lab.step()
    second = lab.score(prompt)
    lab.run()
    lab.check(second, prompt)


def test_scores_are_handed_out_once(model) -> None:
    """Also by a reply that is preempted, and forks from another that reads the same prompt."""
    lab = Scoring(model, budget=20)
    prompt = tokens_of(60, seed=3)
    first = lab.ask(prompt, max_tokens=8, prompt_logprobs=1)
    while first not in lab.prompts:
        lab.step()
    lab.check(first, prompt)
    del lab.prompts[first]
    second = lab.score(prompt)
    lab.step()
    lab.scheduler.preempt(lab.scheduler.running[0])
    lab.run()
    assert lab.scheduler.counts.held
    lab.check(second, prompt)
    assert first not in lab.prompts


def test_a_prompt_can_be_read_without_an_answer(model) -> None:
    lab = Scoring(model)
    prompt = tokens_of(100, seed=4)
    request = lab.ask(prompt, max_tokens=0, prompt_logprobs=1)
    lab.run()
    lab.check(request, prompt)
    assert lab.last[request].finish_reason is FinishReason.LENGTH
    assert lab.last[request].token_ids == ()


def pooled(model, prompt: list[int], pooling: str) -> np.ndarray:
    """The vector as the definition has it: from the hidden states of the training path."""
    import torch

    x = torch.nn.functional.embedding(torch.tensor([prompt]), model.embed_tokens.weight)
    for layer in model.layers:
        x = layer.forward_sequences(x)
    states = model.norm(x)[0]
    return (states.mean(0) if pooling == "mean" else states[-1]).numpy()


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_the_pooled_hidden_states(model, pooling: str) -> None:
    lab = Scoring(model, budget=70)
    prompts = [tokens_of(length, seed=length) for length in (1, 63, 64, 200, 200)]
    asked = [lab.embed(prompt, pooling) for prompt in prompts]
    neighbour = lab.ask(tokens_of(90, seed=9), max_tokens=5)
    lab.step()
    lab.scheduler.preempt(lab.scheduler.running[-1])
    lab.run()
    for request, prompt in zip(asked, prompts, strict=True):
        output = lab.last[request]
        assert output.finish_reason is FinishReason.STOP
        assert output.token_ids == ()
        expected = pooled(model, prompt, pooling)
        assert np.allclose(output.embedding, expected, atol=2e-4 * np.abs(expected).max())
    assert len(lab.tokens[neighbour, 0]) == 5
    assert not lab.engine._pooled


def test_running_out_of_time_has_a_reason_of_its_own(model) -> None:
    lab = Scoring(model)
    request = Request(prompt_ids=(1, 2, 3), timeout_s=5.0)
    lab.engine.add(request, request_id=1, now=0.0, seed=1)
    lab.take(lab.engine.step(1.0))
    lab.take(lab.engine.step(6.0))
    assert lab.last[1].finish_reason is FinishReason.TIMEOUT
    assert lab.last[1].error == "the request ran out of time"
