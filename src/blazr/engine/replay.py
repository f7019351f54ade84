"""Decode steps made again from a recording, one for each number of sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Never

import numpy as np
import torch
from torch import Tensor

from blazr.models.causal_lm import CausalLM
from blazr.nn.layers.batch import ForwardBatch, LayerCache, Span
from blazr.nn.layers.rope import Positions, RopeConfig
from blazr.nn.ops.replay import Arena, ForeignError, Replay, can_replay, record
from blazr.nn.ops.sequence import StepTable

_SEEN = 3  # steps of a size before it is recorded


class Replays:
    """Logits of decode steps, by one native call where possible.

    A step of B decoding sequences differs from the next in numbers only: it is recorded on tensors
    of its own, which get the numbers of each step before it is made again.

    Args:
        model: The network.
        caches: Its memory, which stays where it is.
    """

    def __init__(self, model: CausalLM, caches: Sequence[LayerCache]) -> None:
        self._model = model
        self._caches = caches
        self._arena = Arena()
        self._seen: Counter[int] = Counter()
        self._made: dict[int, tuple[_Inputs, Replay | None]] = {}
        self._is_possible = can_replay(model.device.type)

    def logits(self, batch: ForwardBatch) -> Tensor | None:
        """(B, V), float32, overwritten by the next step; None where a step has to be computed.

        Args:
            batch: Every sequence decodes, and draws a token.
        """
        size = len(batch.spans)
        if not self._is_possible:
            return None
        if size not in self._made:
            self._seen[size] += 1
            if self._seen[size] < _SEEN:
                return None
            self._made[size] = self._record(batch)
        inputs, replay = self._made[size]
        if replay is None:
            return None
        inputs.take(batch)
        return replay(batch)

    def num_python(self, size: int) -> int | None:
        """How many parts of such a step stay in Python; None if it is not recorded."""
        replay = self._made[size][1] if size in self._made else None
        return None if replay is None else replay.num_python

    def _record(self, batch: ForwardBatch) -> tuple[_Inputs, Replay | None]:
        inputs = _Inputs(batch)

        def run() -> Tensor:
            return self._model.logits(self._model(inputs.batch, self._caches))

        replay = record(run, inputs.batch, self._arena)
        self._is_possible = replay is not None
        return inputs, replay


class _Inputs:
    """Tensors that hold a step's inputs, step after step.

    Args:
        batch: A step of as many sequences.
    """

    def __init__(self, batch: ForwardBatch) -> None:
        count = len(batch.spans)
        spans, tables = batch.table.spans, batch.table.block_tables
        self._table = StepTable(
            spans=torch.empty_like(spans),
            checkpoints=torch.empty((count, 2), dtype=torch.int64),  # a token passes one edge
            block_tables=torch.empty_like(tables),
            longest=1,
        )
        self._rotary = _Positions(count)
        self.batch = ForwardBatch(
            token_ids=torch.empty_like(batch.token_ids),
            positions=torch.empty_like(batch.positions),
            block_tables=self._table.block_tables,
            slot_mapping=torch.empty_like(batch.slot_mapping),
            state_slots=torch.empty_like(batch.state_slots),
            run_slots=torch.empty_like(batch.run_slots),
            logits_indices=batch.logits_indices,
            spans=_Unseen(),
            num_decodes=count,
        )
        self.batch.__dict__.update(table=self._table, rotary=self._rotary)

    def take(self, batch: ForwardBatch) -> None:
        """Hold this step's numbers."""
        for name in ("token_ids", "positions", "slot_mapping", "state_slots", "run_slots"):
            getattr(self.batch, name).copy_(getattr(batch, name))
        mine, given = self._table, batch.table
        mine.spans.copy_(given.spans)
        mine.block_tables.copy_(given.block_tables)
        if len(given.checkpoints):
            mine.checkpoints[: len(given.checkpoints)] = given.checkpoints
        self._rotary.take(batch.rotary)


class _Positions(Positions):
    """Tables of rotation that are filled before each step."""

    def __init__(self, count: int) -> None:
        super().__init__(torch.empty(0, dtype=torch.int64))
        self._count = count

    def tables(self, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        """See `Positions.tables`; the first call makes room."""
        if rope not in self._tables:
            # numpy's, as new tensors are the recording's
            cos, sin = np.empty((2, self._count, rope.num_pairs), np.float32)
            self._tables[rope] = torch.from_numpy(cos), torch.from_numpy(sin)
        return self._tables[rope]

    def take(self, positions: Positions) -> None:
        """Hold this step's angles."""
        for rope, own in self._tables.items():
            for mine, given in zip(own, positions.tables(rope), strict=True):
                mine.copy_(given)


class _Unseen(tuple[Span, ...]):
    """The sequences of a recorded step, of which nothing is known but that each decodes."""

    __slots__ = ()

    def _refuse(self, *_: object) -> Never:
        raise ForeignError("looks at the sequences of a step")

    __iter__ = __len__ = __getitem__ = __bool__ = _refuse
