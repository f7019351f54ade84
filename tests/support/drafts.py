"""Drafts for tests: steps that compute them, and drafters that err as often as is wanted."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from random import Random

from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.engine import Engine
from blazr.engine.request import Request
from blazr.engine.runner import StepResult
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.engine.sequence import Phase
from blazr.engine.sequence import Sequence as RunningSequence
from blazr.engine.speculation.drafter import Draft, Drafter
from blazr.engine.speculation.speculator import Speculator
from tests.support.fake_model import VOCAB, FakeModel


def most_drafts(memory: CacheManager, sequence: RunningSequence) -> int:
    """How many can be computed behind what remains and still be dropped; -1 where not even that."""
    return memory.shape.grid - 1 - sequence.computed % memory.shape.grid - sequence.remaining


def compute_drafts(
    scheduler: Scheduler,
    execute: Callable[[StepPlan], StepResult],
    sequence: RunningSequence,
    drafts: Sequence[int],
) -> bool:
    """Compute what remains of a running sequence and so many drafts.

    Returns:
        Whether it was done. If not, the sequence has given way to others, and has no drafts.

    Raises:
        RuntimeError: The step failed, and was cancelled.
    """
    before = len(sequence.tokens)
    sequence.tokens.extend(drafts)
    row = scheduler._plan(sequence, sequence.remaining)
    scheduler._fork_points.clear()
    plan = scheduler._finish_plan([] if row is None else [row._replace(samples=False)])
    if row is None:
        assert sequence.phase is Phase.WAITING
        del sequence.tokens[before:]
        return False
    try:
        execute(plan)
    except RuntimeError:
        scheduler.cancel(plan)
        raise
    scheduler.commit(plan)
    return True


class EagerSpeculator(Speculator):
    """Has all drafts computed, whatever they cost."""

    def _choose_depths(self, num_sequences, proposed, room):
        depths = {}
        for sequence in proposed:
            depths[sequence] = min(max(room, 0), self._draft(sequence).most)
            room -= depths[sequence]
        return {sequence: depth for sequence, depth in depths.items() if depth}

    def _rest(self, replies, num_sequences):
        """Ask again for each token."""


def eager_speculator(drafter: Drafter, shape: CacheShape) -> EagerSpeculator:
    """As an engine over such memory has one."""
    return EagerSpeculator([drafter], grid=shape.grid, crosses_blocks=not shape.has_states)


class GuessingDrafter(Drafter):
    """Knows what comes next, but errs; the same after the same tokens.

    Args:
        next_token: What follows tokens.
        vocab_size: Wrong drafts are below it.
        right: The share of drafts that are right on purpose.
    """

    def __init__(
        self, next_token: Callable[[Sequence[int]], int], vocab_size: int, right: float
    ) -> None:
        self._next_token = next_token
        self._vocab_size = vocab_size
        self._right = right

    def propose(self, sequence: RunningSequence, most: int) -> Draft | None:
        rng = Random(zlib.crc32(sequence.tokens.tobytes()))
        history = list(sequence.tokens)
        for _ in range(rng.randint(0, most)):
            is_right = rng.random() < self._right
            history.append(
                self._next_token(history) if is_right else rng.randrange(self._vocab_size)
            )
        drafts = history[len(sequence.tokens) :]
        return Draft(tuple(drafts), "guess") if drafts else None


def fake_engine(drafter: Drafter | None, *, grid: int) -> Engine:
    """An engine over the fake model; all drafts are computed, if there is a drafter."""
    shape = CacheShape(
        grid=grid,
        num_superpages=40,
        pages_per_superpage=8,
        states_per_superpage=4,
        max_running=2,
        max_blocks=64,
    )
    memory = CacheManager(shape)
    speculator = None if drafter is None else eager_speculator(drafter, shape)
    scheduler = Scheduler(memory, token_budget=32, speculator=speculator)
    return Engine(scheduler, FakeModel(memory).execute, vocab_size=VOCAB, max_seq_len=200)


def running_sequence(
    tokens: Sequence[int], *, max_output: int = 10_000, cache_salt: str = "", **params: object
) -> RunningSequence:
    """A sequence whose prompt are the first half of the tokens, and whose reply the others."""
    prompt = tuple(tokens[: len(tokens) // 2])
    request = Request(
        prompt_ids=prompt,
        params=SamplingParams(**params),  # type: ignore[arg-type]
        cache_salt=cache_salt,
    )
    sequence = RunningSequence(
        request_id=1,
        request=request,
        index=0,
        order=(0, 0, 0),
        tokens=array("i", tokens),
        seed=0,
        max_length=100_000,
        max_output=max_output,
        phase=Phase.RUNNING,
    )
    sequence.computed = len(tokens) - 1
    return sequence
