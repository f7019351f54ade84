"""Decode steps made again from a recording, one for each number of sequences and of tokens."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Never

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from blazr.engine.batching import build_batch
from blazr.engine.cache.manager import CacheManager
from blazr.engine.scheduler import StepPlan
from blazr.models.causal_lm import CausalLM
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.rope import Positions, RopeConfig
from blazr.nn.operands.step import Span, StepNumbers, StepTable
from blazr.nn.ops.replay import Arena, ForeignError, Replay, can_replay, record

logger = logging.getLogger(__name__)

_SEEN = 3  # steps of a size without drafts before it is recorded; sizes with drafts come again

MOST_RECORDED = 256  # sizes: each takes about a megabyte
# sequences that decode, tokens that are computed of them, whether any of them has an adapter
Size = tuple[int, int, bool]


class Replays:
    """Logits of decode steps, by one native call where possible.

    A step of B decoding sequences and T tokens, T - B of them drafts, differs from the next in
    numbers only: it is recorded on tensors of its own, which get the numbers of each step before it
    is made again.

    Args:
        model: The network.
        caches: Its memory, which stays where it is.
    """

    def __init__(self, model: CausalLM, caches: Sequence[LayerCache]) -> None:
        self._model = model
        self._caches = caches
        self._arena = Arena()
        self._ropes: set[RopeConfig] = set()
        self._seen: Counter[Size] = Counter()
        self._made: OrderedDict[Size, tuple[_Inputs, Replay]] = (
            OrderedDict()
        )  # the latest used last
        self._is_possible = can_replay(model.device.type)

    def logits(self, plan: StepPlan, memory: CacheManager) -> Tensor | None:
        """(T, V), float32, overwritten by the next step; None where the step has to be computed.

        Args:
            plan: Recorded if every sequence decodes, and draws a token.
            memory: Where the sequences' memory is.
        """
        has_adapters = any(row.sequence.request.adapter for row in plan.rows)
        size = len(plan.rows), plan.num_tokens, has_adapters
        is_asked = any(row.sequence.asks_of_prompt for row in plan.rows)
        if not self._is_possible or is_asked or not all(row.decodes for row in plan.rows):
            return None
        if size not in self._made:
            self._seen[size] += 1
            is_rare = self._seen[size] < _SEEN and size[0] == size[1]
            if is_rare or not self._record(size, memory.shape.max_blocks):
                return None
        self._made.move_to_end(size)
        inputs, replay = self._made[size]
        inputs.take(plan, memory)
        return replay(build_batch(plan, memory, self._model.device) if replay.num_python else None)

    def record(self, sizes: Iterable[Size], max_blocks: int) -> None:
        """Record decode steps before they are met; those that cannot be kept are computed.

        Args:
            sizes: Numbers of sequences and of tokens.
            max_blocks: Blocks that a sequence may have.
        """
        for size in sizes:
            if self._is_possible and size not in self._made:
                self._record(size, max_blocks)

    def num_python(self, size: Size) -> int | None:
        """How many parts of such a step stay in Python; None if it is not recorded."""
        return self._made[size][1].num_python if size in self._made else None

    def _record(self, size: Size, max_blocks: int) -> bool:
        inputs = _Inputs(size, max_blocks, self._ropes)

        def run() -> Tensor:
            inputs.rotary.prepare()
            hidden = self._model(inputs.batch, self._caches)
            return self._model.logits(hidden, inputs.batch.adapters)

        replay = record(run, inputs.batch, self._arena)
        if inputs.rotary.unknown - self._ropes:
            self._ropes |= inputs.rotary.unknown
            return self._record(size, max_blocks)
        self._is_possible = replay is not None
        if replay is None:
            logger.debug("steps cannot be recorded: each is computed")
        else:
            self._made[size] = inputs, replay
            if len(self._made) > MOST_RECORDED:
                self._made.popitem(last=False)
            logger.debug(
                "recorded the step of %d sequences and %d tokens, %d parts of it in Python",
                *size[:2],
                replay.num_python,
            )
        return self._is_possible


class _Inputs:
    """Arrays that hold a step's inputs, step after step, and a batch of tensors over them.

    Args:
        whole_size: What is computed.
        max_blocks: Blocks that a sequence may have.
        ropes: Rotations that the layers want.
    """

    def __init__(self, whole_size: Size, max_blocks: int, ropes: set[RopeConfig]) -> None:
        size, num_tokens, has_adapters = whole_size
        # a token passes one edge at most, and drafts none
        parts = [num_tokens, num_tokens, num_tokens, num_tokens, 8 * size, 2 * size]
        self._numbers = np.zeros(sum(parts), np.int64)
        whole = torch.from_numpy(self._numbers)
        tokens, positions, slots, adapters, spans, edges = whole.split(parts)
        self._tables = np.zeros((size, max_blocks), np.int64)
        self._stamps = [-1] * size
        self.rotary = _RecordedPositions(positions, ropes)
        numbers = StepNumbers(
            spans=spans.view(size, 8),
            checkpoints=edges.view(size, 2),
            longest=num_tokens - size + 1,
        )
        self.batch = ForwardBatch(
            token_ids=tokens,
            positions=positions,
            slot_mapping=slots,
            logits_indices=torch.empty(0, dtype=torch.int64),
            table=StepTable(
                _Unseen(),
                torch.from_numpy(self._tables),
                num_decodes=size if num_tokens == size else 0,
                recorded=numbers,
            ),
            adapters=adapters if has_adapters else None,
        )
        self.batch.__dict__["rotary"] = self.rotary

    def take(self, plan: StepPlan, memory: CacheManager) -> None:
        """Hold this step's numbers."""
        grid = memory.shape.grid
        has_states = memory.shape.has_states
        tables = memory.block_tables
        # plain lists are filled faster than arrays, and one array faster than five
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        adapters: list[int] = []
        spans: list[int] = []
        edges: list[int] = []
        for index, row in enumerate(plan.rows):
            sequence = row.sequence
            start = sequence.computed
            run = sequence.run_slot
            state = sequence.checkpoint or 0
            assert run is not None
            logged = start - sequence.checkpoint_length if has_states else 0
            slot = sequence.pages[start // grid] * grid + start % grid if sequence.pages else 0
            pending = sequence.pending
            spans += (len(tokens), row.num_tokens, start, logged)
            spans += (state, run, len(edges) // 2, len(pending))
            tokens.append(sequence.tokens[start])
            positions.append(start)
            slots.append(slot)
            adapters += [sequence.adapter_slot] * row.num_tokens
            if row.drafts:  # they lie on the page that holds the token before them
                tokens += row.drafts
                positions += range(start + 1, start + row.num_tokens)
                slots += range(slot + 1, slot + row.num_tokens)
            for edge in pending:
                edges += edge
            if self._stamps[index] != tables.stamps[run]:
                self._stamps[index] = tables.stamps[run]
                self._tables[index] = tables.rows[run]
        numbers = tokens + positions + slots + adapters + spans + edges
        self._numbers[: len(numbers)] = numbers
        if self.rotary.turns_by_length:
            self.rotary.take(
                [row.sequence.max_computed for row in plan.rows for _ in range(row.num_tokens)]
            )


class _RecordedPositions(Positions):
    """Rotation of the tokens of a recorded step.

    Args:
        positions: (T,), int64, other numbers in each step.
        ropes: What is prepared; others are noted in ``unknown``.
    """

    def __init__(self, positions: Tensor, ropes: set[RopeConfig]) -> None:
        super().__init__(positions)
        self._ropes = ropes
        self.unknown: set[RopeConfig] = set()

    def prepare(self) -> None:
        """Record the tables, before all layers."""
        for rope in self._ropes:
            if rope.length_class(1) == 0:
                self._tables[rope] = rope.tables(self._positions)
            else:  # how it turns is decided in Python, step by step
                room = np.empty((2, len(self._positions), rope.num_pairs), np.float32)
                self._tables[rope] = torch.from_numpy(room[0]), torch.from_numpy(room[1])

    @override
    def tables(self, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        if rope not in self._tables:
            self.unknown.add(rope)
            raise ForeignError("a rotation that was not prepared")
        return self._tables[rope]

    @property
    def turns_by_length(self) -> bool:
        """Whether a table depends on how long sequences may become."""
        return any(rope.length_class(1) != 0 for rope in self._tables)

    def take(self, lengths: list[int]) -> None:
        """Fill the tables that depend on how long sequences may become."""
        for rope, own in self._tables.items():
            if rope.length_class(1) != 0:
                made = rope.tables(self._positions, torch.tensor(lengths))
                for mine, given in zip(own, made, strict=True):
                    mine.copy_(given)


class _Unseen(tuple[Span, ...]):
    """The sequences of a recorded step, of which nothing is known but that each decodes."""

    __slots__ = ()

    def _refuse(self, *_: object) -> Never:
        raise ForeignError("looks at the sequences of a step")

    __iter__ = __len__ = __getitem__ = __bool__ = _refuse
