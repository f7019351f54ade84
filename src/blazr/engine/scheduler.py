"""Which tokens are computed in the next step. Pure: no clock, no thread, no tensor, no chance."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from blazr.engine.cache.arena import OutOfMemoryError
from blazr.engine.cache.manager import CacheManager
from blazr.engine.sequence import Phase, Sequence

MAX_COMPARED = 64


class PlannedSequence(NamedTuple):
    """One sequence's part of a step.

    Args:
        sequence: Whose tokens.
        num_tokens: How many of them, from ``sequence.computed`` on.
        samples: Whether they reach the end, so that the next token can be drawn.
    """

    sequence: Sequence
    num_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: decoding sequences first, then prefills.

    Args:
        rows: What is computed.
        fresh_run_slots: Run slots handed out since the last step.
        fresh_pages: Pages handed out since the last step.
        fresh_states: State slots handed out since the last step.
    """

    rows: tuple[PlannedSequence, ...]
    fresh_run_slots: tuple[int, ...] = ()
    fresh_pages: tuple[int, ...] = ()
    fresh_states: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_decodes(self) -> int:
        """How many of the first rows compute exactly one token and sample."""
        decodes = 0
        for row in self.rows:
            if row.num_tokens != 1 or not row.samples:
                break
            decodes += 1
        return decodes


@dataclass(slots=True)
class SchedulerCounts:
    """What has happened, for the metrics."""

    admitted: int = 0
    preempted: int = 0
    held: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reuse: dict[str, int] = field(default_factory=dict)


class Scheduler:
    """Continuous batching with chunked prefill; the oldest sequence always advances.

    Decoding sequences run in every step. A prefill waits for another that computes a prefix the
    two share. When memory runs out the youngest running sequence gives way and recomputes at most
    one grid interval later, unless its prefix was evicted meanwhile.

    Args:
        memory: Pages, states and prefixes.
        token_budget: Most tokens in a step.
    """

    def __init__(self, memory: CacheManager, *, token_budget: int) -> None:
        self.memory = memory
        self.token_budget = token_budget
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.counts = SchedulerCounts()
        self._limit = memory.shape.max_running
        self._fresh_run_slots: list[int] = []

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        sequence.phase = Phase.WAITING
        insort(self.waiting, sequence, key=lambda s: s.order)

    def sequences(self) -> Iterator[Sequence]:
        """Everything that has not finished."""
        yield from self.running
        yield from self.waiting

    def schedule(self, prefill_budget: int | None = None) -> StepPlan:
        """Decide the next step and reserve its memory.

        Args:
            prefill_budget: Most prefill tokens beside decoding sequences; None is no limit.
        """
        self._admit()
        decodes = [s for s in self.running if s.remaining == 1]
        prefills = [s for s in self.running if s.remaining > 1]
        left = self.token_budget - len(decodes)
        if decodes and prefill_budget is not None:
            left = min(left, prefill_budget)
        left = max(left, 1)
        rows = [row for s in decodes if (row := self._plan(s, 1)) is not None]
        for sequence in prefills:
            if left <= 0:
                break
            if sequence.phase is not Phase.RUNNING:
                continue
            row = self._plan(sequence, min(sequence.remaining, left))
            if row is not None:
                rows.append(row)
                left -= row.num_tokens
        # a later sequence may have pushed out an earlier row
        kept = [row for row in rows if row.sequence.phase is Phase.RUNNING]
        kept.sort(key=lambda row: not (row.num_tokens == 1 and row.samples))
        return self._finish_plan(kept)

    def commit(self, plan: StepPlan) -> None:
        """The step was computed."""
        for row in plan.rows:
            if row.sequence.phase is Phase.RUNNING:
                self.memory.commit(row.sequence, row.num_tokens)

    def finish(self, sequence: Sequence, *, publish: bool = True) -> None:
        """Take a sequence out for good and free its memory.

        Args:
            sequence: Running or waiting; if it has finished already, nothing happens.
            publish: False after a failure: nothing of it may be reused.
        """
        if sequence.phase is Phase.RUNNING:
            self.running.remove(sequence)
            self.memory.release(sequence, publish=publish)
            self._limit = min(self._limit + 1, self.memory.shape.max_running)
        elif sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        sequence.phase = Phase.FINISHED

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's memory; it goes back to its place in line."""
        self.running.remove(sequence)
        self.memory.release(sequence)
        sequence.num_preemptions += 1
        self.counts.preempted += 1
        self._limit = max(1, len(self.running))
        self.add(sequence)

    def _admit(self) -> None:
        held = []
        while self.waiting and len(self.running) < self._limit:
            sequence = self.waiting[0]
            if not self.memory.has_room_for(sequence) and self.running:
                break
            self.waiting.pop(0)
            if self._must_hold(sequence):
                held.append(sequence)
                if len(held) > MAX_COMPARED:
                    break
            else:
                self._start(sequence)
        self.counts.held += len(held)
        for sequence in held:
            self.add(sequence)

    def _start(self, sequence: Sequence) -> None:
        self.memory.start(sequence)
        assert sequence.run_slot is not None
        self._fresh_run_slots.append(sequence.run_slot)
        sequence.phase = Phase.RUNNING
        insort(self.running, sequence, key=lambda s: s.order)
        if not sequence.num_preemptions:
            counts = self.counts
            sequence.num_cached = sequence.computed
            counts.admitted += 1
            counts.prompt_tokens += sequence.num_prompt
            counts.cached_tokens += sequence.computed
            counts.reuse[sequence.reuse] = counts.reuse.get(sequence.reuse, 0) + 1

    def _must_hold(self, sequence: Sequence) -> bool:
        """Whether a running prefill is about to compute a prefix this sequence shares.

        It is asked to keep its state where the two part, and the sequence waits until then.
        """
        if not self.memory.reads_prefix(sequence):
            return False
        grid, wanted = self.memory.shape.grid, sequence.request.params.prompt_logprobs
        lag = self.memory.lag(sequence) * grid
        known: int | None = None
        for other in self.running:
            # what it has computed is published, so only what is still to come matters
            if other.remaining <= grid or other.request.cache_salt != sequence.request.cache_salt:
                continue
            shared = min(_common(sequence, other), len(sequence.tokens) - 1) // grid * grid
            if shared <= other.computed or not _scores_enough(other, wanted):
                continue
            if known is None:
                known = self.memory.usable_prefix(sequence)
            if shared - lag > known:
                other.wanted.add(shared - lag)
                return True
        return False

    def _plan(self, sequence: Sequence, num_tokens: int) -> PlannedSequence | None:
        """Reserve memory for one sequence, taking it from younger ones if need be."""
        while sequence.phase is Phase.RUNNING:
            try:
                self.memory.reserve(sequence, num_tokens)
            except OutOfMemoryError:
                self.preempt(self.running[-1])
                continue
            return PlannedSequence(sequence, num_tokens, sequence.remaining == num_tokens)
        return None

    def _finish_plan(self, rows: list[PlannedSequence]) -> StepPlan:
        memory = self.memory
        plan = StepPlan(
            tuple(rows),
            tuple(self._fresh_run_slots),
            tuple(memory.new_pages),
            tuple(memory.new_states),
        )
        self._fresh_run_slots.clear()
        memory.new_pages.clear()
        memory.new_states.clear()
        return plan


def _scores_enough(other: Sequence, wanted: int | None) -> bool:
    """Whether it leaves the log-probabilities of its prompt that another wants."""
    found = other.request.params.prompt_logprobs
    return wanted is None or (found is not None and found >= wanted)


def _common(a: Sequence, b: Sequence) -> int:
    """Leading tokens two sequences share."""
    length = min(len(a.tokens), len(b.tokens))
    left = np.frombuffer(a.tokens, np.int32, length)
    right = np.frombuffer(b.tokens, np.int32, length)
    different = np.flatnonzero(left != right)
    return int(different[0]) if len(different) else length
