"""What a step computes, sequence by sequence, and the memory that sequences carry along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

GRID = 64  # tokens of a page, and from one checkpoint of a recurrent state to the next
# Tokens in memory that a kernel attends to by themselves, where programs share a sequence's out:
# fixed, so that results do not depend on how many there are.
ATTENTION_PART = 4 * GRID


class Span(NamedTuple):
    """One sequence's part of a step, in plain numbers.

    Args:
        first: Where its tokens begin in the packed batch.
        length: Tokens computed in this step.
        start: Tokens already in memory.
        log_length: Of these, tokens since the checkpoint (0 to GRID - 1).
        checkpoints: (tokens of this step until a grid edge, slot to write the state to), ascending.
        state_slot: Checkpoint it starts from; slot 0 is always zero.
        run_slot: Row of its log.
        working_from: Its working states are read so many rows behind ``run_slot``.
        working_to: And written so many rows behind it; where that is another row, those before the
            step stay as they are.
    """

    first: int
    length: int
    start: int
    log_length: int
    checkpoints: tuple[tuple[int, int], ...] = ()
    state_slot: int = 0
    run_slot: int = 0
    working_from: int = 0
    working_to: int = 0

    @property
    def rows(self) -> slice:
        """Its tokens in the packed batch."""
        return slice(self.first, self.first + self.length)

    @property
    def total(self) -> int:
        """Tokens in memory after this step."""
        return self.start + self.length


class BidirectionalSpan(NamedTuple):
    """Tokens of one sequence that attend to each other in both directions, as those of an image.

    Args:
        number: Which sequence of the step.
        first: The first of them, counted from the sequence's beginning; it may have been computed
            in an earlier step, from where a prefix is reused.
        last: The token behind them; all before it are in memory after this step.
        has_window: Whether a layer's window bounds what they see before them.
    """

    number: int
    first: int
    last: int
    has_window: bool = True


class SpanColumn(IntEnum):
    """Columns of `StepNumbers.spans`, in the order in which kernels read them; see `Span`.

    FIRST_CHECKPOINT: The first of the sequence's rows in `StepNumbers.checkpoints`.
    NUM_CHECKPOINTS: How many there are.
    """

    FIRST = 0
    LENGTH = 1
    START = 2
    LOG_LENGTH = 3
    STATE_SLOT = 4
    RUN_SLOT = 5
    FIRST_CHECKPOINT = 6
    NUM_CHECKPOINTS = 7
    WORKING_FROM = 8
    WORKING_TO = 9


class SequenceGroup:
    """Sequences that references compute together: equally many tokens of each, side by side.

    Args:
        spans: Their parts of the step. Those of more than one token have equally many in memory,
            too, and so pass grid edges together.
        index: Place of the first among the step's sequences.
        numbers: All sequences of the step, as `StepNumbers.spans` has them.
    """

    def __init__(self, spans: tuple[Span, ...], index: int, numbers: Tensor) -> None:
        self.spans = spans
        self.count = len(spans)
        self.length = spans[0].length
        self.rows = slice(spans[0].first, spans[-1].rows.stop)
        self.indices = slice(index, index + len(spans))
        self._numbers = numbers[self.indices]

    @property
    def is_fresh(self) -> bool | None:
        """Whether their working states count for nothing, as they stand at a grid edge.

        None where that is so of some of them, or is known on the device alone.
        """
        fresh = {span.log_length == 0 for span in self.spans}
        return fresh.pop() if len(fresh) == 1 else None

    @property
    def most_logged(self) -> int:
        """The largest of their log lengths, or what none exceeds."""
        return max((span.log_length for span in self.spans), default=GRID - 1)

    @cached_property
    def state_slots(self) -> Tensor:
        """(B,), int64."""
        return self._numbers[:, SpanColumn.STATE_SLOT]

    @cached_property
    def run_slots(self) -> Tensor:
        """(B,), int64."""
        return self._numbers[:, SpanColumn.RUN_SLOT]

    @cached_property
    def working_before(self) -> Tensor:
        """(B,), int64, rows of working states that are read."""
        return self.run_slots + self._numbers[:, SpanColumn.WORKING_FROM]

    @cached_property
    def working_after(self) -> Tensor:
        """(B,), int64, rows of working states that are written."""
        return self.run_slots + self._numbers[:, SpanColumn.WORKING_TO]

    @cached_property
    def log_lengths(self) -> Tensor:
        """(B,), int64."""
        return self._numbers[:, SpanColumn.LOG_LENGTH]

    @cached_property
    def positions(self) -> Tensor:
        """(B, length), int64, of its tokens."""
        starts = self._numbers[:, SpanColumn.START, None]
        return starts + torch.arange(self.length, device=starts.device)

    def split(self, *tensors: Tensor) -> list[Tensor]:
        """The group's rows of packed tensors (T, ...), sequence by sequence: (B, length, ...)."""
        return [each[self.rows].unflatten(0, (self.count, -1)) for each in tensors]

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Pieces of its tokens that end at grid edges: (first, last + 1)."""
        if self.length == 1:
            yield 0, 1
            return
        low, logged = 0, self.spans[0].log_length
        while low < self.length:
            high = min(low + GRID - (logged + low) % GRID, self.length)
            yield low, high
            low = high

    def edges(self, tokens: int) -> Iterator[tuple[int, int]]:
        """(number in the group, slot) of states to be kept after so many tokens of the step."""
        for number, span in enumerate(self.spans):
            for distance, slot in span.checkpoints:
                if distance == tokens:
                    yield number, slot

    def keep(self, tokens: int, kept: Tensor, states: Tensor) -> None:
        """Write the states of those that pass a grid edge after so many tokens of the step.

        Args:
            tokens: How many.
            kept: (slots, ...); written.
            states: (B, ...), as they stand there.
        """
        for number, slot in self.edges(tokens):
            kept[slot] = states[number]


class RecordedGroup(SequenceGroup):
    """All sequences of a recorded step, one token of each: what they are is known to tensors alone.

    Args:
        numbers: The sequences.
    """

    def __init__(self, numbers: StepNumbers) -> None:
        self.spans = ()
        self.count = len(numbers.spans)
        self.length = 1
        self.rows = self.indices = slice(0, self.count)
        self._numbers = numbers.spans
        self._checkpoints = numbers.checkpoints

    @override
    def keep(self, tokens: int, kept: Tensor, states: Tensor) -> None:
        passes = self._numbers[:, SpanColumn.NUM_CHECKPOINTS] > 0
        # who passes none writes the zero state over itself
        slots = torch.where(passes, self._checkpoints[:, 1], 0)
        passes = passes.view(-1, *[1] * (kept.dim() - 1))
        kept[slots] = torch.where(passes, states.to(kept.dtype), kept[slots])


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The sequences of a step as kernels take them.

    Args:
        spans: (B, 10), int64, with the columns of `SpanColumn`.
        checkpoints: (n, 2), int64: after how many tokens of the step, slot to write.
        longest: The largest length.
    """

    spans: Tensor
    checkpoints: Tensor
    longest: int


@dataclass(frozen=True)
class StepTable:
    """The sequences of a step, B of them, decoding ones first.

    Args:
        spans: Their parts of the step in plain numbers.
        block_tables: (B, M), int64, page ids; unused places are 0.
        num_decodes: How many of the first sequences compute exactly one token.
        are_alike: Whether all compute equally many tokens, from nothing: references then take
            them together, which costs less and may round otherwise.
        recorded: What is read in the place of ``spans`` where a step is recorded; it changes from
            replay to replay.
        bidirectional_spans: Tokens that attend to later ones, too.
    """

    spans: tuple[Span, ...]
    block_tables: Tensor
    num_decodes: int = 0
    are_alike: bool = False
    recorded: StepNumbers | None = None
    bidirectional_spans: tuple[BidirectionalSpan, ...] = ()

    @cached_property
    def numbers(self) -> StepNumbers:
        """The sequences as kernels take them, made when the first layer asks."""
        if self.recorded is not None:
            return self.recorded
        rows: list[tuple[int, ...]] = []
        edges: list[tuple[int, int]] = []
        for span in self.spans:
            # in the order of SpanColumn
            slots = (span.state_slot, span.run_slot, len(edges), len(span.checkpoints))
            rows.append((*span[:4], *slots, span.working_from, span.working_to))
            edges += span.checkpoints
        spans = torch.from_numpy(np.array(rows, np.int64).reshape(-1, len(SpanColumn)))
        checkpoints = torch.from_numpy(np.array(edges, np.int64).reshape(-1, 2))
        device = self.block_tables.device
        return StepNumbers(
            spans=spans.to(device, non_blocking=True),
            checkpoints=checkpoints.to(device, non_blocking=True),
            longest=max((span.length for span in self.spans), default=0),
        )

    def in_chunks(self, size: int) -> StepTable:
        """The same step for attention that sees its own chunk alone: chunks are sequences.

        Args:
            size: Tokens of a chunk, a multiple of GRID.
        """
        if self.recorded is not None:  # of each sequence one token
            numbers = self.recorded.spans
            starts = numbers[:, SpanColumn.START]
            chunks = starts.div(size, rounding_mode="floor")
            moved = numbers.clone()
            moved[:, SpanColumn.START] = starts - chunks * size
            rows = torch.arange(len(numbers), device=numbers.device)
            return replace(
                self,
                block_tables=self._chunk_pages(rows, chunks, size),
                recorded=replace(self.recorded, spans=moved),
            )
        if all(span.total <= size for span in self.spans):
            return self
        if size not in self._chunked:
            self._chunked[size] = self._cut(size)
        return self._chunked[size]

    @cached_property
    def _chunked(self) -> dict[int, StepTable]:
        return {}

    def _cut(self, size: int) -> StepTable:
        spans: list[Span] = []
        places: list[tuple[int, int]] = []
        for number, span in enumerate(self.spans):
            edges = range((span.start // size + 1) * size, span.total, size)
            cuts = (span.start, *edges, span.total)
            for first, last in pairwise(cuts):
                chunk = first // size
                places.append((number, chunk))
                begins = span.first + first - span.start
                spans.append(Span(begins, last - first, first - chunk * size, 0))
        rows, chunks = torch.tensor(places, device=self.block_tables.device).unbind(1)
        return StepTable(tuple(spans), self._chunk_pages(rows, chunks, size), self.num_decodes)

    def _chunk_pages(self, rows: Tensor, chunks: Tensor, size: int) -> Tensor:
        """Pages of some sequences' chunks, (B, pages of a chunk); behind the last come others."""
        pages = size // GRID
        places = torch.arange(pages, device=rows.device) + chunks[:, None] * pages
        most = self.block_tables.shape[1] - 1
        return self.block_tables[rows[:, None], places.clamp(max=most)]

    @cached_property
    def log_places(self) -> tuple[Tensor, ...]:
        """Where tokens behind the last grid edge are logged.

        Their rows in the packed batch, run slots, and rows of the log: (n,), int64, each.
        """
        if self.recorded is not None:  # a row before a grid edge is logged, too, and never read
            spans = self.recorded.spans
            columns = (SpanColumn.FIRST, SpanColumn.RUN_SLOT, SpanColumn.LOG_LENGTH)
            return tuple(spans[:, column] for column in columns)
        places = [
            (span.first + at - span.log_length, span.run_slot, at % GRID)
            for span in self.spans
            for at in range(span.log_length, span.log_length + span.length)
            if at // GRID == (span.log_length + span.length) // GRID
        ]
        device = self.block_tables.device
        return torch.tensor(places, dtype=torch.int64, device=device).view(-1, 3).unbind(1)

    @cached_property
    def groups(self) -> tuple[SequenceGroup, ...]:
        """Sequences that references compute together: all that decode, any other by itself."""
        if self.recorded is not None:
            return (RecordedGroup(self.recorded),)
        numbers, decodes = self.numbers.spans, self.num_decodes
        if self.are_alike:
            return (SequenceGroup(self.spans, 0, numbers),)
        groups = [SequenceGroup(self.spans[:decodes], 0, numbers)] if decodes else []
        for index in range(decodes, len(self.spans)):
            groups.append(SequenceGroup((self.spans[index],), index, numbers))
        return tuple(groups)

    @cached_property
    def decode_groups(self) -> tuple[DecodeGroup, ...]:
        """The decoding sequences as attention takes them."""
        if self.recorded is not None:
            return (_whole_room(self.recorded, self.block_tables),)
        decodes = self.spans[: self.num_decodes]
        if not decodes:
            return ()
        tables = self.block_tables[: len(decodes)].cpu().numpy()
        totals = np.array([span.total for span in decodes], np.int64)
        return group_decodes(tables, totals, self.block_tables.device)

    @cached_property
    def decode_parts(self) -> DecodeParts:
        """The decoding sequences as attention takes them that shares a sequence's keys out."""
        if self.recorded is not None:  # of every sequence as many parts as the longest may have
            tables = self.block_tables
            parts = -(-tables.shape[1] * GRID // ATTENTION_PART)
            every = torch.arange(len(tables) * parts, device=tables.device)
            ends = torch.arange(len(tables) + 1, device=tables.device) * parts
            return DecodeParts(torch.stack((every // parts, every % parts), 1), ends)
        totals = np.array([span.total for span in self.spans[: self.num_decodes]], np.int64)
        counts = -(-totals // ATTENTION_PART)
        firsts = np.concatenate((np.zeros(1, np.int64), counts.cumsum()))
        sequences = np.repeat(np.arange(len(counts)), counts)
        places = np.stack((sequences, np.arange(len(sequences)) - firsts[sequences]), 1)
        device = self.block_tables.device
        both = (torch.from_numpy(each).to(device, non_blocking=True) for each in (places, firsts))
        return DecodeParts(*both)


class DecodeParts(NamedTuple):
    """What decoding sequences have in memory, in parts of ``ATTENTION_PART`` tokens.

    Args:
        places: (n, 2), int64: a sequence, and which of its parts; all of a sequence side by side.
            In a recorded step the last ones may lie behind what the sequence has.
        firsts: (B + 1,), int64: where those of each sequence begin.
    """

    places: Tensor
    firsts: Tensor


class DecodeGroup(NamedTuple):
    """Decoding sequences that attend together: b of them, with room for the same S tokens.

    Args:
        rows: (b,), int64, their places in the packed batch.
        pages: (b, S // GRID), int64, page ids; behind its last page a row repeats its first.
        visible: (b, S), bool, which of the S places hold its tokens.
    """

    rows: Tensor
    pages: Tensor
    visible: Tensor


def _whole_room(numbers: StepNumbers, tables: Tensor) -> DecodeGroup:
    """All sequences of a recorded step, each with the room that there is for any."""
    places = torch.arange(tables.shape[1], device=tables.device)
    spans = numbers.spans
    totals = (spans[:, SpanColumn.START] + spans[:, SpanColumn.LENGTH])[:, None]  # (B, 1)
    pages = torch.where(places * GRID < totals, tables, tables[:, :1])
    visible = torch.arange(tables.shape[1] * GRID, device=tables.device) < totals
    return DecodeGroup(spans[:, SpanColumn.FIRST], pages, visible)


def group_decodes(
    tables: NDArray[np.int64], totals: NDArray[np.int64], device: torch.device
) -> tuple[DecodeGroup, ...]:
    """Put decoding sequences together whose memory takes equally many pages, rounded up.

    The room a sequence gets depends on its own length alone, so that its company changes nothing.

    Args:
        tables: (B, M), page ids of the sequences that decode.
        totals: (B,), tokens in memory after this step.
        device: Where the groups are used.
    """
    blocks = -(-totals // GRID)
    # powers of two and what lies halfway: at most half as much again as is needed
    powers = 1 << np.ceil(np.log2(blocks)).astype(np.int64)
    rooms = np.where(blocks * 4 <= powers * 3, powers * 3 // 4, powers)
    groups = []
    for room in np.unique(rooms).tolist():
        rows = np.flatnonzero(rooms == room)
        own = tables[rows]
        places = np.arange(room)
        pages = own[:, np.minimum(places, own.shape[1] - 1)]
        pages = np.where(places < blocks[rows, None], pages, own[:, :1])
        visible = np.arange(room * GRID) < totals[rows, None]
        parts = (torch.from_numpy(part) for part in (rows, pages, visible))
        groups.append(DecodeGroup(*(part.to(device, non_blocking=True) for part in parts)))
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class Carried:
    """A tensor that sequences carry along from step to step.

    Args:
        kept: As it was at grid edges, (slots, ...), float32 or bfloat16. It is rounded to this
            dtype at every grid edge, whether or not it is kept there.
        working: As it stands, (runs, ...), float32; right after a grid edge what was kept there
            counts.
    """

    kept: Tensor
    working: Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """The inputs of a causal convolution of K taps, as sequences remember them.

    Args:
        kept: The last ones before a grid edge, (slots, K - 1, channels).
        log: Those since, (runs, GRID, channels).
    """

    kept: Tensor
    log: Tensor
