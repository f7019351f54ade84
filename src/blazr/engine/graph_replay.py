"""Decode steps launched as graphs: what differs from step to step lies on the device."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blazr.core import log
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.replay import SEEN, Size, Unseen
from blazr.engine.scheduler import PlannedSequence, StepPlan
from blazr.engine.sequence import Sequence as RunningSequence
from blazr.models.causal_lm import CausalLM
from blazr.nn.layers.batch import ForwardBatch, LayerCache
from blazr.nn.operands.step import GRID, StepNumbers, StepTable
from blazr.nn.ops.graphs import GraphDevice
from blazr.nn.ops.replay import UnrecordableError
from blazr.nn.ops.sampling import draw, likeliest, uniforms

_log = logging.getLogger(__name__)

LEAST_BLOCKS = 16  # of the smallest graph
_MORE_BLOCKS = 4  # each larger graph has room for so many times more
_UNKNOWN = -1  # a token that the device has drawn, and the host has not read


class _Cell(IntEnum):
    """What the device knows of a running sequence, in this order; its pages follow.

    TOKEN: Its last token, which the next step computes.
    LENGTH: Tokens in memory.
    CHECKPOINT: Slot of the state it goes on from.
    CHECKPOINT_LENGTH: Tokens before that.
    SPARE: Slot for the state at the next grid edge.
    WORKING: How far behind its run slot its working states are.
    SHIFT: How far its tokens stand from their places, for rotary embeddings.
    FORGOTTEN: Tokens before its first.
    SEED: Of its draws.
    TEMPERATURE: The bits of a float64, as those of the next three.
    TOP_K: How many tokens a draw chooses from; 0 for all.
    TOP_P: Their share.
    MIN_P: The least probability, as a share of the largest.
    """

    TOKEN = 0
    LENGTH = 1
    CHECKPOINT = 2
    CHECKPOINT_LENGTH = 3
    SPARE = 4
    WORKING = 5
    SHIFT = 6
    FORGOTTEN = 7
    SEED = 8
    TEMPERATURE = 9
    TOP_K = 10
    TOP_P = 11
    MIN_P = 12


class _Bucket(NamedTuple):
    """Steps that one graph serves.

    Args:
        sequences: At most so many.
        blocks: Each of at most so many.
        draws: Whether tokens are drawn by their probability; else the likeliest are taken.
    """

    sequences: int
    blocks: int
    draws: bool = False


@dataclass(slots=True, eq=False)
class LaunchedStep:
    """A step that the device was given.

    Args:
        runs: The sequences' run slots, row by row.
        number: Steps before it.
        tokens: (B,), where the tokens drawn will be on the host; -1 where no score is finite.
        wait: Waits until they are there.
    """

    runs: list[int]
    number: int
    tokens: Tensor
    wait: Callable[[], None]


class GraphReplays:
    """Decode steps by graphs, one for each bucket of sequences and of blocks.

    All that a step reads lies on the device and stays there, by run slot: each sequence's last
    token, its length, its checkpoint and its pages. A graph takes it from there and leaves it as
    the next step finds it. The host keeps a copy of what must be there, and sends what it wants
    otherwise: a page more, another sequence. Graphs compute whole buckets; rows without a sequence
    use a run slot and a page that no sequence has.

    Args:
        model: The network.
        caches: Its memory, with a run slot and a page more than there are for sequences.
        shape: Its sizes.
        graphs: Captures and launches.
        banned_ids: (n,), int64, ids that are never drawn.
        before_recording: Called before a step is captured, which takes longer than to compute it.
    """

    def __init__(
        self,
        model: CausalLM,
        caches: Sequence[LayerCache],
        shape: CacheShape,
        graphs: GraphDevice,
        *,
        banned_ids: Tensor,
        before_recording: Callable[[], None],
    ) -> None:
        self._model = model
        self._caches = caches
        self._shape = shape
        self._graphs = graphs
        self._banned_ids = banned_ids
        self._before_recording = before_recording
        self._seen: Counter[_Bucket] = Counter()
        self._made: dict[_Bucket, Callable[[], None] | None] = {}  # None: a graph cannot hold it
        self._nobody = shape.max_running  # the run slot of rows without a sequence
        self._most = _bucket_size(shape.max_running)
        self._width = len(_Cell) + shape.max_blocks
        num_cells = (shape.max_running + 1) * self._width
        # what the device holds, or will when it has done all that it was given
        self._mirror = np.zeros(num_cells + self._most, np.int64)
        self._mirrored = self._mirror[:num_cells].reshape(-1, self._width)
        self._mirrored_runs = self._mirror[num_cells:]
        self._state = torch.zeros(len(self._mirror), dtype=torch.int64, device=model.device)
        self._wishes: dict[int, tuple[RunningSequence, list[int]]] = {}  # by run slot
        self._num_steps = 0
        self._wait_for_last: Callable[[], None] | None = None
        self._begin()
        vocab_size = model.config.vocab_size
        self._scores = torch.zeros(self._most, vocab_size, device=model.device)
        self._tokens = torch.zeros(self._most, dtype=torch.int64, device=model.device)
        # one is read while the next is under way
        self._results = [graphs.pinned(self._most) for _ in range(2)]
        self._changes = [graphs.pinned(2 * self._width) for _ in range(2)]

    def _begin(self) -> None:
        """Hold that no sequence runs; also after a step that failed, of which nothing is known."""
        shape = self._shape
        self._stamps = [-1] * shape.max_running
        self._latest = [-1] * shape.max_running  # by run slot, the step that draws its last token
        self._mirror[:] = 0
        self._mirrored_runs[:] = self._nobody
        nobody = self._mirrored[self._nobody]
        nobody[_Cell.WORKING] = shape.working_copies * shape.max_running - self._nobody
        nobody[len(_Cell) :] = shape.num_superpages * shape.pages_per_superpage
        self._state.copy_(torch.from_numpy(self._mirror))

    def logits(self, plan: StepPlan, memory: CacheManager) -> Tensor | None:
        """(B, V), float32, overwritten by the next step; None where the step has to be computed.

        Args:
            plan: Launched if every sequence decodes, without drafts, and draws a token.
            memory: Where the sequences' memory is.
        """
        if self.launch(plan, memory) is None:
            return None
        self._graphs.join()
        return self._scores[: len(plan.rows)]

    def launch(
        self,
        plan: StepPlan,
        memory: CacheManager,
        before: Callable[[], None] = lambda: None,
        *,
        draws: bool = False,
    ) -> LaunchedStep | None:
        """Give the device a step and wait for nothing; None where it has to be computed.

        Args:
            plan: As `logits` has it. The host may not know what the sequences' last tokens are.
            memory: Where the sequences' memory is.
            before: What has to be done to memory first.
            draws: Whether tokens are drawn as each sequence asks; else the likeliest are taken.
        """
        if not all(map(_is_plain, plan.rows)):
            return None
        most = max(row.sequence.computed for row in plan.rows)
        bucket = _Bucket(
            _bucket_size(len(plan.rows)), self._bucket_blocks(most // GRID + 1), draws=draws
        )
        graph = self._graph(bucket)
        if graph is None:
            return None
        runs = [row.sequence.run_slot or 0 for row in plan.rows]
        changes = self._take(plan, runs, bucket.sequences, memory)
        self._advance(runs)
        tokens = self._results[self._num_steps % 2]

        def work() -> None:
            before()
            if changes is not None:
                places, values = self._graphs.upload(changes)
                self._state.index_copy_(0, places, values)
            graph()
            self._graphs.download(self._tokens, tokens)

        try:
            wait = self._graphs.launch(work)
        except BaseException:
            self._begin()
            raise
        self._wait_for_last = wait
        launched = LaunchedStep(runs, self._num_steps, tokens, wait)
        self._num_steps += 1
        return launched

    def read(self, step: LaunchedStep) -> list[int]:
        """The token of each row, when the step is done; -1 where no score is finite."""
        try:
            step.wait()
        except BaseException:
            self._begin()
            raise
        tokens: list[int] = step.tokens[: len(step.runs)].tolist()
        for run, token in zip(step.runs, tokens, strict=True):
            if self._latest[run] == step.number:
                self._mirrored[run, _Cell.TOKEN] = max(token, 0)
        return tokens

    def capture_again(self, model: CausalLM) -> None:
        """Forget all graphs, as this is the network from now on, or what it uses is elsewhere.

        What the device holds of sequences stays: the host may not know their last tokens.
        """
        if self._wait_for_last is not None:
            self._wait_for_last()
        self._model = model
        self._made.clear()
        self._seen.clear()

    def record(self, sizes: Iterable[Size]) -> None:
        """Capture decode steps before they are met, for sequences of the fewest blocks."""
        for size in sizes:
            if size.sequences == size.tokens and not size.drafts:
                bucket = _Bucket(_bucket_size(size.sequences), self._bucket_blocks(1))
                for draws in (False, True):
                    self._graph(bucket._replace(draws=draws), seen=SEEN)

    def num_python(self, size: Size) -> int | None:
        """How many parts of such a step stay in Python: none, or None if there is no graph."""
        sizes = {bucket.sequences for bucket, graph in self._made.items() if graph is not None}
        return 0 if _bucket_size(size.sequences) in sizes else None

    def _bucket_blocks(self, blocks: int) -> int:
        room = LEAST_BLOCKS
        while room < blocks and self._shape.has_pages:
            room *= _MORE_BLOCKS
        return min(room, self._shape.max_blocks)

    def _graph(self, bucket: _Bucket, seen: int = 1) -> Callable[[], None] | None:
        if bucket not in self._made:
            self._seen[bucket] += seen
            if self._seen[bucket] >= SEEN:
                self._capture(bucket)
        return self._made.get(bucket)

    def _capture(self, bucket: _Bucket) -> None:
        self._before_recording()
        self._graphs.join()
        # it runs meanwhile, and must do so for nobody
        runs = self._runs(bucket.sequences)
        before = runs.clone()
        runs.fill_(self._nobody)
        try:
            self._made[bucket] = self._graphs.capture(lambda: self._compute(bucket))
            _log.debug(
                "captured the step of %d sequences of up to %d blocks",
                bucket.sequences,
                bucket.blocks,
            )
        except UnrecordableError as error:
            self._made[bucket] = None
            why = f"some decode steps are not captured as graphs, but computed: {error}"
            log.once(_log, logging.INFO, why)
        except torch.OutOfMemoryError:  # a graph has memory of its own
            self._made[bucket] = None
            _log.warning(
                "decode steps of %d sequences of up to %d blocks are computed: there is no memory"
                " left for their graph",
                bucket.sequences,
                bucket.blocks,
            )
        finally:
            runs.copy_(before)

    def _runs(self, count: int) -> Tensor:
        """The run slots of the rows of a step, on the device."""
        first = len(self._state) - self._most
        return self._state[first : first + count]

    def _compute(self, bucket: _Bucket) -> None:
        """A step on what the device knows, and what it then knows; captured."""
        cells = self._state[: -self._most].view(-1, self._width)
        runs = self._runs(bucket.sequences)
        own = cells[runs, : len(_Cell) + bucket.blocks]
        tokens, start, checkpoint, checkpoint_length, spare, working, shift = own[
            :, : _Cell.FORGOTTEN
        ].unbind(1)
        tables = own[:, len(_Cell) :].contiguous()
        is_real = runs < self._nobody
        rows, ones = torch.arange(len(runs), device=runs.device), torch.ones_like(runs)
        passes = is_real & ((start + 1) % GRID == 0) if self._shape.has_states else ones < 0
        logged = start - checkpoint_length if self._shape.has_states else ones * 0
        # in the order of SpanColumn
        spans = (rows, ones, start, logged, checkpoint, runs, rows, passes.long(), working, working)
        block = (start // GRID).clamp(max=bucket.blocks - 1)  # without pages there may be more
        pages = tables.gather(1, block[:, None])[:, 0]
        batch = ForwardBatch(
            token_ids=tokens,
            positions=start + shift,
            slot_mapping=pages * GRID + start % GRID,
            logits_indices=rows,
            table=StepTable(
                Unseen(len(runs)),
                tables,
                num_decodes=len(runs),
                recorded=StepNumbers(
                    spans=torch.stack(spans, 1),
                    checkpoints=torch.stack((ones, spare), 1),
                    longest=1,
                ),
            ),
        )
        scores = self._model.logits(self._model(batch, self._caches))
        found = likeliest(scores)
        if bucket.draws or len(self._banned_ids):
            allowed = scores.index_fill(1, self._banned_ids, float("-inf"))
            if bucket.draws:
                position = start + 1 + own[:, _Cell.FORGOTTEN]
                wishes = own[:, _Cell.TEMPERATURE : len(_Cell)].contiguous().view(torch.float64)
                chances = uniforms(own[:, _Cell.SEED], position)
                drawn = draw(allowed, torch.cat((wishes, chances[:, None]), 1))
            else:
                drawn = likeliest(allowed)
            found = torch.where(found < 0, found, drawn)
        self._scores[: len(runs)] = scores
        self._tokens[: len(runs)] = found
        after = (
            torch.where(is_real, found.clamp(min=0), 0),
            start + is_real,
            torch.where(passes, spare, checkpoint),
            torch.where(passes, start + 1, checkpoint_length),
        )
        cells[runs, : len(after)] = torch.stack(after, 1)

    def _take(
        self, plan: StepPlan, runs: list[int], count: int, memory: CacheManager
    ) -> Tensor | None:
        """What has to change on the device before a step, as places and values; None for nothing.

        Args:
            plan: The step.
            runs: Its run slots.
            count: Rows of its graph.
            memory: Where the sequences' memory is.
        """
        rows = [self._cells_of(row.sequence) for row in plan.rows]
        mirrored = self._mirrored[runs, : len(_Cell)]
        wanted = np.array(rows, np.int64)
        for cell in (_Cell.TOKEN, _Cell.SPARE):
            wanted[:, cell] = np.where(
                wanted[:, cell] == _UNKNOWN, mirrored[:, cell], wanted[:, cell]
            )
        which, cells = np.nonzero(wanted != mirrored)
        places = [np.array(runs, np.int64)[which] * self._width + cells]
        values = [wanted[which, cells]]
        tables = memory.block_tables
        for run, row in zip(runs, plan.rows, strict=True):
            if self._stamps[run] != tables.stamps[run]:
                self._stamps[run] = tables.stamps[run]
                held = len(row.sequence.pages)
                own = tables.rows[run, :held]
                others = np.flatnonzero(own != self._mirrored[run, len(_Cell) :][:held])
                places.append(run * self._width + len(_Cell) + others)
                values.append(own[others])
        padded = np.array(self._pad(runs, count), np.int64)
        others = np.flatnonzero(padded != self._mirrored_runs[:count])
        places.append(len(self._mirror) - self._most + others)
        values.append(padded[others])
        return self._stage(np.concatenate(places), np.concatenate(values))

    def _pad(self, runs: list[int], count: int) -> list[int]:
        return runs + [self._nobody] * (count - len(runs))

    def _stage(self, places: NDArray[np.int64], values: NDArray[np.int64]) -> Tensor | None:
        self._mirror[places] = values
        if not len(places):
            return None
        turn = self._num_steps % 2
        if 2 * len(places) > len(self._changes[turn]):
            self._changes[turn] = self._graphs.pinned(4 * len(places))
        # side by side, or it would be copied on the host once more, to memory that is not pinned
        staged = self._changes[turn][: 2 * len(places)].view(2, -1)
        staged.copy_(torch.from_numpy(np.stack((places, values))))
        return staged

    def _cells_of(self, sequence: RunningSequence) -> tuple[int, ...]:
        """What the device has to know of it; _UNKNOWN is what it knows itself, or needs not."""
        at = sequence.computed
        spare = sequence.pending[-1][1] if sequence.pending else _UNKNOWN
        return (
            sequence.tokens[at] if at < len(sequence.tokens) else _UNKNOWN,
            at,
            sequence.checkpoint or 0,
            sequence.checkpoint_length,
            spare,
            sequence.working_copy * self._shape.max_running,
            sequence.position_shift,
            sequence.num_dropped,
            *self._wishes_of(sequence),
        )

    def _wishes_of(self, sequence: RunningSequence) -> Sequence[int]:
        """How its tokens are drawn, which stays as it is."""
        run = sequence.run_slot or 0
        owner, found = self._wishes.get(run, (None, []))
        if owner is not sequence:
            params = sequence.request.params
            numbers = (params.temperature, params.top_k, params.top_p, params.min_p)
            if params.is_greedy:
                numbers = (1.0, 1, 1.0, 0.0)
            bits = np.array(numbers, np.float64).view(np.int64).tolist()
            seed = (sequence.seed + 2**63) % 2**64 - 2**63
            found = [seed, *bits]
            self._wishes[run] = sequence, found
        return found

    def _advance(self, runs: list[int]) -> None:
        """Hold what a step leaves on the device."""
        cells = self._mirrored[runs]
        cells[:, _Cell.TOKEN] = _UNKNOWN
        cells[:, _Cell.LENGTH] += 1
        if self._shape.has_states:
            passed = np.flatnonzero(cells[:, _Cell.LENGTH] % GRID == 0)
            cells[passed, _Cell.CHECKPOINT] = cells[passed, _Cell.SPARE]
            cells[passed, _Cell.CHECKPOINT_LENGTH] = cells[passed, _Cell.LENGTH]
        self._mirrored[runs] = cells
        for run in runs:
            self._latest[run] = self._num_steps


def _is_plain(row: PlannedSequence) -> bool:
    """Whether a graph can compute a row."""
    sequence = row.sequence
    return (
        row.decodes
        and not row.drafts
        and not sequence.asks_of_prompt
        and not sequence.request.adapter
        and sequence.computed >= sequence.embeddings_end
    )


def _bucket_size(count: int) -> int:
    """The next power of two, or beyond eight the next multiple of eight."""
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
