"""Constraints, and an engine that draws from random scores, for what no model would ever try."""

from __future__ import annotations

import zlib
from array import array

import numpy as np
import torch

from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.constraint import Constraint
from blazr.engine.engine import Engine
from blazr.engine.outputs import TokenOutput
from blazr.engine.request import Request
from blazr.engine.runner import StepResult, draw_tokens
from blazr.engine.sampling.sampler import Sampler
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.engine.speculation.speculator import Speculator


class RandomScores:
    """Executes plans: the scores of the next token are random, but the same after the same tokens.

    Args:
        vocab_size: V.
        liked: Ids that get a higher score, so that replies come to an end.
    """

    def __init__(self, vocab_size: int, liked: tuple[int, ...] = ()) -> None:
        self.sampler = Sampler(vocab_size, (), torch.device("cpu"))
        self.bonus = torch.zeros(vocab_size)
        self.bonus[list(liked)] = 4.0
        self.num_drawn = 0

    def execute(self, plan: StepPlan) -> StepResult:
        histories = [
            row.sequence.tokens + array("i", row.drafts[:count])
            for row in plan.rows
            if row.samples
            for count in range(len(row.drafts) + 1)
        ]
        result = StepResult()
        if histories:
            logits = torch.stack([self.scores(history.tobytes()) for history in histories])
            draw_tokens(self.sampler, plan, logits, result)
        self.num_drawn += len(result.sampled)
        return result

    def scores(self, history: bytes) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(history))
        return torch.randn(len(self.bonus), generator=generator) * 2 + self.bonus


def engine_over(
    model: RandomScores,
    *,
    running: int = 8,
    budget: int = 64,
    speculator: Speculator | None = None,
) -> Engine:
    shape = CacheShape(
        grid=64,
        num_superpages=32,
        pages_per_superpage=8,
        states_per_superpage=0,
        max_running=running,
        max_blocks=256,
    )
    scheduler = Scheduler(CacheManager(shape), token_budget=budget, speculator=speculator)
    vocab_size = len(model.bonus)
    return Engine(scheduler, model.execute, vocab_size=vocab_size, max_seq_len=4096)


def ask(
    engine: Engine, constraint: Constraint | None, request_id: int, *, stop_ids=(), **params: object
) -> None:
    request = Request(
        prompt_ids=(1, 2, 3),
        params=SamplingParams(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, **params}),
        stop_ids=frozenset(stop_ids),
        constraint=constraint,
    )
    engine.add(request, request_id=request_id, now=0.0, seed=request_id)


def drain(engine: Engine) -> dict[tuple[int, int], list[TokenOutput]]:
    """Run to the end: the outputs of every reply."""
    outputs: dict[tuple[int, int], list[TokenOutput]] = {}
    while engine.has_work():
        for output in engine.step(0.0):
            outputs.setdefault((output.request_id, output.index), []).append(output)
    return outputs


class Automaton:
    """A constraint that is a table of moves: state to token to state. It may end in some states.

    Args:
        moves: By state.
        ends: Where the reply may end.
        vocab_size: V.
        forces: Whether it says which tokens are forced.
    """

    def __init__(self, moves, ends, *, vocab_size: int, forces: bool = True) -> None:
        self.moves, self.ends, self.state = moves, ends, 0
        self.vocab_size, self.forces = vocab_size, forces

    def fork(self):
        forked = Automaton(self.moves, self.ends, vocab_size=self.vocab_size, forces=self.forces)
        forked.state = self.state
        return forked

    @property
    def is_finished(self) -> bool:
        return self.state in self.ends and not self.moves[self.state]

    def fill_mask(self, mask) -> None:
        bits = np.zeros(mask.size * 32, np.uint8)
        bits[list(self.moves[self.state])] = 1
        bits[self.vocab_size] = self.state in self.ends
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def forced(self):
        state, tokens = self.state, []
        while self.forces and len(self.moves[state]) == 1 and state not in self.ends:
            [(token, state)] = self.moves[state].items()
            tokens.append(token)
            if len(tokens) == 6:
                break
        return tokens

    def accept(self, token_id: int) -> None:
        self.state = self.moves[self.state][token_id]

    def accepts(self, tokens) -> bool:
        state = 0
        for token in tokens:
            if token not in self.moves[state]:
                return False
            state = self.moves[state][token]
        return state in self.ends
