"""Scores and drafts that are no numbers: they end the reply that has these tokens, no other."""

from __future__ import annotations

import pytest
import torch

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Draft, Drafter
from tests.support.networks import VOCAB, Lab, build_network

PROMPT = (5, 12, 19)
NUM_TOKENS = 70  # over the end of a block
NAN_TOKEN = 50


class HalfRight(Drafter):
    """Some drafts that are right, then some that are not."""

    def __init__(self, reply: list[int]) -> None:
        self._reply = reply
        self.num_right = 0

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        done = sequence.num_output
        right = self._reply[done : done + min(done % 3, most)]
        wrong = [(token + 1) % VOCAB for token in self._reply[done + len(right) : done + most]]
        self.num_right = len(right)
        return Draft((*right, *wrong), "halves") if right or wrong else None


def lab_of(reply: list[int], behind: int) -> Lab:
    """One whose scores are NaN so many drafts behind the first that is wrong, and from there on."""
    drafter = HalfRight(reply)
    lab = Lab(build_network(("gqa+mlp",), seed=3), drafter=drafter)
    draws = lab.runner.sampler.draws

    def spoiled(logits: torch.Tensor) -> object:
        if len(logits) > 1:  # a step with drafts
            logits = logits.clone()
            logits[drafter.num_right + behind :] = float("nan")
        return draws(logits)

    lab.runner.sampler.draws = spoiled
    return lab


def reply_of(lab: Lab, **params: object) -> list[int]:
    """The tokens of a reply that comes to its end."""
    asked = lab.ask(PROMPT, max_tokens=NUM_TOKENS, **params)
    lab.run()
    assert lab.errors[asked, 0] is None
    return lab.tokens[asked, 0]


@pytest.mark.parametrize("behind", [0, 1])
def test_unsound_scores_of_a_step_with_drafts_end_nothing(behind: int) -> None:
    """Those behind a wrong draft are never looked at, and others are computed again without it."""
    reply = reply_of(Lab(build_network(("gqa+mlp",), seed=3)))
    assert reply_of(lab_of(reply, behind)) == reply


def test_scores_that_are_unsound_without_drafts_too_end_the_reply() -> None:
    lab = lab_of(reply_of(Lab(build_network(("gqa+mlp",), seed=3))), 0)
    draws = lab.runner.sampler.draws
    lab.runner.sampler.draws = lambda logits: draws(torch.full_like(logits, float("nan")))
    asked = lab.ask(PROMPT, max_tokens=NUM_TOKENS)
    lab.run()
    assert "no finite score" in (lab.errors[asked, 0] or "")


class Spoiling(HalfRight):
    """Some drafts that are right, then one token, which the network takes for NaN."""

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        done = sequence.num_output
        right = self._reply[done : done + min(done % 3, most - 1)]
        return Draft((*right, NAN_TOKEN), "spoiling")


@pytest.mark.parametrize("mix", [("gqa+mlp", "mla"), ("gqa_sinks", "mamba2+mlp"), ("mamba1",)])
@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0, "seed": 7, "logit_bias": {NAN_TOKEN: -100.0}}]
)
def test_a_draft_whose_keys_and_values_are_nan_changes_no_reply(
    mix: tuple[str, ...], params: dict[str, object]
) -> None:
    """Attention multiplies values that a token does not see by 0, and 0 times NaN is NaN."""
    model = build_network(mix, seed=3)
    model.embed_tokens.weight[NAN_TOKEN] = float("nan")
    model.lm_head.weight[NAN_TOKEN] = 0
    reply = reply_of(Lab(model), **params)
    assert NAN_TOKEN not in reply
    lab = Lab(model, drafter=Spoiling(reply))
    assert reply_of(lab, **params) == reply
    assert lab.scheduler.counts.drafts > 0
