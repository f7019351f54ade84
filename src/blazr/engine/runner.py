"""Runs one step on the device: batch, network, logits, draws."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import proxy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from blazr.engine.batching import build_batch, build_draft_batch, build_rewind
from blazr.engine.block import NO_PAGE
from blazr.engine.cache.manager import CacheManager, CacheShape
from blazr.engine.cache.storage import CacheLayout, Storage
from blazr.engine.graph_replay import GraphReplays
from blazr.engine.outputs import TokenLogprobs
from blazr.engine.ranks import orders
from blazr.engine.ranks.shared import SharedStorage
from blazr.engine.replay import Replays, Size
from blazr.engine.request import Request
from blazr.engine.sampling.sampler import Draws, Sampled, Sampler, many_logprobs, sampled_token
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import PlannedSequence, StepPlan
from blazr.engine.sequence import Sequence as RunningSequence
from blazr.models.adapters.attach import AdapterSlots
from blazr.models.causal_lm import CausalLM
from blazr.nn.layers.batch import ForwardBatch
from blazr.nn.operands.lora import LoraFactors
from blazr.nn.operands.step import GRID
from blazr.nn.ops.graphs import GraphDevice, graph_device

if TYPE_CHECKING:
    from blazr.engine.ranks.processes import RankProcesses

MAX_ADAPTERS = 64  # in memory at once

P = ParamSpec("P")
R = TypeVar("R")

_ALONE = nullcontext()


@dataclass(slots=True)
class StepResult:
    """What a step put out.

    Args:
        sampled: One per row that samples, in the plan's order, then one per fork that does.
        draw_next: Draws for a row of the plan what follows so many of its drafts, once these have
            been appended to its sequence; None where nothing is drawn.
        likeliest: For a row of the plan with drafts: the likeliest token before each of them and
            behind the last, -1 where more has to be known; None where it is not.
        prompt_logprobs: By row of the plan, for requests that ask: one per token of this step
            that has a next one in the prompt.
        pooled: By row of the plan, for requests that ask: the sum of the hidden states of this step
            or the last of them, (C,).
        fork_logprobs: By fork of the plan, for those whose prompts are scored: of the first token
            that is not the row's.
    """

    sampled: list[Sampled] = field(default_factory=list)
    draw_next: Callable[[int, int], Sampled] | None = None
    likeliest: Callable[[int], Sequence[int]] | None = None
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    pooled: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    fork_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


def _in_inference_mode(compute: Callable[P, R]) -> Callable[P, R]:
    """As ``torch.inference_mode``, but almost free where that is on, as on the engine's thread."""

    @wraps(compute)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.is_inference_mode_enabled():
            return compute(*args, **kwargs)
        with torch.inference_mode():
            return compute(*args, **kwargs)

    return run


class ModelRunner:
    """The network and the memory it reads and writes.

    Args:
        model: Weights in place.
        layout: How pages and states lie in memory.
        shape: How many there are.
        banned_ids: Ids that are never drawn.
        replay: Whether decode steps are recorded and made again.
        processes: The other ranks, where the network is the first one's part; nothing is recorded
            then, as no recording holds what ranks tell each other.
        graphs: What captures decode steps as graphs; None for what the network's device has.

    Attributes:
        before_recording: Called before a step is recorded, which takes longer than to compute it.
    """

    def __init__(
        self,
        model: CausalLM,
        layout: CacheLayout,
        shape: CacheShape,
        *,
        banned_ids: Sequence[int] = (),
        replay: bool = True,
        processes: RankProcesses | None = None,
        graphs: GraphDevice | None = None,
    ) -> None:
        self.model = model
        self._processes = processes
        self._graphs = graphs or graph_device(model.device)
        if not replay or processes is not None:
            self._graphs = None
        self.layout = layout
        self.shape = shape
        self.storage = self._new_storage(shape, has_spare=self._graphs is not None)
        self.sampler = Sampler(model.config.vocab_size, banned_ids, model.device)
        self.before_recording: Callable[[], None] = lambda: None
        self.replays = self._new_replays() if replay and processes is None else None
        self._adapters = AdapterSlots(model, MAX_ADAPTERS)

    @property
    def launches(self) -> bool:
        """Whether `launch` can begin with a step: the device draws tokens, and keeps graphs."""
        return self._graphs is not None

    def replace(self, model: nn.Module) -> None:
        """Go on with another network of the same config; what is in memory is of the old one."""
        assert isinstance(model, CausalLM)
        self._adapters.move(model)
        self.model = model
        self._forget_recorded()

    def put_adapter(self, factors: Mapping[str, LoraFactors]) -> int:
        """Hold an adapter beside the network; see `AdapterSlots.put`.

        Returns:
            Its slot.

        Raises:
            CapacityError: There are too many.
        """
        slot, is_new = self._adapters.put(factors)
        if is_new:
            self._forget_recorded()
        return slot

    def drop_adapter(self, slot: int) -> None:
        """Hold an adapter no longer."""
        self._adapters.drop(slot)

    def _forget_recorded(self) -> None:
        if isinstance(self.replays, GraphReplays):
            self.replays.capture_again(self.model)
        elif self.replays is not None:
            self.replays = self._new_replays()

    def _new_replays(self) -> Replays | GraphReplays:
        layers = self.storage.layers
        this = proxy(self)  # a cycle would keep the network until the next garbage collection

        def before_recording() -> None:
            this.before_recording()

        if self._graphs is None:
            return Replays(self.model, layers, self.shape.max_blocks, before_recording)
        return GraphReplays(
            self.model,
            layers,
            self.shape,
            self._graphs,
            banned_ids=self.sampler.banned_ids,
            before_recording=before_recording,
        )

    @_in_inference_mode
    def record(self, num_sizes: int, num_drafts: Sequence[int] = ()) -> None:
        """Record the decode steps of 1 to ``num_sizes`` sequences, without computing them.

        For a network that has computed a step; on the thread that computes them.

        Args:
            num_sizes: Most sequences.
            num_drafts: Of one sequence steps with so many drafts are recorded, too.
        """
        most = min(num_sizes, self.shape.max_running)
        sizes = [Size(size, size) for size in range(1, most + 1)]
        sizes += [Size(1, 1 + count) for count in num_drafts]
        if self.model.mtp is not None:
            sizes.append(Size(1, 1, drafts=True))
        if self.replays is not None:
            self.replays.record(sizes)

    @_in_inference_mode
    def execute(self, plan: StepPlan, memory: CacheManager) -> StepResult:
        """Compute a step.

        Memory is zeroed as it is handed out: whatever a former owner left can be seen by nobody.
        Slots of states need not be: the step that they are handed out for writes all of them.
        """
        result = StepResult()
        if self._graphs is not None:
            self._graphs.join()
        with self._together():
            self.storage.clear_pages(plan.fresh_pages)
            self.storage.clear_run_slots(plan.fresh_run_slots)
            self._rewind_truncated(plan)
            logits = None if self.replays is None else self.replays.logits(plan, memory)
            if logits is None:
                batch = build_batch(plan, memory, self.model.device)
                hidden = self._forward(self.model, batch, self.storage)
                result.pooled = self._pool_hidden(plan, hidden)
                wanted = batch.logits_indices
                if len(wanted):
                    adapters = None if batch.adapters is None else batch.adapters[wanted]
                    logits = self._scores(self.model, hidden, wanted, adapters)
            # what replies cannot share: a page just begun, the log, the state
            for fork in plan.forks:
                source = fork.source
                assert source.run_slot is not None
                self.storage.copy_run_slot(source.run_slot, fork.run_slot, source.working_copy)
                if fork.page != NO_PAGE:
                    self.storage.copy_page(source.pages[-1], fork.page)
        if logits is not None:
            draw_tokens(self.sampler, plan, logits, result)
        return result

    @_in_inference_mode
    def launch(self, plan: StepPlan, memory: CacheManager) -> Callable[[], StepResult] | None:
        """Begin with a step of which the device draws the tokens, by a graph.

        Args:
            plan: The step. The host may not know the last tokens of its sequences.
            memory: Where the sequences' memory is.

        Returns:
            What waits for it; None where `execute` has to compute it.
        """
        replays = self.replays
        if not isinstance(replays, GraphReplays) or plan.forks:
            return None
        sequences = [row.sequence for row in plan.rows]
        if not all(each.draws_plainly and not each.was_truncated for each in sequences):
            return None

        def clear() -> None:
            self.storage.clear_pages(plan.fresh_pages)
            self.storage.clear_run_slots(plan.fresh_run_slots)

        draws = not all(each.takes_likeliest for each in sequences)
        step = replays.launch(plan, memory, clear, draws=draws)
        if step is None:
            return None
        return lambda: StepResult([*map(sampled_token, replays.read(step))])

    def _rewind_truncated(self, plan: StepPlan) -> None:
        truncated = [row.sequence for row in plan.rows if row.sequence.was_truncated]
        if not truncated:
            return
        table = build_rewind(truncated, self.shape, self.model.device)
        if self._processes is not None:
            self._processes.tell(orders.rewind, _number(self.storage), table)
        self.model.rewind(table, self.storage.layers)
        for sequence in truncated:
            sequence.was_truncated = False

    def _forward(self, model: CausalLM, batch: ForwardBatch, storage: Storage) -> Tensor:
        """Hidden states, (T, C); all ranks compute them."""
        if self._processes is not None:
            self._processes.tell(orders.forward, _number(storage), batch)
        hidden: Tensor = model(batch, storage.layers)
        return hidden

    def _scores(
        self, model: CausalLM, hidden: Tensor, wanted: Tensor, adapters: Tensor | None = None
    ) -> Tensor:
        """Logits of some hidden states, (J, V); all ranks compute them."""
        if self._processes is not None:
            self._processes.tell(orders.compute_scores, wanted)
        return model.logits(hidden[wanted], adapters)

    def _new_storage(self, shape: CacheShape, *, has_spare: bool = False) -> Storage:
        if self._processes is None:
            return Storage(self.layout, shape, self.model.device, has_spare=has_spare)
        return SharedStorage(self.layout, shape, self.model, self._processes)

    def _together(self) -> AbstractContextManager[None]:
        return _ALONE if self._processes is None else self._processes.together()

    @_in_inference_mode
    def draft(
        self, counts: Mapping[RunningSequence, int], memory: CacheManager
    ) -> dict[RunningSequence, tuple[int, ...]]:
        """Guess the next tokens of sequences of which all but the last token are in memory.

        Args:
            counts: How many tokens of each; it has the page that its last token and they are on.
            memory: Where the sequences' memory is.
        """
        drafts: dict[RunningSequence, list[int]] = {each: [] for each in counts}
        for place in range(max(counts.values())):
            last = {
                each: (drafts[each] or each.tokens)[-1]
                for each, count in counts.items()
                if count > place
            }
            logits = None
            if isinstance(self.replays, Replays):  # graphs hold no drafts
                logits = self.replays.draft_logits(last, place, memory)
            if logits is None:
                batch = build_draft_batch(last, place, memory, self.model.device)
                logits = self.model.draft(batch, self.storage.layers)
            for each, token in zip(last, self.model.guesses(logits), strict=True):
                drafts[each].append(token)
        return {each: tuple(found) for each, found in drafts.items()}

    @_in_inference_mode
    def logits(
        self, token_ids: Sequence[int], cuts: Sequence[int] = (), model: nn.Module | None = None
    ) -> Tensor:
        """Scores at every position of one sequence, in memory of its own.

        Args:
            token_ids: T tokens.
            cuts: Positions where the computation is interrupted and resumed from memory.
            model: Another network of the same config, to compute them with.

        Returns:
            (T, V), float32.
        """
        model = model or self.model
        assert isinstance(model, CausalLM)
        count = len(token_ids)
        blocks = -(-count // GRID)
        pages, states = self.layout.pages_per_superpage, self.layout.states_per_superpage
        shape = CacheShape(
            grid=GRID,
            # the zero state and two of the sequence's own, and a page for every block
            num_superpages=(-(-3 // states) if states else 0)
            + (-(-blocks // pages) if pages else 0),
            pages_per_superpage=pages,
            states_per_superpage=states,
            max_running=1,
            max_blocks=blocks,
        )
        memory = CacheManager(shape, prefix_cache=False)
        sequence = RunningSequence(
            request_id=0,
            request=Request(prompt_ids=tuple(token_ids), params=SamplingParams(prompt_logprobs=0)),
            index=0,
            order=(0, 0, 0),
            tokens=array("i", token_ids),
            seed=0,
            max_length=count,
            max_output=0,
        )
        memory.start(sequence)
        parts = []
        ends = sorted({0, count, *(cut for cut in cuts if 0 < cut < count)})
        storage = self._new_storage(shape)
        try:
            for start, end in pairwise(ends):
                length = end - start
                memory.reserve(sequence, length)
                plan = StepPlan((PlannedSequence(sequence, length, samples=length == 1),))
                batch = build_batch(plan, memory, model.device)
                wanted = torch.arange(length, device=model.device)
                with self._together():
                    hidden = self._forward(model, batch, storage)
                    parts.append(self._scores(model, hidden, wanted))
                memory.commit(sequence, length)
        finally:
            if isinstance(storage, SharedStorage):
                storage.close()
        return torch.cat(parts)

    def _pool_hidden(self, plan: StepPlan, hidden: Tensor) -> dict[int, NDArray[np.float64]]:
        pooled = {}
        first = 0
        for index, (sequence, length, samples, _) in enumerate(plan.rows):
            start = first
            first = first + length
            how = sequence.request.pooling
            if how == "mean" or (how == "last" and samples):
                part = hidden[start:first]
                states = self.model.norm(part if how == "mean" else part[-1:])
                pooled[index] = states.sum(0, dtype=torch.float64).cpu().numpy()
        return pooled


def _number(storage: Storage) -> int:
    assert isinstance(storage, SharedStorage)
    return storage.number


def draw_tokens(sampler: Sampler, plan: StepPlan, logits: Tensor, result: StepResult) -> None:
    """Draw what a step's sequences want, and score the prompts that ask for it.

    Args:
        sampler: Draws.
        plan: The step.
        logits: (J, V), float32, in the plan's order: of every token of a sequence whose prompt is
            scored, of the last one of others that sample and of the drafts behind it.
        result: Gets the tokens and the log-probabilities.
    """
    ends: dict[RunningSequence, int] = {}  # the last of each one's rows
    wanted: list[tuple[int, RunningSequence]] = []
    at = 0
    for index, row in enumerate(plan.rows):
        sequence, length, samples, drafts = row
        if sequence.request.pooling is not None:
            continue
        start, at = at, at + (length if sequence.asks_of_prompt else samples + len(drafts))
        ends[sequence] = at - 1
        if samples:
            wanted.append((at - 1 - len(drafts), sequence))
        if sequence.asks_of_prompt:
            result.prompt_logprobs[index] = _prompt_logprobs(row, logits[start:at])
    for index, fork in enumerate(plan.forks):
        num_top = fork.sequence.request.params.prompt_logprobs
        if fork.samples:
            wanted.append((ends[fork.source], fork.sequence))
        elif num_top is not None:
            token = fork.sequence.tokens[fork.length]
            (entry,) = many_logprobs(logits[ends[fork.source]][None], [token], num_top)
            result.fork_logprobs[index] = entry
    if not wanted:
        return
    draws = sampler.draws(logits)
    result.sampled = draws.draw(wanted)
    _follow_drafts(plan, ends, draws, result)


def _follow_drafts(
    plan: StepPlan, ends: Mapping[RunningSequence, int], draws: Draws, result: StepResult
) -> None:
    """Let a result tell what is drawn behind drafts, whose last rows are these."""

    def draw_next(index: int, num_taken: int) -> Sampled:
        sequence, _, _, drafts = plan.rows[index]
        return draws.draw([(ends[sequence] - len(drafts) + num_taken, sequence)])[0]

    def likeliest(index: int) -> Sequence[int]:
        sequence, _, _, drafts = plan.rows[index]
        return draws.likeliest(ends[sequence] - len(drafts), 1 + len(drafts))

    result.draw_next, result.likeliest = draw_next, likeliest


def _prompt_logprobs(row: PlannedSequence, logits: Tensor) -> list[TokenLogprobs]:
    sequence = row.sequence
    num_top = sequence.request.params.prompt_logprobs or 0
    first = sequence.computed + 1
    following = sequence.tokens[first : min(first + row.num_tokens, sequence.num_prompt)]
    found: list[TokenLogprobs] = []
    for start in range(0, len(following), GRID):  # a grid at a time, to take little memory
        ids = following[start : start + GRID].tolist()
        found += many_logprobs(logits[start : start + len(ids)], ids, num_top)
    return found
