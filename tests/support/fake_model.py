"""A model made of exact arithmetic: a cell of memory is wrong unless its whole history is right.

Each key/value cell holds the hash of the prefix up to its token, each recurrent state the hash of
the tokens before it, rounded at every grid edge. There are both kinds of recurrent layers: one
computes from its checkpoint and the log, the other from a working state. Memory that nobody owns
holds poison. What the next token must be can be computed from the tokens alone, so that any mistake
of the scheduler or the caches shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Sequence as Tokens

import numpy as np

from blazr.engine.batching import working_rows
from blazr.engine.block import NO_PAGE
from blazr.engine.cache.arena import ItemClass
from blazr.engine.cache.manager import CacheManager
from blazr.engine.outputs import TokenLogprobs
from blazr.engine.runner import StepResult
from blazr.engine.sampling.sampler import Sampled
from blazr.engine.scheduler import PlannedSequence, StepPlan
from blazr.engine.sequence import Fork

POISON = -(10**30)
MODULUS = (1 << 61) - 1
VOCAB = 5
ITEM_BYTES = 200
GRID = 4  # of those who ask for the next token


def mix(a: int, b: int) -> int:
    return (a * 1_000_003 + b * 7_919 + 12_345) % MODULUS


def rounded(state: int) -> int:
    """What is kept of a state at a grid edge."""
    return state - state % 4096


def states_after(tokens: Tokens[int], state: int = 1, *, grid: int = GRID) -> Iterator[int]:
    """The recurrent state after each of these tokens, which begin at a grid edge."""
    for count, token in enumerate(tokens, 1):
        state = mix(state, token + 1)
        state = state if count % grid else rounded(state)
        yield state


def chain(tokens: Tokens[int], state: int = 1, *, grid: int = GRID) -> int:
    """The recurrent state after all of them."""
    return [state, *states_after(tokens, state, grid=grid)][-1]


def outlook(tokens: Tokens[int], *, grid: int = GRID) -> int:
    """What decides what follows these tokens: it depends on every cell and on the state."""
    states = [1, *states_after(tokens, grid=grid)]
    return mix(sum(states[1:]) % MODULUS, states[-1])


def next_token(tokens: Tokens[int]) -> int:
    """What follows these tokens."""
    return outlook(tokens) % VOCAB


def scored(after: int, token: int, num_top: int) -> TokenLogprobs:
    """The score of a token where such an outlook was, and so many of the highest."""
    scores = {each: -(mix(after, each) % 1024) / 8 for each in range(VOCAB)}
    best = sorted(scores.items(), key=lambda pair: -pair[1])
    return TokenLogprobs(token, -(mix(after, token) % 1024) / 8, tuple(best[:num_top]))


class FakeModel:
    """Executes plans on integer memory, like a runner on tensors.

    Args:
        memory: Whose items it fills.
        bugs: Mistakes to make on purpose, by name.
    """

    cursed: frozenset[int] = frozenset()
    """Ids of requests whose sixth token cannot be computed."""

    def __init__(self, memory: CacheManager, bugs: frozenset[str] = frozenset()) -> None:
        self.memory = memory
        self.bugs = bugs
        shape = memory.shape
        self.cells = [
            [POISON] * shape.grid for _ in range(shape.num_superpages * shape.pages_per_superpage)
        ]
        self.states: list[object] = [
            POISON for _ in range(shape.num_superpages * shape.states_per_superpage)
        ]
        self.logs: list[list[int]] = [[POISON] * shape.grid for _ in range(shape.max_running)]
        self.working: list[int] = [POISON] * shape.working_copies * shape.max_running
        self.computed = 0
        self.watch_frees()

    def watch_frees(self) -> None:
        """Poison an item when its last reference goes."""
        arena = self.memory.arena
        release = arena.release

        def poisoning_release(cls: ItemClass, item: int) -> bool:
            is_free = release(cls, item)
            if is_free and cls is ItemClass.PAGE:
                self.cells[item] = [POISON] * self.memory.shape.grid
            elif is_free:
                self.states[item] = POISON
            return is_free

        arena.release = poisoning_release  # type: ignore[method-assign]

    def read(self, cls: ItemClass, item: int) -> bytes:
        """The content of an item, as a file gets it."""
        held = self.cells[item] if cls is ItemClass.PAGE else [self.states[item]]
        return repr(held).encode().ljust(ITEM_BYTES)

    def write(self, cls: ItemClass, item: int, content: bytearray) -> None:
        """Put back what a file holds."""
        held = json.loads(content)
        if cls is ItemClass.PAGE:
            self.cells[item] = held
        else:
            self.states[item] = held[0]

    def execute(self, plan: StepPlan) -> StepResult:
        for run_slot in plan.fresh_run_slots:
            self.logs[run_slot] = [POISON] * self.memory.shape.grid
            for place in range(run_slot, len(self.working), self.memory.shape.max_running):
                self.working[place] = POISON
        for row in plan.rows:
            if row.sequence.was_truncated:
                self._rewind(row.sequence)
        outlooks = [self._row(row, i) for i, row in enumerate(plan.rows)]
        self.computed += plan.num_tokens
        tokens = [
            [each % VOCAB for each in found[-1 - len(row.drafts) :]]
            for row, found in zip(plan.rows, outlooks, strict=True)
        ]
        drawn = {
            row.sequence: found[0]
            for row, found in zip(plan.rows, tokens, strict=True)
            if row.samples and row.sequence.request.pooling is None
        }
        result = StepResult()
        for index, found in enumerate(outlooks):
            self._ask_of_prompt(index, plan.rows[index], found, result)
        last = {row.sequence: found[-1] for row, found in zip(plan.rows, outlooks, strict=True)}
        for index, fork in enumerate(plan.forks):
            if fork.samples:
                drawn[fork.sequence] = drawn[fork.source]
            elif (num_top := fork.sequence.request.params.prompt_logprobs) is not None:
                token = fork.sequence.tokens[fork.length]
                result.fork_logprobs[index] = scored(last[fork.source], token, num_top)
            self._begin_fork(fork)
        sampled = list(drawn.values())
        if "results permuted between rows" in self.bugs:
            sampled.reverse()
        result.sampled = [Sampled(token) for token in sampled]
        self._follow_drafts(plan, tokens, result)
        return result

    def _follow_drafts(self, plan: StepPlan, tokens: list[list[int]], result: StepResult) -> None:
        """Let the result tell what is drawn behind drafts."""
        late = "what follows a draft drawn a token late" in self.bugs

        def draw_next(row: int, count: int) -> Sampled:
            return Sampled(tokens[row][count - late])

        def likeliest(row: int) -> list[int]:
            """Of every other request; of others each is drawn."""
            if plan.rows[row].sequence.request_id % 2:
                return [-1] * len(tokens[row])
            return [tokens[row][max(count - late, 0)] for count in range(len(tokens[row]))]

        result.draw_next, result.likeliest = draw_next, likeliest

    def _begin_fork(self, fork: Fork) -> None:
        """Give it what replies cannot share."""
        self.logs[fork.run_slot] = self.logs[fork.source.run_slot].copy()
        if "a fork without its working state" not in self.bugs:
            before, _ = self._working_rows(fork.source)
            self.working[fork.run_slot] = self.working[before]
        if fork.page != NO_PAGE:
            self.cells[fork.page] = self.cells[fork.source.pages[-1]].copy()

    def _ask_of_prompt(
        self, index: int, row: PlannedSequence, outlooks: list[int], result: StepResult
    ) -> None:
        """Score a row's part of its prompt, or make one number of it, where that is wanted."""
        sequence = row.sequence
        request = sequence.request
        if request.params.prompt_logprobs is not None:
            first = sequence.computed + 1
            following = sequence.tokens[first : min(first + row.num_tokens, sequence.num_prompt)]
            result.prompt_logprobs[index] = [
                scored(after, token, request.params.prompt_logprobs)
                for after, token in zip(outlooks, following, strict=False)
            ]
        if request.pooling == "mean":
            result.pooled[index] = np.array([float(sum(each % 1024 for each in outlooks))])
        elif request.pooling == "last" and row.samples:
            result.pooled[index] = np.array([float(outlooks[-1] % 1024)])

    def _row(self, row: PlannedSequence, index: int) -> list[int]:
        """Compute tokens of a sequence and say what decides what follows each of them."""
        shape, grid = self.memory.shape, self.memory.shape.grid
        sequence, count, _, drafts = row
        start = sequence.computed
        state, total = self._resume(sequence)
        writes = dict(sequence.pending)
        following = []
        rounds_all = "a state rounded only where it is kept" not in self.bugs
        computed = [*sequence.tokens[start : start + count - len(drafts)], *drafts]
        for position, token in enumerate(computed, start):
            if position == 5 and sequence.request_id in self.cursed:
                raise RuntimeError("cursed")
            state = mix(state, token + 1)
            is_kept = position - start + 1 in writes
            if (position + 1) % grid == 0 and (is_kept or rounds_all):
                state = rounded(state)
            total = (total + state) % MODULUS
            at = position
            if "grid by packed offset" in self.bugs and index and count > 1:
                at = position - position % grid + (position + index) % grid
            if shape.has_pages:
                self.cells[sequence.pages[at // grid]][at % grid] = state
            self.logs[sequence.run_slot][position % grid] = token
            if is_kept:
                self.states[writes[position - start + 1]] = state
            following.append(mix(total, state))
        _, behind = self._working_rows(sequence, len(drafts))
        self.working[behind] = state
        return following

    def _resume(self, sequence) -> tuple[int, int]:
        """State and sum where the sequence stands, from memory alone where there is memory."""
        shape, grid, start = self.memory.shape, self.memory.shape.grid, sequence.computed
        history = sequence.tokens[:start]
        state, odds = chain(history, grid=grid), 0
        if shape.has_states:
            logged = start - sequence.checkpoint_length
            is_fresh = not logged  # what was kept counts, whatever the working state is
            if "log not reset at a checkpoint" in self.bugs and start >= grid:
                logged = min(grid, logged + 1)
            state = self._logged_state(sequence, logged)
            before, _ = self._working_rows(sequence)
            odds = 0 if is_fresh else self.working[before] - state
        if shape.has_pages:
            cells = (self.cells[sequence.pages[p // grid]][p % grid] for p in range(start))
        else:
            cells = states_after(history, grid=grid)
        return state, (sum(cells) + odds) % MODULUS

    def _logged_state(self, sequence, num_rows: int) -> int:
        """The checkpoint, and so many rows of the log."""
        state = 1 if sequence.checkpoint is None else self.states[sequence.checkpoint]
        rows = self.logs[sequence.run_slot][:num_rows]
        return chain(rows, state, grid=self.memory.shape.grid)

    def _working_rows(self, sequence, num_drafts: int = 0) -> tuple[int, int]:
        """Where a step reads a sequence's working state, and where it writes it."""
        before, behind = working_rows(sequence, num_drafts, self.memory.shape)
        return sequence.run_slot + before, sequence.run_slot + behind

    def _rewind(self, sequence) -> None:
        """Make the working state again."""
        if "a truncated sequence not rewound" in self.bugs:
            return
        logged = sequence.computed - sequence.checkpoint_length
        if "rewound with a rejected row" in self.bugs:
            logged += 1
        place, _ = self._working_rows(sequence)
        first = sequence.working_length - sequence.checkpoint_length
        state = self.working[place] if first else self._logged_state(sequence, 0)
        rows = self.logs[sequence.run_slot][first:logged]
        self.working[place] = chain(rows, state, grid=self.memory.shape.grid)
