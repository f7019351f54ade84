"""From a plan to packed tensors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from blazr.engine.cache.manager import CacheManager
from blazr.engine.scheduler import StepPlan
from blazr.nn.layers.batch import ForwardBatch, Span


def build_batch(plan: StepPlan, memory: CacheManager, device: torch.device) -> ForwardBatch:
    """Lay the plan's sequences end to end.

    Logits are wanted where a token is drawn, and at every token of a sequence whose request asks
    for the log-probabilities of its prompt.
    """
    total, count = plan.num_tokens, len(plan.rows)
    tokens, positions = np.empty(total, np.int64), np.empty(total, np.int64)
    runs, states = np.empty(count, np.int64), np.empty(count, np.int64)
    rows = np.empty(total, np.int64)  # which sequence a token belongs to
    wanted: list[int] = []
    spans = []
    first = 0
    for index, row in enumerate(plan.rows):
        sequence, length = row.sequence, row.num_tokens
        start, last = sequence.computed, first + row.num_tokens
        assert sequence.run_slot is not None
        runs[index], states[index] = sequence.run_slot, sequence.checkpoint or 0
        rows[first:last] = index
        tokens[first:last] = sequence.tokens[start : start + length]
        positions[first:last] = range(start, start + length)
        logged = start - sequence.checkpoint_length if memory.shape.has_states else 0
        spans.append(Span(first, length, start, logged, tuple(sequence.pending)))
        if sequence.request.params.prompt_logprobs is not None:
            wanted.extend(range(first, last))
        elif row.samples:
            wanted.append(last - 1)
        first = last
    grid, tables = memory.shape.grid, memory.block_tables[runs]
    slots = tables[rows, positions // grid] * grid + positions % grid
    return ForwardBatch(
        token_ids=_place(tokens, device),
        positions=_place(positions, device),
        block_tables=_place(tables, device),
        slot_mapping=_place(slots, device),
        state_slots=_place(states, device),
        run_slots=_place(runs, device),
        logits_indices=_place(np.array(wanted, np.int64), device),
        spans=tuple(spans),
        num_decodes=plan.num_decodes,
    )


def _place(values: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
