"""Scores that are no numbers, behind drafts: they end the reply that has these tokens, no other."""

from __future__ import annotations

import pytest
import torch

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import Draft, Drafter
from blazr.nn.operands.step import GRID
from tests.support.drafts import EagerSpeculator
from tests.support.networks import VOCAB, Lab, build_network

PROMPT = (5, 12, 19)
NUM_TOKENS = 24


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
    lab = Lab(build_network(("gqa+mlp",), seed=3), speculator=EagerSpeculator([drafter], grid=GRID))
    draws = lab.runner.sampler.draws

    def spoiled(logits: torch.Tensor) -> object:
        if len(logits) > 1:  # a step with drafts
            logits = logits.clone()
            logits[drafter.num_right + behind :] = float("nan")
        return draws(logits)

    lab.runner.sampler.draws = spoiled
    return lab


@pytest.mark.parametrize(("behind", "is_whole"), [(1, True), (0, False)])
def test_scores_behind_a_draft_that_is_wrong_end_nothing(behind: int, *, is_whole: bool) -> None:
    alone = Lab(build_network(("gqa+mlp",), seed=3))
    asked = alone.ask(PROMPT, max_tokens=NUM_TOKENS)
    alone.run()
    reply = alone.tokens[asked, 0]
    lab = lab_of(reply, behind)
    asked = lab.ask(PROMPT, max_tokens=NUM_TOKENS)
    lab.run()
    assert (lab.errors[asked, 0] is None) == is_whole
    if is_whole:
        assert lab.tokens[asked, 0] == reply
