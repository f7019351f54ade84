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
    tokens = np.empty(total, np.int64)
    positions = np.empty(total, np.int64)
    slots = np.zeros(total, np.int64)
    runs = np.empty(count, np.int64)
    states = np.zeros(count, np.int64)
    wanted: list[NDArray[np.int64]] = []
    spans = []
    first = 0
    grid = memory.shape.grid
    for index, row in enumerate(plan.rows):
        sequence, length = row.sequence, row.num_tokens
        start, end = sequence.computed, sequence.computed + length
        last = first + length
        assert sequence.run_slot is not None
        runs[index] = sequence.run_slot
        states[index] = sequence.checkpoint or 0
        if length == 1:
            tokens[first] = sequence.tokens[start]
            positions[first] = start
        else:
            tokens[first:last] = sequence.tokens[start:end]
            positions[first:last] = np.arange(start, end)
        if memory.shape.has_pages:
            at = positions[first:last]
            pages = memory.block_tables[sequence.run_slot, at // grid]
            slots[first:last] = pages * grid + at % grid
        spans.append(
            Span(
                first=first,
                length=length,
                start=start,
                log_length=start - sequence.checkpoint_length if memory.shape.has_states else 0,
                checkpoints=tuple(sequence.pending),
            )
        )
        if sequence.request.params.prompt_logprobs is not None:
            wanted.append(np.arange(first, last))
        elif row.samples:
            wanted.append(np.array([last - 1]))
        first = last
    tables = memory.block_tables[runs]
    indices = np.concatenate(wanted) if wanted else np.empty(0, np.int64)
    return ForwardBatch(
        token_ids=_place(tokens, device),
        positions=_place(positions, device),
        block_tables=_place(tables, device),
        slot_mapping=_place(slots, device),
        state_slots=_place(states, device),
        run_slots=_place(runs, device),
        logits_indices=_place(indices, device),
        spans=tuple(spans),
        num_decodes=plan.num_decodes,
    )


def _place(values: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
