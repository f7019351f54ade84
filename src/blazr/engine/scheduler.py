"""Which tokens are computed in the next step. Pure: no clock, no thread, no tensor, no chance."""

from __future__ import annotations

import logging
from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from blazr.engine.cache.arena import OutOfMemoryError
from blazr.engine.cache.manager import CacheManager
from blazr.engine.sequence import Fork, Phase, Sequence
from blazr.engine.speculation.speculator import Speculator
from blazr.engine.turns import Turns

_log = logging.getLogger(__name__)

MAX_COMPARED = 64  # waiting prompts that are compared with running ones in one step
LEAST_SHARED = 1 / 4  # of a block: a shared prefix as long as that is worth waiting for
SHORT_PROMPT = 64  # tokens left to read: with no more, a prompt need not wait for longer ones
SHORT_SHARE = 8  # tokens in every step for each short prompt, so that eight steps read it
MOST_OVERTAKEN = 32  # times that short prompts may overtake one for which there is no room


class PlannedSequence(NamedTuple):
    """One sequence's part of a step.

    Args:
        sequence: Whose tokens.
        num_tokens: How many of them, from ``sequence.computed`` on, drafts included.
        samples: Whether they reach the end, so that the next token can be drawn.
        drafts: Ids that may be what is drawn next, computed behind its last token.
    """

    sequence: Sequence
    num_tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def decodes(self) -> bool:
        """Whether all but the last token and drafts behind it are in memory."""
        return self.samples and self.num_tokens == 1 + len(self.drafts)


class StepPlan(NamedTuple):
    """One step: decoding sequences first, then prefills.

    Args:
        rows: What is computed.
        forks: Replies that begin where a row ends: after the draws of the rows each takes a copy of
            what is still written to, and draws a token of its own where the row's prompt ends.
        fresh_run_slots: Run slots handed out since the last step.
        fresh_pages: Pages handed out since the last step.
    """

    rows: tuple[PlannedSequence, ...]
    forks: tuple[Fork, ...] = ()
    fresh_run_slots: tuple[int, ...] = ()
    fresh_pages: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_decodes(self) -> int:
        """How many of the first rows compute exactly one token and sample."""
        first = takewhile(lambda row: row.num_tokens == 1 and row.samples, self.rows)
        return sum(1 for _ in first)


@dataclass(slots=True)
class SchedulerCounts:
    """What has happened, for the metrics."""

    preempted: int = 0
    held: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    draft_steps: int = 0
    drafts: int = 0
    kept_drafts: int = 0
    reuse: Counter[str] = field(default_factory=Counter)


class Scheduler:
    """Continuous batching with chunked prefill; the oldest sequence always advances.

    Decoding sequences run in every step. Long prompts are read one after the other, beside short
    ones, for which half of every step is kept. A prefill waits for another that computes a prefix
    the two share. When memory runs out the youngest running sequence gives way and recomputes at
    most one grid interval later, unless its prefix was evicted meanwhile. Requests that wait start
    in their clients' turn.

    Args:
        memory: Pages, states and prefixes.
        token_budget: Most tokens in a step, but for those that may not be cut.
        cuts_prompts: Whether a prompt may be computed in pieces.
        speculator: Drafts what may follow the sequences that decode, if anything does.
    """

    def __init__(
        self,
        memory: CacheManager,
        *,
        token_budget: int,
        cuts_prompts: bool = True,
        speculator: Speculator | None = None,
    ) -> None:
        self.memory = memory
        self.speculator = speculator
        self.token_budget = token_budget
        self.cuts_prompts = cuts_prompts
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        # Requests with a larger id wait. It is finite while a pause lets the others finish first.
        self.admit_until = inf
        self.counts = SchedulerCounts()
        self._turns = Turns()
        self._limit = memory.shape.max_running
        self._suspects: dict[Sequence, int] = {}
        # By running prefill: the lengths of the prefixes that waiting sequences share with it. The
        # prefill is cut there, so that each of them can fork from its memory at that point.
        self._fork_points: dict[Sequence, list[tuple[int, Sequence]]] = {}

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        sequence.phase = Phase.WAITING
        insort(self.waiting, sequence, key=lambda s: s.order)

    def sequences(self) -> list[Sequence]:
        """Everything that has not finished."""
        return [*self.running, *self.waiting]

    def in_turn(self) -> Iterator[Sequence]:
        """Yield what waits and may start, in the order in which it is tried."""
        may_start = [each for each in self.waiting if each.request_id <= self.admit_until]
        return self._turns.order(may_start, self.running)

    @property
    def is_drained(self) -> bool:
        """Whether nothing runs, and nothing waits that may start."""
        return not self.running and all(each.request_id > self.admit_until for each in self.waiting)

    def stop_admitting(self) -> None:
        """Let no request start that comes from now on, until `admit_until` is raised."""
        last = max((each.request_id for each in self.sequences()), default=0)
        self.admit_until = min(self.admit_until, last)

    def forget_prefixes(self, *, restarts: bool) -> int:
        """Forget what was computed, and is used by nobody.

        Args:
            restarts: Let nobody use any: what runs computes all of its tokens again.

        Returns:
            How many blocks were forgotten.
        """
        known = self.memory.trie.num_nodes
        for sequence in self.running.copy() if restarts else ():
            self.preempt(sequence, publish=False)
        self.memory.forget()
        return known - self.memory.trie.num_nodes

    def schedule(self, prefill_budget: int | None = None) -> StepPlan:
        """Decide the next step and reserve its memory.

        Args:
            prefill_budget: Most prefill tokens beside decoding sequences; None is no limit.
        """
        self._fork_points.clear()
        if self.speculator is not None:
            self.speculator.has_looked = False  # as long as it is not asked
        for sequence, until in list(self._suspects.items()):
            if sequence.phase is not Phase.FINISHED and sequence.computed < until:
                return self._schedule_alone(sequence)
            del self._suspects[sequence]
        if self.waiting:
            self._admit()
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for sequence in self.running:
            (decodes if sequence.remaining == 1 else prefills).append(sequence)
        # at least one, so that prefill never starves while others decode
        room = max(self.token_budget - len(decodes), 1)
        drafts: dict[Sequence, tuple[int, ...]] = {}
        if self.speculator is not None and decodes and not prefills:
            drafts = self.speculator.propose(decodes, room=self.token_budget - len(decodes))
        rows = [row for s in decodes if (row := self._plan(s, 1, drafts.get(s, ()))) is not None]
        if prefills:
            left = room
            if decodes and prefill_budget is not None:
                left = min(room, max(prefill_budget, SHORT_SHARE))
            rows += self._plan_prompts(prefills, left, room)
        # reserving memory for a later sequence may have preempted an earlier row's
        kept = [row for row in rows if row.sequence.phase is Phase.RUNNING]
        if prefills or drafts:
            # decodes first: the kernels take those of a step together, one token each
            kept.sort(key=lambda row: not (row.num_tokens == 1 and row.samples))
        return self._finish_plan(kept)

    def commit(self, plan: StepPlan) -> None:
        """Record that a step was computed: its tokens are in memory, and its forks run."""
        for row in plan.rows:
            sequence, num_tokens, _, drafts = row
            num_drafts = len(drafts)
            # what a sequence has to read was counted as it started
            if sequence.request.client and row.decodes:
                self._turns.charge(sequence, num_tokens)
            self.memory.commit(sequence, num_tokens - num_drafts, num_drafts=num_drafts)
        for fork in plan.forks:
            self.memory.adopt(fork)
            self.waiting.remove(fork.sequence)
            self._run(fork.sequence)

    def learn_time(self, plan: StepPlan, seconds: float) -> None:
        """Record how long a step took, from `schedule` to the tokens that it drew."""
        speculator = self.speculator
        if speculator is not None and speculator.has_looked:  # so all of its sequences decode
            seconds -= speculator.apart_s
            speculator.learn_time(len(plan.rows), plan.num_tokens, seconds)

    def schedule_next(self, plan: StepPlan) -> StepPlan | None:
        """Plan the step after one that was launched, before the tokens of that one are known.

        Args:
            plan: The step that was launched; see `launch`.

        Returns:
            A plan in which the same sequences go on; None where more has to be decided, which
            `schedule` does once the tokens are known.
        """
        may_start = self.waiting and len(self.running) < self._limit
        alive = [row.sequence for row in plan.rows if row.sequence.phase is Phase.RUNNING]
        if may_start or self._suspects or len(alive) < len(self.running):
            return None
        if self.speculator is not None:
            return None
        rows = []
        for sequence in alive:
            if sequence.forks_at_end and not sequence.num_output:
                return None  # others begin behind that step
            # with the token that is being drawn, which may be its last
            length, num_output = len(sequence.tokens) + 1, sequence.num_output + 1
            if length < sequence.max_length and num_output < sequence.max_output:
                try:
                    self.memory.reserve(sequence, 1)
                except OutOfMemoryError:
                    return None
                rows.append(PlannedSequence(sequence, 1, samples=True))
        return self._finish_plan(rows) if rows else None

    def drop(self, plan: StepPlan) -> None:
        """Undo a plan that is not computed: the next one clears the memory handed out for it."""
        self.memory.new_run_slots[:0] = plan.fresh_run_slots
        self.memory.new_pages[:0] = plan.fresh_pages

    def launch(self, plan: StepPlan) -> None:
        """Record that a step was launched, which draws one token of each sequence."""
        for row in plan.rows:
            self._turns.charge(row.sequence, row.num_tokens)
            self.memory.advance(row.sequence)

    def keep_drafts(self, row: PlannedSequence, num_kept: int, seconds: float) -> None:
        """Record how many of a row's drafts were accepted.

        Args:
            row: A row with drafts.
            num_kept: Accepted drafts that stay in memory, from the first on. -1 where the token
                before them has to be computed again, too.
            seconds: How long the draws took that decided so.
        """
        sequence, num_drafts = row.sequence, len(row.drafts)
        self.memory.accept(sequence, num_kept, num_drafts=num_drafts)
        num_kept = max(num_kept, 0)
        sequence.num_drafts += num_drafts
        sequence.num_kept_drafts += num_kept
        self.counts.draft_steps += 1
        self.counts.drafts += num_drafts
        self.counts.kept_drafts += num_kept
        if self.speculator is not None:
            self.speculator.learn_outcome(sequence, num_drafts, num_kept, seconds)

    def cancel(self, plan: StepPlan) -> None:
        """Record that a step failed, and give back what was reserved for its forks.

        It is not known which of several sequences made it fail. Each starts again and runs alone
        until it is past that step, so that only one that fails again has to end.
        """
        for fork in plan.forks:
            self.memory.cancel_fork(fork)
        if len(plan.rows) > 1:
            for sequence, num_tokens, *_ in plan.rows:
                if sequence.phase is Phase.RUNNING:
                    self._suspects[sequence] = sequence.computed + num_tokens
                    self.preempt(sequence, publish=False)

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
        if self.speculator is not None:
            self.speculator.forget(sequence)

    def preempt(self, sequence: Sequence, *, publish: bool = True) -> None:
        """Take a running sequence's memory; it goes back to its place in line.

        Args:
            sequence: A running one.
            publish: False after a failure: nothing of it may be reused.
        """
        _log.debug(
            "preempt %d.%d after %d tokens; %d go on running",
            sequence.request_id,
            sequence.index,
            sequence.computed,
            len(self.running) - 1,
        )
        self.requeue(sequence, publish=publish)
        self.counts.preempted += 1

    def requeue(self, sequence: Sequence, *, publish: bool = True) -> None:
        """Let a running sequence begin again at its place in line.

        Args:
            sequence: A running one.
            publish: False after a failure: nothing of it may be reused.
        """
        self.running.remove(sequence)
        self.memory.release(sequence, publish=publish)
        sequence.num_preemptions += 1
        self.add(sequence)

    def _schedule_alone(self, sequence: Sequence) -> StepPlan:
        if sequence.phase is Phase.WAITING:
            if not self.memory.free_run_slots:
                self.preempt(self.running[-1])
            self.waiting.remove(sequence)
            self._start(sequence)
        row = self._plan(sequence, self._chunk_size(sequence, self.token_budget))
        if row is None:  # it gave way to older ones; next time they have given way to it
            for other in list(self.running):
                self.preempt(other)
        return self._finish_plan([] if row is None else [row])

    def _admit(self) -> None:
        if len(self.running) >= self._limit:
            return
        barred: Sequence | None = None  # the first that has to wait; only short ones pass it
        lacks_room = False
        num_started = 0
        for num_seen, sequence in enumerate(self.in_turn()):
            # comparing prompts takes time, which decoding waits for
            if len(self.running) >= self._limit or num_seen - num_started >= MAX_COMPARED:
                break
            passes = barred is None or self._may_pass(sequence, barred)
            if lacks_room and not passes:
                continue
            # Alone, a sequence starts in any case: nothing would make more room.
            if self.running and not self.memory.has_room_for(sequence):
                barred = barred or sequence
                lacks_room = True
                if sequence.num_overtaken >= MOST_OVERTAKEN:
                    break
            elif self._waits_for_prefix(sequence):
                self.counts.held += 1
            elif not passes or self._has_to_queue(sequence):
                barred = barred or sequence
            else:
                self.waiting.remove(sequence)
                self._start(sequence)
                num_started += 1
                if barred is not None:
                    barred.num_overtaken += 1

    def _has_to_queue(self, sequence: Sequence) -> bool:
        """Whether a long prompt would take a run slot and memory long before it can be read."""
        unread = sum(each.remaining for each in self.running if each.remaining > SHORT_PROMPT)
        return unread >= 2 * self.token_budget and not self._is_short(sequence)

    def _may_pass(self, sequence: Sequence, barred: Sequence) -> bool:
        return sequence.order[0] == barred.order[0] and self._is_short(sequence)

    def _is_short(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence has little to read that is not in memory."""
        if len(sequence.tokens) <= SHORT_PROMPT:
            return True
        if not self.memory.reads_prefix(sequence):
            return False
        return len(sequence.tokens) - self.memory.usable_prefix(sequence) <= SHORT_PROMPT

    def _start(self, sequence: Sequence) -> None:
        self.memory.start(sequence)
        self._run(sequence)

    def _run(self, sequence: Sequence) -> None:
        sequence.phase = Phase.RUNNING
        self._turns.start(sequence)
        insort(self.running, sequence, key=lambda s: s.order)
        _log.debug(
            "start %d.%d: %d of %d tokens are in memory (%s); %d running, %d waiting",
            sequence.request_id,
            sequence.index,
            sequence.computed,
            len(sequence.tokens),
            sequence.reuse,
            len(self.running),
            len(self.waiting),
        )
        if not sequence.num_preemptions:
            counts = self.counts
            sequence.num_cached = sequence.computed
            counts.prompt_tokens += sequence.num_prompt
            counts.cached_tokens += sequence.computed
            counts.reuse[sequence.reuse] += 1

    def _waits_for_prefix(self, sequence: Sequence) -> bool:
        """Whether a running prefill is about to compute a prefix this sequence shares.

        It waits until that stands where the two part, and goes on from there; should there be no
        room then, from a state that is kept a little before. A reply to the same request waits
        until it can begin where that prefill ends.
        """
        if sequence.forks_at_end and self._has_sibling(sequence):
            return True
        if not self.memory.reads_prefix(sequence):
            return False
        source, at = self._longest_shared_prefill(sequence)
        if source is None:
            return False
        grid = self.memory.shape.grid
        is_scored = sequence.asks_of_prompt
        # answers that are scored come many to one context, however short
        least = ceil(grid * LEAST_SHARED) if is_scored else grid
        if at - self.memory.usable_prefix(sequence) < least:
            return False
        last = at - (sequence.request.params.prompt_logprobs is not None)  # which tells of the next
        source.wanted[last // grid * grid] = "parted"
        _log.debug(
            "hold %d.%d: it shares %d tokens with %d.%d, which computes them",
            sequence.request_id,
            sequence.index,
            at,
            source.request_id,
            source.index,
        )
        self._fork_points.setdefault(source, []).append((at, sequence))
        return True

    def _has_sibling(self, sequence: Sequence) -> bool:
        """Whether another reply to its request reads their prompt, or is about to."""
        held = (each for points in self._fork_points.values() for _, each in points)
        return any(
            other.request_id == sequence.request_id and not other.num_output
            for other in (*self.running, *held)
        )

    def _longest_shared_prefill(self, sequence: Sequence) -> tuple[Sequence | None, int]:
        """The running prefill that will share most with a sequence, and how much."""
        source = None
        farthest = 0
        wanted = sequence.request.params.prompt_logprobs
        salt = sequence.request.cache_salt
        for other in self.running:
            # what it has computed is published, so only what is still to come matters
            if other.remaining <= 1 or other.request.cache_salt != salt:
                continue
            at = min(_shared_length(sequence, other), len(sequence.tokens) - 1)
            if wanted is not None:  # scores are known of prompts alone
                found = other.request.params.prompt_logprobs
                # one that has handed them out does not gather them when it begins again
                is_enough = found is not None and found >= wanted and other.scores is not None
                at = min(at, sequence.num_prompt - 1, other.num_prompt - 1) if is_enough else 0
            if at > max(other.computed, farthest):
                source = other
                farthest = at
        return source, farthest

    def _chunk_size(self, sequence: Sequence, budget: int) -> int:
        most = min(sequence.remaining, budget) if self.cuts_prompts else sequence.remaining
        points = [at - sequence.computed for at, _ in self._fork_points.get(sequence, ())]
        return sequence.whole_chunk(min(most, *points) if points else most)

    def _plan_prompts(
        self, prefills: list[Sequence], left: int, room: int
    ) -> list[PlannedSequence]:
        """Read the oldest prompts, and beside them short ones.

        Args:
            prefills: What has to read, in order.
            left: Tokens that are to be read.
            room: Tokens that the step has room for, as short prompts may take more.
        """
        short, others = _split_prefills(prefills)
        unread = sum(each.remaining for each in others)
        reserved = min(max(left // 2, SHORT_SHARE), unread, room)
        share = min(max(left - reserved, SHORT_SHARE * len(short)), room - reserved)
        rows = self._plan_prefills(short, share, least=SHORT_SHARE)
        left = max(left - sum(row.num_tokens for row in rows), reserved)
        return rows + self._plan_prefills(others, left)

    def _plan_prefills(
        self, sequences: list[Sequence], budget: int, *, least: int = 0
    ) -> list[PlannedSequence]:
        """Read prompts in their order, but at least so many tokens of each while any are left."""
        rows = []
        for behind, sequence in zip(range(len(sequences))[::-1], sequences, strict=True):
            if budget <= 0:
                break
            if sequence.phase is not Phase.RUNNING:
                continue
            most = max(budget - least * behind, min(least, budget))
            row = self._plan(sequence, self._chunk_size(sequence, most))
            if row is not None:
                rows.append(row)
                budget -= row.num_tokens
        return rows

    def _plan(
        self, sequence: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()
    ) -> PlannedSequence | None:
        """Reserve memory for one sequence, taking it from younger ones if need be."""
        while sequence.phase is Phase.RUNNING:
            try:
                self.memory.reserve(sequence, num_tokens)
            except OutOfMemoryError:
                # the youngest has the least to compute again, and the oldest always advances
                self.preempt(self.running[-1])
                # it would be admitted at once and preempted again, so fewer run until one finishes
                self._limit = max(1, len(self.running))
                continue
            if drafts:
                drafts = drafts[: self.memory.reserve_drafts(sequence, len(drafts))]
            is_last = sequence.remaining == num_tokens
            return PlannedSequence(sequence, num_tokens + len(drafts), is_last, drafts)
        return None

    def _reserve_forks(self, row: PlannedSequence, room: int) -> list[Fork]:
        """Let others begin where a row ends, as many as there is room for.

        They are the request's other replies at the end of its prompt, and who parts from it there.
        """
        source = row.sequence
        upto = row.sequence.computed + row.num_tokens
        begin = [(each, False) for at, each in self._fork_points.get(source, ()) if at == upto]
        if source.forks_at_end and row.samples and not source.num_output:
            begin += [
                (each, True)
                for each in self.waiting
                if each.request_id == source.request_id and not each.num_output
            ]
        forks: list[Fork] = []
        for other, samples in begin[: max(room, 0)]:
            fork = self.memory.reserve_fork(other, source, upto, samples=samples)
            if fork is None:
                break
            forks.append(fork)
        return forks

    def _finish_plan(self, rows: list[PlannedSequence]) -> StepPlan:
        forks: list[Fork] = []
        for row in rows:
            if self._fork_points or row.sequence.forks_at_end:
                forks += self._reserve_forks(row, self._limit - len(self.running) - len(forks))
        return StepPlan(tuple(rows), tuple(forks), *self.memory.take_new())


def _split_prefills(sequences: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Short prompts behind the oldest, and the others; none passes one of higher priority."""
    short: list[Sequence] = []
    others = sequences[:1]
    for each in sequences[1:]:
        is_short = each.remaining <= SHORT_PROMPT and each.order[0] == sequences[0].order[0]
        (short if is_short else others).append(each)
    return short, others


def _shared_length(a: Sequence, b: Sequence) -> int:
    """Leading tokens two sequences share."""
    length = min(len(a.tokens), len(b.tokens))
    left = np.frombuffer(a.tokens, np.int32, length)
    right = np.frombuffer(b.tokens, np.int32, length)
    different = np.flatnonzero(left != right)
    shared = int(different[0]) if len(different) else length
    for pair in zip_longest(a.request.embeddings, b.request.embeddings):
        if pair[0] != pair[1]:
            return min(shared, *(each.start for each in pair if each is not None))
    return shared
