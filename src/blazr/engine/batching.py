"""From a plan to packed tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.positions import grid_positions
from blazr.engine.scheduler import PlannedSequence, StepPlan
from blazr.engine.sequence import Sequence
from blazr.nn.layers.batch import ForwardBatch, GivenEmbeddings
from blazr.nn.operands.step import BidirectionalSpan, Span, StepTable


def build_batch(plan: StepPlan, memory: CacheManager, device: torch.device) -> ForwardBatch:
    """Lay the plan's sequences end to end.

    Logits are wanted where a token is drawn, behind drafts too, and at every token of a sequence
    whose request asks for the log-probabilities of its prompt.
    """
    has_states = memory.shape.has_states
    # plain lists are filled faster than arrays, one short piece at a time
    tokens: list[int] = []
    places: list[int] = []
    lengths: list[int] = []
    owners: list[int] = []
    runs: list[int] = []
    wanted: list[int] = []
    adapters: list[int] = []
    spans: list[Span] = []
    first = 0
    for index, (sequence, length, samples, drafts) in enumerate(plan.rows):
        start = sequence.computed
        last = first + length
        assert sequence.run_slot is not None
        runs.append(sequence.run_slot)
        if length == 1:
            tokens.append(sequence.tokens[start])
            places.append(start)
            lengths.append(sequence.max_computed)
            owners.append(index)
        else:
            tokens += sequence.tokens[start : start + length]
            tokens += drafts
            places += range(start, start + length)
            lengths += [sequence.max_computed] * length
            owners += [index] * length
        adapters += [sequence.adapter_slot] * length
        logged = start - sequence.checkpoint_length if has_states else 0
        spans.append(
            Span(
                first,
                length,
                start,
                logged,
                tuple(sequence.pending),
                sequence.checkpoint or 0,
                sequence.run_slot,
                *working_rows(sequence, len(drafts), memory.shape),
            )
        )
        if sequence.asks_of_prompt:
            # pooled hidden states are wanted instead of logits, or logits at every token
            wanted += range(first, last) if sequence.request.pooling is None else ()
        elif samples:
            wanted += range(last - 1 - len(drafts), last)
        first = last
    tables = memory.block_tables.rows[runs]
    at = np.array(places, np.int64)
    return ForwardBatch(
        token_ids=_place(tokens, device),
        positions=_place(_positions(plan, at), device),
        slot_mapping=_place(_slots(memory.shape, tables, owners, at), device),
        logits_indices=_place(wanted, device),
        table=StepTable(
            tuple(spans),
            _place(tables, device),
            plan.num_decodes,
            bidirectional_spans=_bidirectional_spans(plan.rows),
        ),
        lengths=_place(lengths, device),
        adapters=_place(adapters, device) if any(adapters) else None,
        given=_given_embeddings(plan.rows, device),
    )


def _slots(
    shape: CacheShape,
    tables: NDArray[np.int64],
    owners: list[int] | NDArray[np.int64],
    places: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Where tokens lie in pages, (T,).

    Args:
        shape: Where it has no pages, a sequence may go on beyond its blocks; then all is 0.
        tables: (B, blocks): the pages of each sequence.
        owners: (T,), whose tokens.
        places: (T,), their places in the sequence.
    """
    if not shape.has_pages:
        return np.zeros_like(places)
    return tables[owners, places // shape.grid] * shape.grid + places % shape.grid


def _positions(plan: StepPlan, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a step's tokens stand, (T,), or (3, T) beside images in rows and columns.

    Args:
        plan: The step.
        places: (T,), the tokens' places in their sequences.
    """
    if not any(row.sequence.has_grids for row in plan.rows):
        return places
    found = np.tile(places, (3, 1))
    first = 0
    for sequence, length, *_ in plan.rows:
        if sequence.has_grids:
            start = sequence.computed
            own = grid_positions(sequence.request.embeddings, start, start + length)
            found[:, first : first + length] = own
        first += length
    return found


def _bidirectional_spans(rows: Iterable[PlannedSequence]) -> tuple[BidirectionalSpan, ...]:
    """The tokens of a step that attend to tokens behind them."""
    found = []
    for index, (sequence, length, *_) in enumerate(rows):
        start = sequence.computed
        for first, last in sequence.bidirectional_spans:
            if start < last and first < start + length:
                assert last <= start + length, "a bidirectional span is computed in one step"
                has_window = not sequence.request.is_bidirectional
                found.append(BidirectionalSpan(index, first, last, has_window))
    return tuple(found)


def _given_embeddings(
    rows: Iterable[PlannedSequence], device: torch.device
) -> GivenEmbeddings | None:
    """What requests of a step bring along in the place of embeddings."""
    places: list[int] = []
    vectors: list[torch.Tensor] = []
    added: list[torch.Tensor] = []
    first = 0
    for sequence, length, *_ in rows:
        start = sequence.computed
        given = sequence.request.embeddings if start < sequence.embeddings_end else ()
        for each in given:
            begin, end = max(each.start, start), min(each.end, start + length)
            places += range(first + begin - start, first + end - start)
            part = slice(max(begin - each.start, 0), max(end - each.start, 0))
            vectors.append(each.vectors[part])
            added.append(vectors[-1][None][:0] if each.added is None else each.added[:, part])
        first += length
    if not places:
        return None
    return GivenEmbeddings(
        rows=_place(places, device),
        vectors=torch.cat(vectors).to(device),
        added=torch.cat(added, 1).to(device),
    )


def build_draft_batch(
    last: Mapping[Sequence, int], num_drafted: int, memory: CacheManager, device: torch.device
) -> ForwardBatch:
    """One token of each of B sequences, behind all that are in memory, for `CausalLM.draft`.

    Args:
        last: By sequence, its last token or the draft behind it; it has the page for that.
        num_drafted: How many drafts there were before this one.
        memory: Where the sequences' memory is.
        device: Where the batch goes.
    """
    sequences = tuple(last)
    starts = [sequence.computed + num_drafted for sequence in sequences]
    runs = [sequence.run_slot or 0 for sequence in sequences]
    adapters = [sequence.adapter_slot for sequence in sequences]
    tables = memory.block_tables.rows[runs]
    at = np.array(starts, np.int64)
    positions = at + np.array([sequence.position_shift for sequence in sequences], np.int64)
    spans = (
        Span(index, 1, start, 0, run_slot=run)
        for index, (start, run) in enumerate(zip(starts, runs, strict=True))
    )
    lengths = [sequence.max_computed for sequence in sequences]
    places = np.arange(len(sequences))
    return ForwardBatch(
        token_ids=_place(list(last.values()), device),
        positions=_place(positions, device),
        slot_mapping=_place(_slots(memory.shape, tables, places, at), device),
        logits_indices=_place(places, device),
        table=StepTable(tuple(spans), _place(tables, device), len(sequences)),
        lengths=_place(lengths, device),
        adapters=_place(adapters, device) if any(adapters) else None,
    )


def working_rows(sequence: Sequence, num_drafts: int, shape: CacheShape) -> tuple[int, int]:
    """How far behind its run slot a step reads a sequence's working states, and writes them.

    A step with drafts writes others than it reads, where there are two: if drafts are rejected, the
    sequence goes on from those before.
    """
    before = sequence.working_copy * shape.max_running
    if not num_drafts or shape.working_copies < 2:
        return before, before
    return before, shape.max_running - before


def build_rewind(
    sequences: Iterable[Sequence], shape: CacheShape, device: torch.device
) -> StepTable:
    """Sequences from where their working states or checkpoints stand to where they do."""
    spans: list[Span] = []
    first = 0
    for sequence in sequences:
        start = sequence.working_length
        length = sequence.computed - start
        assert sequence.run_slot is not None
        spans.append(
            Span(
                first,
                length,
                start,
                start - sequence.checkpoint_length,
                (),
                sequence.checkpoint or 0,
                sequence.run_slot,
                *working_rows(sequence, 0, shape),
            )
        )
        first += length
    nothing = torch.zeros(len(spans), 0, dtype=torch.int64, device=device)
    return StepTable(tuple(spans), nothing)


def _place(values: list[int] | NDArray[np.int64], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(np.asarray(values, np.int64))
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
