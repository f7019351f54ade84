"""Decode steps made again from a recording, one for each number of sequences and of tokens."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Never

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from blazr.engine.batching import build_batch, build_draft_batch, working_rows
from blazr.engine.cache.manager import CacheManager
from blazr.engine.scheduler import StepPlan
from blazr.engine.sequence import Sequence as RunningSequence
from blazr.models.causal_lm import CausalLM
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.layers.rope import Positions, RopeConfig
from blazr.nn.operands.step import Span, SpanColumn, StepNumbers, StepTable
from blazr.nn.ops.replay import Arena, Replay, UnrecordableError, can_replay, record

_log = logging.getLogger(__name__)

SEEN = 3  # steps of a size without drafts before it is recorded; sizes with drafts come again

MOST_RECORDED = 256  # sizes: each takes about a megabyte


class Size(NamedTuple):
    """What decides whether one step's recording serves another.

    Args:
        sequences: That decode.
        tokens: That are computed of them.
        has_adapters: Whether any of them has an adapter.
        drafts: Whether `CausalLM.draft` computes it.
    """

    sequences: int
    tokens: int
    has_adapters: bool = False
    drafts: bool = False


class Replays:
    """Logits of decode steps, by one native call where possible.

    A step of B decoding sequences and T tokens, T - B of them drafts, differs from the next in
    numbers only: it is recorded on tensors of its own, which get the numbers of each step before it
    is made again.

    Args:
        model: The network.
        caches: Its memory, which stays where it is.
        max_blocks: Blocks that a sequence may have.
        before_recording: Called before a step is recorded, which takes longer than to compute it.
    """

    def __init__(
        self,
        model: CausalLM,
        caches: Sequence[LayerCache],
        max_blocks: int,
        before_recording: Callable[[], None],
    ) -> None:
        self._model = model
        self._max_blocks = max_blocks
        self._before_recording = before_recording
        self._caches = caches
        self._arena = Arena()
        self._ropes: set[RopeConfig] = set()
        self._seen: Counter[Size] = Counter()
        # the latest used last
        self._made: OrderedDict[Size, tuple[_Inputs, Replay]] = OrderedDict()
        self._is_possible = can_replay(model.device.type)

    def logits(self, plan: StepPlan, memory: CacheManager) -> Tensor | None:
        """(T, V), float32, overwritten by the next step; None where the step has to be computed.

        Args:
            plan: Recorded if every sequence decodes, and draws a token.
            memory: Where the sequences' memory is.
        """
        if not self._is_possible:
            return None
        num_tokens = 0
        has_adapters = False
        rows: list[_Row] = []
        for row in plan.rows:
            each = row.sequence
            start = each.computed
            # a prompt's last token may be one that has an embedding other than its id's
            if not row.decodes or each.asks_of_prompt or start < each.embeddings_end:
                return None
            has_adapters = has_adapters or each.request.adapter is not None
            rows.append((each, start, (each.tokens[start], *row.drafts), each.pending))
            num_tokens += row.num_tokens
        size = Size(len(rows), num_tokens, has_adapters)
        return self._run(size, rows, memory, partial(build_batch, plan))

    def draft_logits(
        self, last: Mapping[RunningSequence, int], num_drafted: int, memory: CacheManager
    ) -> Tensor | None:
        """The same of `CausalLM.draft`, (B, V); see `build_draft_batch` for the arguments."""
        if not self._is_possible:
            return None
        has_adapters = any(each.request.adapter for each in last)
        size = Size(len(last), len(last), has_adapters, drafts=True)
        rows = [(each, each.computed + num_drafted, (token,), ()) for each, token in last.items()]
        return self._run(size, rows, memory, partial(build_draft_batch, last, num_drafted))

    def _run(
        self,
        size: Size,
        rows: Sequence[_Row],
        memory: CacheManager,
        build: Callable[[CacheManager, torch.device], ForwardBatch],
    ) -> Tensor | None:
        """Make a step of this size again; None where there is none yet, or can be none.

        Args:
            size: Its numbers of sequences and of tokens.
            rows: What is computed.
            memory: Where the sequences' memory is.
            build: Makes the batch, for what of the step is not recorded.
        """
        if size not in self._made:
            self._seen[size] += 1
            is_rare = self._seen[size] < SEEN and size.sequences == size.tokens
            if is_rare or not self._record(size):
                return None
        self._made.move_to_end(size)
        inputs, replay = self._made[size]
        inputs.take(rows, memory)
        if not replay.num_python:
            return replay(None)
        with self._model.step_adapters.using(inputs.batch.adapters):
            return replay(build(memory, self._model.device))

    def record(self, sizes: Iterable[Size]) -> None:
        """Record decode steps before they are met; those that cannot be kept are computed."""
        for size in sizes:
            if self._is_possible and size not in self._made:
                self._record(size)

    def num_python(self, size: Size) -> int | None:
        """How many parts of such a step stay in Python; None if it is not recorded."""
        return self._made[size][1].num_python if size in self._made else None

    def _record(self, size: Size) -> bool:
        self._before_recording()
        inputs = _Inputs(size, self._max_blocks, self._ropes)

        def run() -> Tensor:
            inputs.rotary.prepare()
            if size.drafts:
                return self._model.draft(inputs.batch, self._caches)
            hidden = self._model(inputs.batch, self._caches)
            return self._model.logits(hidden, inputs.batch.adapters)

        replay = record(run, inputs.batch, self._arena)
        if inputs.rotary.unknown - self._ropes:
            self._ropes |= inputs.rotary.unknown
            return self._record(size)
        self._is_possible = replay is not None
        if replay is None:
            _log.debug("steps cannot be recorded: each is computed")
        else:
            self._made[size] = inputs, replay
            if len(self._made) > MOST_RECORDED:
                self._made.popitem(last=False)
            _log.debug(
                "recorded the step of %d sequences and %d tokens, %d parts of it in Python",
                size.sequences,
                size.tokens,
                replay.num_python,
            )
        return self._is_possible


# A sequence's part of a step: itself, tokens in memory before, ids that are computed, and after how
# many of them states are written, and to which slots.
_Row = tuple[RunningSequence, int, tuple[int, ...], Sequence[tuple[int, int]]]


class _Inputs:
    """Arrays that hold a step's inputs, step after step, and a batch of tensors over them.

    Args:
        whole_size: What is computed.
        max_blocks: Blocks that a sequence may have.
        ropes: Rotations that the layers want.
    """

    def __init__(self, whole_size: Size, max_blocks: int, ropes: set[RopeConfig]) -> None:
        size, num_tokens = whole_size.sequences, whole_size.tokens
        # a token passes one edge at most, and drafts none
        num_adapters = num_tokens if whole_size.has_adapters else 0
        parts = [num_tokens, num_tokens, num_tokens, num_adapters, len(SpanColumn) * size, 2 * size]
        self._numbers = np.zeros(sum(parts), np.int64)
        whole = torch.from_numpy(self._numbers)
        tokens, positions, slots, adapters, spans, edges = whole.split(parts)
        self._tables = np.zeros((size, max_blocks), np.int64)
        self._stamps = [-1] * size
        self.rotary = _RecordedPositions(positions, ropes)
        numbers = StepNumbers(
            spans=spans.view(size, len(SpanColumn)),
            checkpoints=edges.view(size, 2),
            longest=num_tokens - size + 1,
        )
        self.batch = ForwardBatch(
            token_ids=tokens,
            positions=positions,
            slot_mapping=slots,
            logits_indices=torch.empty(0, dtype=torch.int64),
            table=StepTable(
                Unseen(),
                torch.from_numpy(self._tables),
                num_decodes=size if num_tokens == size else 0,
                recorded=numbers,
            ),
            adapters=adapters if num_adapters else None,
        )
        self.batch.__dict__["rotary"] = self.rotary

    def take(self, rows: Sequence[_Row], memory: CacheManager) -> None:
        """Hold this step's numbers."""
        shape = memory.shape
        grid = shape.grid
        has_states = shape.has_states
        tables = memory.block_tables
        # plain lists are filled faster than arrays, and one array faster than five
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        adapters: list[int] = []
        spans: list[int] = []
        edges: list[int] = []
        for index, (sequence, start, ids, pending) in enumerate(rows):
            num_ids = len(ids)
            run = sequence.run_slot
            state = sequence.checkpoint or 0
            assert run is not None
            logged = start - sequence.checkpoint_length if has_states else 0
            pages, places = sequence.pages, range(start, start + num_ids)
            spans += (len(tokens), num_ids, start, logged)
            spans += (state, run, len(edges) // 2, len(pending))
            spans += working_rows(sequence, num_ids - 1, shape)
            tokens.append(ids[0])
            position = start + sequence.position_shift
            positions.append(position)
            slots += [pages[at // grid] * grid + at % grid if pages else 0 for at in places]
            if num_ids > 1:
                tokens += ids[1:]
                positions += range(position + 1, position + num_ids)
            if self.batch.adapters is not None:
                adapters += [sequence.adapter_slot] * num_ids
            for edge in pending:
                edges += edge
            if self._stamps[index] != tables.stamps[run]:
                self._stamps[index] = tables.stamps[run]
                self._tables[index] = tables.rows[run]
        numbers = tokens + positions + slots + adapters + spans + edges
        self._numbers[: len(numbers)] = numbers
        if self.rotary.turns_by_length:
            self.rotary.take([each.max_computed for each, _, ids, _ in rows for _ in ids])


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
        # whether a table depends on how long sequences may become
        self.turns_by_length = any(rope.length_class(1) != 0 for rope in ropes)

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
            raise UnrecordableError("a rotation that was not prepared")
        return self._tables[rope]

    def take(self, lengths: list[int]) -> None:
        """Fill the tables that depend on how long sequences may become."""
        for rope, own in self._tables.items():
            if rope.length_class(1) != 0:
                made = rope.tables(self._positions, torch.tensor(lengths))
                for mine, given in zip(own, made, strict=True):
                    mine.copy_(given)


class Unseen(tuple[Span, ...]):
    """The sequences of a recorded step, of which nothing is known but that each decodes.

    Args:
        count: How many there are; None where that is not to be asked either.
    """

    _count: int | None

    def __new__(cls, count: int | None = None) -> Unseen:
        """Of so many sequences."""
        made = super().__new__(cls)
        made._count = count
        return made

    @override
    def __len__(self) -> int:
        return self._refuse() if self._count is None else self._count

    def _refuse(self, *_: object) -> Never:
        raise UnrecordableError("a part of the network looks at the sequences of a step")

    __iter__ = __getitem__ = __bool__ = _refuse
