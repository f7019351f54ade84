"""The model's own drafts: what its module for multi-token prediction guesses is what it was made
for, and a reply is the same with it and without.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from blazr.models.causal_lm import CausalLM
from blazr.nn.layers.base import LayerConfig, NormConfig
from blazr.nn.layers.eagle import Eagle3, Eagle3Config
from blazr.nn.operands.step import GRID
from tests.support.examples import FEED_FORWARD_EXAMPLES, HIDDEN, MIXER_EXAMPLES
from tests.support.networks import VOCAB, Lab, build_network
from tests.support.seeds import run_seed

# A network's layers, and the module's.
MIXES = {
    "attention": (("gqa+mlp", "gqa"), "gqa+mlp"),
    "experts": (("gqa", "gqa+moe"), "gqa+moe"),
    "latents": (("mla_deepseek+mlp", "mla_deepseek"), "mla_deepseek+mlp"),
    "Mamba-2": (("mamba2", "gqa+mlp"), "gqa"),
    "states alone": (("mamba2", "mamba1"), "gqa+mlp"),
    "gated delta": (("gated_delta", "gqa"), "gqa+mlp"),
}
# Of EAGLE-3 heads: the network's layers, which of them are read, rows of an own embedding, tokens
# that can be guessed, and where the residual is normalised.
HEADS = {
    "EAGLE-3, attention": (("gqa+mlp", "gqa"), (0, 1), 0, VOCAB, False),
    "EAGLE-3, Mamba-2": (("mamba2", "gqa+mlp", "mamba2"), (0, 1, 2), VOCAB, 20, True),
    "EAGLE-3, states alone": (("mamba2", "mamba1"), (1,), 0, 30, False),
}


def eagle3(
    layers: tuple[int, ...], vocab_size: int, num_guessed: int, before: bool
) -> Eagle3Config:
    """A head of a layer of attention."""
    norm = NormConfig(HIDDEN, 1e-5)
    attention = MIXER_EXAMPLES["gqa"]
    return Eagle3Config(
        layer=LayerConfig(
            mixer=replace(attention, hidden_size=2 * HIDDEN, output_size=HIDDEN),
            mixer_norm=None,
            feed_forward=FEED_FORWARD_EXAMPLES["mlp"],
            feed_forward_norm=norm,
        ),
        norm=norm,
        aux_layers=layers,
        aux_size=HIDDEN,
        vocab_size=vocab_size,
        draft_vocab_size=num_guessed,
        norm_before_residual=before,
    )


def with_head(kind: str) -> CausalLM:
    """A network with such a head; what it guesses are not the first tokens."""
    mix, *own = HEADS[kind]
    model = build_network(mix, eagle3=eagle3(*own), seed=3)
    assert isinstance(model.mtp, Eagle3)
    model.mtp.token_ids = torch.randperm(VOCAB)[: len(model.mtp.token_ids)].sort().values
    return model


@pytest.fixture(scope="module", params=[*MIXES, *HEADS])
def networks(request) -> tuple[CausalLM, CausalLM]:
    """One network, without its module and with it."""
    if request.param in HEADS:
        return build_network(HEADS[request.param][0], seed=3), with_head(request.param)
    mix, own = MIXES[request.param]
    return build_network(mix, seed=3), build_network(mix, mtp=own, seed=3)


def some_prompts(count: int) -> list[list[int]]:
    rng = random.Random(run_seed(8))
    base = [rng.randrange(VOCAB) for _ in range(140)]
    return [
        base[: rng.choice([0, 64, 100, 128])] + [rng.randrange(VOCAB) for _ in range(length)]
        for length in (1, 30, 63, 64, 65, 90)[:count]
    ]


def guess(model: CausalLM, tokens: list[int], count: int) -> list[Tensor]:
    """Scores of what the module guesses behind a text, each guess after the others from nothing.

    The first is made of the network's hidden states, the others also of the module's own in their
    place.
    """
    found: list[Tensor] = []
    with torch.inference_mode():
        ids = torch.tensor([tokens])
        hidden = model._seen_by_mtp(*model._forward_sequences(ids))[:, :-1]
        is_head = isinstance(model.mtp, Eagle3)
        for _ in range(count):
            seen = F.pad(hidden, (0, 0, 0, 1))
            inputs = (ids, seen) if is_head else (seen,)
            own = model.mtp.forward_sequences(model._embed(ids), *inputs)
            found.append(model.mtp.scores(own[0, -1]) if is_head else model._scores(own[0, -1]))
            hidden = torch.cat((hidden, own[:, -1:]), 1)
            ids = torch.cat((ids, torch.tensor([model.guesses(found[-1][None])])), 1)
    return found


def test_replies_are_the_same(networks):
    """In a batch that changes, with preemption, from cached prefixes, and forked."""
    plain, predicting = networks
    prompts = some_prompts(6)
    lab = Lab(plain)
    asked = [lab.ask(prompt, max_tokens=20, n=2) for prompt in prompts]
    lab.run()
    expected = [lab.tokens[each, index] for each in asked for index in (0, 1)]
    lab = Lab(predicting, drafts_itself=True)
    for _ in range(2):
        asked = [lab.ask(prompt, max_tokens=20, n=2) for prompt in prompts]
        for step in itertools.count():
            if not lab.engine.has_work():
                break
            lab.step()
            if step % 7 == 6 and lab.scheduler.running:
                lab.scheduler.preempt(lab.scheduler.running[-1])
        assert [lab.tokens[each, index] for each in asked for index in (0, 1)] == expected
    assert lab.scheduler.counts.drafts > 100
    assert lab.cached[asked[-1]] > 0


@pytest.mark.sample(4)
@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_its_guesses_are_those_of_the_whole_text(request, networks, turn):
    """Guess after guess, from memory that was filled in other steps, is as from nothing.

    Networks take turns with whether steps are recorded.
    """
    _, model = networks
    kind = request.node.callspec.params["networks"]
    replay = bool(([*MIXES, *HEADS].index(kind) + turn) % 2)
    lab = Lab(model, drafts_itself=True, replay=replay, budget=48, prefix_cache=False)
    guesses = []
    compute = lab.runner.draft

    def note(counts, memory):
        found = compute(counts, memory)
        guesses.extend((each.tokens.tolist(), drafts) for each, drafts in found.items())
        return found

    ((drafter, _),) = lab.scheduler.speculator._drafters
    drafter._compute = partial(note, memory=lab.memory)
    for prompt in some_prompts(6):
        lab.ask(prompt, max_tokens=20)
    lab.run()
    assert len(guesses) > 30
    clear, some = 0, guesses[::4]  # each takes as long as reading its text
    for tokens, drafts in some:
        for draft, scores in zip(drafts, guess(model, tokens, len(drafts)), strict=True):
            best, second = scores.topk(2)[0]
            if best - second < 1e-2 * scores.abs().max():
                break
            clear += 1
            assert [draft] == model.guesses(scores[None]), (tokens, drafts)
    assert clear > len(some)


def test_replies_from_a_cached_prefix_are_the_same():
    """There the module sees no hidden state before the first token, so it may guess otherwise."""
    model = build_network(("gqa",), mtp="gqa+mlp", seed=3)
    prompt = [token for each in some_prompts(5) for token in each][:100]
    lab = Lab(model, drafts_itself=True)
    replies = []
    for cached in (0, GRID):
        asked = lab.ask(prompt, max_tokens=GRID)
        lab.run()
        assert lab.cached[asked] == cached
        replies.append(lab.tokens[asked, 0])
    assert replies[0] == replies[1]


def train(model: CausalLM, texts: Tensor, steps: int) -> None:
    """Teach the module to guess what follows, by the next token of each text but one."""
    assert model.mtp is not None
    own = [each.requires_grad_() for each in model.mtp.parameters()]
    optimizer = torch.optim.Adam(own, lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        scores = model.draft_sequences(texts[:, :-1])
        F.cross_entropy(scores.flatten(0, 1), texts[:, 1:].flatten()).backward()
        optimizer.step()
    model.requires_grad_(requires_grad=False)


MADE_FOR = {
    "its own module": lambda: build_network(("gqa+mlp", "gqa"), mtp="gqa+mlp", seed=5),
    "EAGLE-3": lambda: build_network(
        ("gqa+mlp", "gqa"), eagle3=eagle3((0, 1), 0, VOCAB, False), seed=5
    ),
}


@pytest.mark.parametrize(
    ("most", "kind"),
    [
        (1, "its own module"),
        (3, "EAGLE-3"),
        pytest.param(3, "its own module", marks=pytest.mark.slow),
        pytest.param(1, "EAGLE-3", marks=pytest.mark.slow),
    ],
)
def test_a_trained_module_is_accepted_as_the_arithmetic_predicts(most, kind):
    """A step keeps as many guesses as are right one after the other, from where it stands.

    What the module guesses at each place of a reply is known without the engine; so is how many are
    kept if every step computes so many, and how many steps that takes.
    """
    torch.manual_seed(run_seed(4))
    model = MADE_FOR[kind]()
    lab = Lab(model)
    prompts = [[each] for each in range(8)]
    asked = [lab.ask(prompt, max_tokens=50) for prompt in prompts]
    lab.run()
    texts = [[*prompt, *lab.tokens[each, 0]] for prompt, each in zip(prompts, asked, strict=True)]
    train(model, torch.tensor(texts), steps=100)

    counts = 0, 0
    for prompt, text in zip(prompts, texts, strict=True):
        lab = Lab(model, drafts_itself=True)
        ((drafter, _),) = lab.scheduler.speculator._drafters
        propose = drafter.propose
        drafter.propose = lambda sequence, room, propose=propose: propose(sequence, min(room, most))
        asked = lab.ask(prompt, max_tokens=50)
        lab.run()
        assert lab.tokens[asked, 0] == text[1:]
        drafts = kept = steps = 0
        length = 2  # the first token follows the prompt
        while length < len(text):
            count = min(most, len(text) - length - 1)
            guessed = [int(scores.argmax()) for scores in guess(model, text[:length], count)]
            pairs = zip(guessed, text[length:], strict=False)
            right = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
            drafts, kept, steps = drafts + count, kept + right, steps + bool(count)
            length += 1 + right
        found = lab.scheduler.counts
        assert (found.drafts, found.kept_drafts, found.draft_steps) == (drafts, kept, steps)
        counts = counts[0] + drafts, counts[1] + kept
    assert counts[1] / counts[0] > 0.25, "nothing was learnt: one in 53 is right by chance"
