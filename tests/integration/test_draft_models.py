"""A small model drafts for a large one: it guesses as it would alone, and replies are the same."""

from __future__ import annotations

import itertools
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blazr import LLM, SamplingParams
from blazr.bench.shapes import random_network
from blazr.core.errors import CheckpointError, ConfigError
from blazr.models.causal_lm import CausalLM
from blazr.nn.device import resolve_device
from tests.support.drafts import EagerSpeculator
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.seeds import run_seed

GOLDEN = Path(__file__).parents[1] / "golden"
LARGE = ("mamba2", "gqa+mlp")
SMALL = {
    "attention": ("gqa+mlp", "gqa"),
    "latents": ("mla_deepseek+mlp",),
    "Mamba-2": ("mamba2", "gqa+mlp"),
    "states alone": ("mamba2", "mamba1"),
    "gated delta": ("gated_delta", "gqa"),
    "the large one": LARGE,
}


@pytest.fixture(scope="module")
def large() -> CausalLM:
    return build_network(LARGE, seed=3)


@pytest.fixture(scope="module", params=SMALL)
def small(request) -> CausalLM:
    return build_network(SMALL[request.param], seed=3 if request.param == "the large one" else 4)


def some_prompts(count: int) -> list[list[int]]:
    rng = random.Random(run_seed(8))
    base = [rng.randrange(VOCAB) for _ in range(140)]
    return [
        base[: rng.choice([0, 64, 100, 128])] + [rng.randrange(VOCAB) for _ in range(length)]
        for length in (1, 30, 63, 64, 65, 90)[:count]
    ]


def run(lab: Lab, prompts: list[list[int]], *, preempts: bool = False) -> list[list[int]]:
    asked = [lab.ask(prompt, max_tokens=40, n=2) for prompt in prompts]
    for step in itertools.count():
        if not lab.engine.has_work():
            break
        lab.step()
        if preempts and step % 7 == 6 and lab.scheduler.running:
            lab.scheduler.preempt(lab.scheduler.running[-1])
    return [lab.tokens[each, index] for each in asked for index in (0, 1)]


@pytest.fixture(scope="module")
def expected(large) -> list[list[int]]:
    """What the large one alone replies to the prompts."""
    return run(Lab(large), some_prompts(6))


def drafter_of(lab: Lab):
    ((drafter, _),) = lab.scheduler.speculator._drafters
    return drafter


@pytest.mark.sample(3)
@pytest.mark.parametrize("replay", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_replies_are_the_same(large, small, expected, replay):
    """In a batch that changes, with preemption, from cached prefixes, and forked."""
    prompts = some_prompts(6)
    drafting = Lab(small, replay=replay)
    lab = Lab(large, draft_model=drafting, replay=replay)
    for _ in range(2):
        assert run(lab, prompts, preempts=True) == expected
    assert lab.scheduler.counts.drafts > 100
    assert not drafter_of(lab)._has_failed
    assert not drafter_of(lab)._copies
    assert sorted(drafting.memory.free_run_slots) == list(range(16))


def test_it_guesses_as_it_would_alone(large, small):
    """Guess after guess, from memory that goes back and forth, is as from nothing."""
    lab = Lab(large, draft_model=Lab(small), budget=48)
    guesses = []
    drafter = drafter_of(lab)
    compute = drafter.compute

    def note(counts):
        found = compute(counts)
        guesses.extend((each.tokens.tolist(), drafts) for each, drafts in found.items())
        assert {each: len(drafts) for each, drafts in found.items()} == dict(counts)
        return found

    drafter.compute = note
    run(lab, some_prompts(6), preempts=True)
    assert sum(len(drafts) for _, drafts in guesses) > 100
    clear = 0
    for tokens, drafts in guesses[::2]:  # each takes as long as reading its text
        with torch.inference_mode():
            scores = small.forward_sequences(torch.tensor([[*tokens, *drafts]]))[0]
        for draft, row in zip(drafts, scores[len(tokens) - 1 :], strict=False):
            best, second = row.topk(2)[0]
            if best - second < 1e-2 * row.abs().max():
                break
            clear += 1
            assert draft == row.argmax(), (tokens, drafts)
    assert clear > 30


def test_it_reads_no_more_than_a_step_at_once(large, small):
    drafting = Lab(small)
    lab = Lab(large, draft_model=drafting, budget=48)
    execute, sizes = drafting.runner.execute, []

    def note(plan, memory):
        sizes.append(sum(row.num_tokens for row in plan.rows if not row.samples))
        return execute(plan, memory)

    drafting.runner.execute = note
    run(lab, some_prompts(6))
    assert max(sizes) <= 48
    assert sum(sizes) > 300


def test_what_it_guesses_is_kept_where_the_two_agree(large):
    """A model that drafts for itself is right, but where two tokens are all but equally likely."""
    lab = Lab(large, draft_model=Lab(large))
    run(lab, some_prompts(6))
    counts = lab.scheduler.counts
    assert counts.kept_drafts > 0.97 * counts.drafts
    assert counts.kept_drafts > 4 * counts.draft_steps


@pytest.mark.parametrize("max_running", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_in_little_memory_it_drafts_for_some(large, small, expected, max_running):
    prompts = some_prompts(6)
    lab = Lab(large, draft_model=Lab(small, max_running=max_running, tokens=256))
    assert run(lab, prompts) == expected
    assert not drafter_of(lab)._has_failed
    assert lab.scheduler.counts.drafts > 0


def test_one_that_fails_is_not_asked_again(large, small, expected, caplog):
    prompts = some_prompts(6)
    drafting = Lab(small)
    lab = Lab(large, draft_model=drafting)
    execute, steps = drafting.runner.execute, itertools.count()

    def fail(plan, memory):
        if next(steps) == 20:
            raise RuntimeError("out of memory")
        return execute(plan, memory)

    drafting.runner.execute = fail
    assert run(lab, prompts) == expected
    assert next(steps) == 21
    assert caplog.text.count("the draft model has failed") == 1
    assert sorted(drafting.memory.free_run_slots) == list(range(16))


def test_longer_texts_than_it_reads_have_no_drafts_of_it(large, expected):
    small = build_network(("gqa",), seed=4)
    drafter = drafter_of(lab := Lab(large, draft_model=Lab(small)))
    prompts = some_prompts(6)
    drafter._max_seq_len = longest = min(map(len, prompts)) + 20  # half of a reply
    lengths = []
    compute = drafter.compute
    drafter.compute = lambda counts: (
        lengths.extend(len(each.tokens) + count for each, count in counts.items())
        or compute(counts)
    )
    assert run(lab, prompts) == expected
    assert 0 < max(lengths) <= longest


def test_texts_with_tokens_that_it_does_not_have_get_no_drafts_of_it(large, caplog):
    prompts = [*some_prompts(6), [1, 2, 3], [6, 7]]
    config = build_network(("gqa",)).config
    small = random_network(
        replace(config, vocab_size=VOCAB - 3), device=resolve_device("cpu"), dtype="float32"
    )
    drafting = Lab(small)
    lab = Lab(large, draft_model=drafting)
    assert run(lab, prompts) == run(Lab(large), prompts)
    assert not caplog.text
    assert not drafter_of(lab)._has_failed
    assert not drafter_of(lab)._unreadable
    assert lab.scheduler.counts.drafts > 0
    assert sorted(drafting.memory.free_run_slots) == list(range(16))


@pytest.fixture
def eager(monkeypatch):
    """Drafts are computed whether they are worth their time or not: that is up to the machine."""
    monkeypatch.setattr("blazr.engine.build.Speculator", EagerSpeculator)


@pytest.mark.usefixtures("eager")
def test_it_follows_a_text_that_forgets():
    params = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    replies = []
    for spec in (None, "draft:nano"):
        with LLM(spec=spec, max_seq_len=128, context_shift=True) as llm:
            replies.append(llm.generate(["Once upon a time"], params)[0].outputs[0].token_ids)
            stats = llm.core.engine.stats()
    assert replies[0] == replies[1]
    assert stats["kept_draft_tokens"] > max(200, 0.9 * stats["draft_tokens"])


@pytest.mark.usefixtures("eager")
def test_the_built_in_model_says_the_same():
    params = [
        SamplingParams(temperature=0, max_tokens=70, ignore_eos=True),
        SamplingParams(temperature=0.8, seed=3, max_tokens=60, n=2),
        SamplingParams(temperature=0, max_tokens=40, grammar={"regex": "([a-z]+, )+[a-z]+"}),
    ]
    texts = ["Once upon a time", "Lily had a red ball."]
    asked = [(text, each) for text in texts for each in params]
    with LLM() as plain, LLM(spec="ngram,draft:nano") as drafting:
        expected = [plain.generate([text], each)[0] for text, each in asked]
        got = drafting.generate([text for text, _ in asked], [each for _, each in asked])
        stats = drafting.core.engine.stats()
    assert stats["kept_draft_tokens"] > 100
    for a, b in zip(expected, got, strict=True):
        assert [x.token_ids for x in a.outputs] == [x.token_ids for x in b.outputs]


@pytest.mark.parametrize(
    ("spec", "found"),
    [("draft", "draft needs a model"), ("ngram:nano", "ngram does not take a model")],
)
def test_what_cannot_be_meant_is_refused(spec, found):
    with pytest.raises(ConfigError, match=found):
        LLM(spec=spec)


def test_another_vocabulary_is_refused(tmp_path):
    other = tmp_path / "other"
    for part in (GOLDEN / "stories260k", GOLDEN / "tokenizers/stories260k"):
        shutil.copytree(part, other, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match="other cannot draft: its vocabulary is another one"):
        LLM(spec=f"draft:{other}")
    with pytest.raises(CheckpointError, match="nothing"):
        LLM(spec=f"draft:{tmp_path / 'nothing'}")
