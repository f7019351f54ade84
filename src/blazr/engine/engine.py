"""The engine: add, step, abort. Owns the life of every request; knows no thread and no clock."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from time import perf_counter
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from blazr.core.errors import EXITS, ContextLengthError, EngineError, RequestError
from blazr.engine.cache.arena import ItemClass
from blazr.engine.constraint import Constraint, advance
from blazr.engine.outputs import (
    FinishReason,
    RunningReply,
    SlotAction,
    TokenLogprobs,
    TokenOutput,
    describe_error,
)
from blazr.engine.request import Request
from blazr.engine.runner import StepResult
from blazr.engine.sampling.sampler import Sampled, failed_draw
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import PlannedSequence, Scheduler, StepPlan
from blazr.engine.scores import continue_scores, keep_scores
from blazr.engine.sequence import Phase, Sequence
from blazr.engine.speculation.drafter import count_equal

Execute = Callable[[StepPlan], StepResult]
# Starts a step whose tokens the device draws, and returns a function that waits for its result;
# None where the step has to be computed by `Execute`.
Launch = Callable[[StepPlan], Callable[[], StepResult] | None]


class _Launched(NamedTuple):
    """A step that the device computes.

    Args:
        plan: What it computes.
        read: Waits for it and returns what it drew.
        lengths: By row of the plan, tokens in memory when it is done.
    """

    plan: StepPlan
    read: Callable[[], StepResult]
    lengths: list[int]


class _Taken(NamedTuple):
    """What a sequence got in a step, and why it ends if it does."""

    reason: FinishReason | None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    stop_id: int | None = None
    stop_logprobs: TokenLogprobs | None = None
    error: str | None = None
    is_refusal: bool = False
    embedding: array[float] | None = None


_LATE = _Taken(FinishReason.TIMEOUT, error="the request ran out of time")


@dataclass(slots=True)
class EngineCounts:
    """What has happened, for the metrics."""

    steps: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)


class Engine:
    """Turns requests into token outputs, one step at a time.

    Args:
        scheduler: Decides what each step computes.
        execute: Computes it: a runner's, or in tests anything with the same signature.
        vocab_size: Ids at and above it are refused.
        max_seq_len: Context in tokens.
        context_is_hard: Whether a prompt beyond the context is refused (a recurrent model goes on).
        context_shift: Whether a reply goes on beyond the context by forgetting older tokens.
        length_class: Of the most tokens a sequence may have: only sequences of one class share a
            prefix.
        launch: Begins with a step without waiting for it; None where the device cannot. The next
            one is then decided before what this one draws is known, and the device never waits.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        execute: Execute,
        *,
        launch: Launch | None = None,
        vocab_size: int,
        max_seq_len: int,
        context_is_hard: bool = True,
        context_shift: bool = False,
        length_class: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self.scheduler = scheduler
        self.counts = EngineCounts()
        self.vocab_size = vocab_size
        self.max_seq_len = max_seq_len
        self._execute = execute
        self._launch_step = launch
        self._launched: _Launched | None = None
        self._context_is_hard = context_is_hard
        self._context_shift = context_shift
        self._length_class = length_class
        self._by_request: dict[int, list[Sequence]] = {}
        self._pooled: dict[Sequence, NDArray[np.float64]] = {}
        self._stuck = 0

    def add(self, request: Request, *, request_id: int, now: float, seed: int) -> None:
        """Queue a request.

        Args:
            request: What to generate.
            request_id: A number of its own; lower ones go first.
            now: Monotonic time, in seconds.
            seed: Used where the request has none.

        Raises:
            RequestError: An id is no token, or the prompt is empty.
            ContextLengthError: The prompt does not fit the context or the memory.
        """
        self.check(request)
        params = request.params
        num_prompt = len(request.prompt_ids)
        most = self._most_output(params)
        max_length = self._max_length(request)
        salt = self._salt(request)
        if salt != request.cache_salt:
            request = replace(request, cache_salt=salt)
        # what was forgotten would move what is left away from its embeddings
        shifts = self._context_shift and not request.embeddings
        base = params.seed if params.seed is not None else seed
        sequences = [
            Sequence(
                request_id=request_id,
                request=request,
                index=index,
                order=(request.priority, request_id, index),
                tokens=array("i", request.prompt_ids),
                seed=base + index * 0x632BE59BD9B4E019,
                max_length=max_length,
                max_output=most if shifts else max_length - num_prompt,
                deadline=None if request.timeout_s is None else now + request.timeout_s,
                constraint=None if request.constraint is None else request.constraint.fork(),
            )
            for index in range(params.n)
        ]
        self._by_request[request_id] = sequences
        for sequence in sequences:
            self.scheduler.add(sequence)

    def _most_output(self, params: SamplingParams) -> int:
        # where nothing bounds the reply, one as long as a context is long enough
        return self.max_seq_len if params.max_tokens is None else params.max_tokens

    def _max_length(self, request: Request) -> int:
        most = len(request.prompt_ids) + self._most_output(request.params)
        return min(most, self._max_tokens)

    def _salt(self, request: Request) -> str:
        """What a request shares prefixes by: its salt, and what else decides what they hold."""
        salt = request.cache_salt
        if request.is_bidirectional:  # what a token leaves depends on the whole prompt
            told = (request.prompt_ids, [(each.start, each.digest) for each in request.embeddings])
            salt += f"\0{sha256(repr(told).encode()).hexdigest()}"
        length = max(len(request.prompt_ids), self._max_length(request) - 1)
        length_class = self._length_class(length)
        return f"{salt}\0{length_class}" if length_class else salt

    def check(self, request: Request) -> None:
        """Refuse what can never run. Pure, so that any thread may ask first.

        Raises:
            RequestError: An id is no token, or the prompt is empty.
            ContextLengthError: The prompt does not fit the context or the memory.
        """
        ids = request.prompt_ids
        if not ids:
            raise RequestError(
                "the prompt is empty.", param="prompt", expected="at least one token"
            )
        for name, bad in (
            ("stop_token_ids", request.params.stop_token_ids),
            ("logit_bias", request.params.logit_bias),
            ("allowed_token_ids", request.params.allowed_token_ids or ()),
        ):
            if any(not 0 <= i < self.vocab_size for i in bad):
                raise RequestError(
                    f"an id of {name} is out of range.",
                    param=name,
                    expected=f"0 to {self.vocab_size - 1}",
                )
        limit = self._max_tokens
        is_read_only = request.params.max_tokens == 0
        if len(ids) > (limit if is_read_only else limit - 1):
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, and the context holds {limit}.",
                num_tokens=len(ids),
                limit=limit,
                param="prompt",
                expected=f"at most {limit}"
                if is_read_only
                else f"at most {limit - 1}, so that one can be generated",
                hint='shorten it; of a chat, truncation="auto" leaves out the oldest turns',
            )
        # after the length, so that of millions of ids none is looked at
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            wrong = next(i for i in ids if not 0 <= i < self.vocab_size)
            raise RequestError(
                "a token id of the prompt is out of range.",
                param="prompt",
                found=str(wrong)[:100],
                expected=f"0 to {self.vocab_size - 1}",
            )

    def abort(self, request_id: int, index: int | None = None) -> list[TokenOutput]:
        """End a request, or one of its replies; its memory is free when this returns.

        Unknown ids are ignored.
        """
        return [
            self._end(sequence, _Taken(FinishReason.ABORT))
            for sequence in list(self._by_request.get(request_id, ()))
            if sequence.phase is not Phase.FINISHED and index in {None, sequence.index}
        ]

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.scheduler.running or self.scheduler.waiting or self._launched)

    def step(self, now: float, prefill_budget: int | None = None) -> list[TokenOutput]:
        """Compute one step, or begin with it and end the one before.

        Args:
            now: Monotonic time, in seconds.
            prefill_budget: Most prefill tokens beside decoding sequences.

        Returns:
            One output per sequence that got a token or ended.
        """
        outputs = self.expire(now)
        if self._launched is not None:
            return outputs + self._continue_launched(self._launched)
        started = perf_counter()
        plan = self.scheduler.schedule(prefill_budget)
        if not plan.rows:
            return outputs + self._fail_stuck()
        self._stuck = 0
        try:
            self._launched = self._launch(plan)
            if self._launched is not None:
                return outputs
            result = self._execute(plan)
        except EXITS:
            raise
        except BaseException as error:  # noqa: BLE001  (see EXITS)
            return outputs + self._cancel(plan, error)
        self._collect_of_prompts(plan, result)
        self.scheduler.commit(plan)
        for index in result.prompt_logprobs:
            keep_scores(plan.rows[index].sequence, self.scheduler.memory.shape.grid)
        self.counts.steps += 1
        self.counts.computed_tokens += plan.num_tokens
        outputs += self._append_sampled(plan, result)
        self.scheduler.learn_time(plan, perf_counter() - started)
        return outputs

    def _launch(self, plan: StepPlan) -> _Launched | None:
        read = None if self._launch_step is None else self._launch_step(plan)
        if read is None:
            return None
        self.scheduler.launch(plan)
        self.counts.steps += 1
        self.counts.computed_tokens += plan.num_tokens
        return _Launched(plan, read, [row.sequence.computed for row in plan.rows])

    def _continue_launched(self, done: _Launched) -> list[TokenOutput]:
        """Launch the next step while one is under way, then wait for the earlier one.

        A sequence that ends with the earlier step is computed once too often: the token that the
        next step draws for it is dropped. So are tokens of sequences that were aborted or preempted
        in between.
        """
        self._launched = None
        try:
            following = self.scheduler.schedule_next(done.plan)
            if following is not None:
                self._launched = self._launch(following)
                if self._launched is None:
                    self.scheduler.drop(following)
            result = done.read()
        except EXITS:
            raise
        except BaseException as error:  # noqa: BLE001  (see EXITS)
            self._launched = None
            return self._cancel(done.plan, error)
        outputs = []
        for row, length, sampled in zip(done.plan.rows, done.lengths, result.sampled, strict=True):
            if row.sequence.phase is Phase.RUNNING:
                self.scheduler.memory.settle(row.sequence, length)
                outputs.append(self._append(row.sequence, self._take(row.sequence, sampled)))
        return outputs

    def _cancel(self, plan: StepPlan, error: BaseException) -> list[TokenOutput]:
        """A step failed: of several sequences each starts again, a single one ends."""
        self.scheduler.cancel(plan)
        first = plan.rows[0].sequence
        is_alone = len(plan.rows) == 1 and first.phase is Phase.RUNNING
        return [self._fail(first, describe_error(error))] if is_alone else []

    def stats(self) -> dict[str, float]:
        """Figures for the metrics, by name."""
        scheduler = self.scheduler
        memory = self.scheduler.memory
        counts = self.counts
        did = scheduler.counts
        figures: dict[str, float] = {
            "num_running": len(scheduler.running),
            "max_running": memory.shape.max_running,
            "num_waiting": len(scheduler.waiting),
            "steps": counts.steps,
            "generated_tokens": counts.generated_tokens,
            "computed_tokens": counts.computed_tokens,
            "prompt_tokens": did.prompt_tokens,
            "cached_tokens": did.cached_tokens,
            "preemptions": did.preempted,
            "draft_steps": did.draft_steps,
            "draft_tokens": did.drafts,
            "kept_draft_tokens": did.kept_drafts,
            "pages_used": memory.arena.used(ItemClass.PAGE),
            "pages_idle": memory.trie.num_idle_pages,
            "pages_free": memory.arena.room(ItemClass.PAGE),
            "usage": self._usage(),
            "states_used": memory.arena.used(ItemClass.STATE),
            "states_free": memory.arena.room(ItemClass.STATE),
            "prefix_blocks": memory.trie.num_nodes,
            "cache_bytes": memory.shape.num_bytes,
            "block_tokens": memory.shape.grid,
            "page_bytes": memory.shape.page_bytes,
            "state_bytes": memory.shape.state_bytes,
            "page_evictions": memory.trie.evictions[ItemClass.PAGE],
            "state_evictions": memory.trie.evictions[ItemClass.STATE],
        }
        # copies, because the engine's thread may add a reason meanwhile
        figures |= {f"reuse_{reason}": n for reason, n in did.reuse.copy().items()}
        figures |= {f"finished_{reason}": n for reason, n in counts.finished.copy().items()}
        if memory.disk is not None:
            figures |= memory.disk.files.stats()
        return figures

    def _usage(self) -> float:
        """The share of what there is for replies that running ones hold."""
        memory = self.scheduler.memory
        if not memory.shape.has_pages:
            return len(self.scheduler.running) / memory.shape.max_running
        used = memory.arena.used(ItemClass.PAGE)
        total = used + memory.arena.room(ItemClass.PAGE)
        return (used - memory.trie.num_idle_pages) / total if total else 0.0

    def close(self) -> None:
        """Write to disk what is to be found after the next start."""
        self.scheduler.memory.close()

    def release(self) -> None:
        """Drop what computes, and with that the network and its caches; no step follows."""
        self._execute = refuse_closed
        self._launch_step = self._launched = None
        self.scheduler.speculator = None

    def block_names(self, request: Request) -> list[bytes]:
        """The names on disk of a prompt's blocks, as far as it could be resumed; none without disk.

        Pure, so that any thread may ask.
        """
        disk = self.scheduler.memory.disk
        if disk is None:
            return []
        tokens = array("i", request.prompt_ids)
        return disk.names(tokens, self._salt(request), request.embeddings)

    def keep_prompt(self, request: Request) -> None:
        """Have all that is known of a prompt written to disk, if there is one."""
        disk = self.scheduler.memory.disk
        if disk is not None:
            tokens = array("i", request.prompt_ids)
            disk.keep(tokens, self._salt(request), request.embeddings)

    def use_slot(self, action: SlotAction, slot: int, name: str) -> int:
        """Save what the last reply in a slot had computed, bring it back, or forget it.

        Args:
            action: Which of these.
            slot: Place of a reply, as `RunningReply` has it.
            name: What it is saved as.

        Returns:
            Tokens saved, restored or forgotten.

        Raises:
            RequestError: There is no disk, no such slot, or nothing of that name.
        """
        memory = self.scheduler.memory
        if memory.disk is None:
            hint = "start with --cache-dir DIR"
            raise RequestError("slots are not saved here.", param="action", hint=hint)
        if slot not in range(memory.shape.max_running):
            expected = f"0 to {memory.shape.max_running - 1}"
            raise RequestError(
                "there is no such slot.", param="id", found=str(slot)[:50], expected=expected
            )
        if action == "erase":
            return memory.disk.erase_slot(slot)
        if action == "save":
            return memory.disk.save_slot(slot, name)
        return memory.disk.restore_slot(slot, name)

    @property
    def has_drafters(self) -> bool:
        """Whether replies may have drafts."""
        return self.scheduler.speculator is not None

    def running(self) -> list[RunningReply]:
        """How far the replies have come that are computed now."""
        return [
            RunningReply(
                request_id=each.request_id,
                index=each.index,
                slot=each.run_slot or 0,
                num_prompt_tokens=each.num_prompt,
                num_computed_tokens=each.computed,
                num_output_tokens=each.num_output,
                max_tokens=each.max_output,
            )
            for each in self.scheduler.running.copy()  # its thread may change it meanwhile
        ]

    @property
    def _max_tokens(self) -> int:
        """Most tokens of one sequence, in memory and in the context."""
        limit = self.scheduler.memory.shape.max_tokens
        return min(limit, self.max_seq_len) if self._context_is_hard else limit

    def _append_sampled(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Append what was drawn in a step, and for its drafts what is drawn behind them."""
        outputs = []
        sampled = iter(result.sampled)
        for index, row in enumerate(plan.rows):
            if row.samples and row.sequence.request.pooling is not None:
                outputs.append(self._end_pooled(row.sequence))
            elif row.drafts:
                output = self._append_drafted(index, row, next(sampled), result)
                outputs += () if output is None else (output,)
            elif row.samples:
                outputs.append(self._append(row.sequence, self._take(row.sequence, next(sampled))))
        for fork in plan.forks:
            if fork.samples:
                taken = self._take(fork.sequence, next(sampled))
                outputs.append(self._append(fork.sequence, taken))
        return outputs

    def _take(self, sequence: Sequence, sampled: Sampled) -> _Taken:
        """Append the token drawn, and those its constraint forces after it."""
        if sampled.error is not None:
            refused = sampled.is_refusal
            return _Taken(FinishReason.ERROR, error=sampled.error, is_refusal=refused)
        if sampled.most_surprise is not None:
            sequence.most_surprise = sampled.most_surprise
        token = sampled.token_id
        params = sequence.request.params
        if params.max_tokens == 0:
            return _Taken(FinishReason.LENGTH)
        if token in sequence.ends and sequence.num_output >= params.min_tokens:
            return _Taken(FinishReason.STOP, stop_id=token, stop_logprobs=sampled.logprobs)
        tokens: tuple[int, ...] = (token,)
        is_complete = False
        if sequence.constraint is not None:
            try:
                tokens, is_complete = _accept_forced(sequence, sequence.constraint, token)
            except EXITS:
                raise
            except BaseException as error:  # noqa: BLE001  (see EXITS)
                is_refusal = isinstance(error, RequestError)
                return _Taken(
                    FinishReason.ERROR, error=describe_error(error), is_refusal=is_refusal
                )
        sequence.tokens.extend(tokens)
        self.counts.generated_tokens += len(tokens)
        reason = None
        if is_complete or sequence.num_output >= sequence.max_output:
            reason = FinishReason.STOP if is_complete else FinishReason.LENGTH
        logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
        return _Taken(reason, tokens, logprobs)

    def _append_drafted(
        self, index: int, row: PlannedSequence, sampled: Sampled, result: StepResult
    ) -> TokenOutput | None:
        """Go on drawing as long as what is drawn was drafted.

        Where scores are not finite, their token is computed again, without drafts behind it: NaN in
        a draft's values reaches tokens that do not attend to it, as attention multiplies them by 0.

        Args:
            index: Of the row in the plan.
            row: With drafts.
            sampled: What follows the tokens before them.
            result: Of the step.

        Returns:
            None where nothing was drawn.
        """
        sequence, drafts = row.sequence, row.drafts
        started = perf_counter()
        if sequence.takes_likeliest and result.likeliest is not None:
            found = result.likeliest(index)
            num_kept = count_equal(found, drafts)
            whole = tuple(found[: num_kept + 1])
            if self._append_if_nothing_ends(sequence, whole):
                self.scheduler.keep_drafts(row, num_kept, perf_counter() - started)
                return self._append(sequence, _Taken(None, whole))
        assert result.draw_next is not None
        token_ids: tuple[int, ...] = ()
        logprobs: tuple[TokenLogprobs, ...] = ()
        num_kept = 0
        while not sampled.is_unsound:
            taken = self._take(sequence, sampled)
            token_ids += taken.token_ids
            logprobs += taken.logprobs
            num_right = count_equal(taken.token_ids, drafts[num_kept:])
            num_kept += num_right
            if taken.reason is not None or num_right < len(taken.token_ids):
                break
            sampled = _drawn_by(result.draw_next, index, num_kept)
        else:
            taken = _Taken(None)
            sequence.takes_drafts = False
            num_kept -= 1
        self.scheduler.keep_drafts(row, num_kept, perf_counter() - started)
        if not token_ids and taken.reason is None:
            return None
        return self._append(sequence, taken._replace(token_ids=token_ids, logprobs=logprobs))

    def _append_if_nothing_ends(self, sequence: Sequence, token_ids: tuple[int, ...]) -> bool:
        """Append at once what `_take` would one by one, unless the reply ends with any of it."""
        has_room = sequence.num_output + len(token_ids) < sequence.max_output
        if not has_room or token_ids[-1] < 0 or not sequence.ends.isdisjoint(token_ids):
            return False
        sequence.tokens.extend(token_ids)
        self.counts.generated_tokens += len(token_ids)
        return True

    def _append(self, sequence: Sequence, taken: _Taken) -> TokenOutput:
        """Put out what a sequence got, and end it if it has ended."""
        if taken.reason is not None:
            return self._end(sequence, taken)
        if len(sequence.tokens) >= sequence.max_length:
            # what is left is computed again: with other positions, and other tokens before it
            sequence.forget_oldest()
            self.scheduler.requeue(sequence)
        return self._output(sequence, taken)

    def _end_pooled(self, sequence: Sequence) -> TokenOutput:
        vector = self._pooled[sequence]
        if sequence.request.pooling == "mean":
            vector = vector / sequence.num_prompt
        if not np.isfinite(vector).all():
            return self._fail(sequence, "the model put out no finite hidden state")
        embedding = array("f", vector.tolist())
        return self._end(sequence, _Taken(FinishReason.STOP, embedding=embedding))

    def _end(self, sequence: Sequence, taken: _Taken) -> TokenOutput:
        reason = taken.reason
        assert reason is not None
        self.scheduler.finish(sequence, publish=reason is not FinishReason.ERROR)
        self._pooled.pop(sequence, None)
        self.counts.finished[reason] += 1
        output = self._output(sequence, taken)
        siblings = self._by_request[sequence.request_id]
        if all(sibling.phase is Phase.FINISHED for sibling in siblings):
            del self._by_request[sequence.request_id]
        return output

    def _fail(self, sequence: Sequence, message: str) -> TokenOutput:
        return self._end(sequence, _Taken(FinishReason.ERROR, error=message))

    def _output(self, sequence: Sequence, taken: _Taken) -> TokenOutput:
        scores = sequence.scores
        sequence.scores = None
        is_whole = scores is not None and len(scores) == sequence.num_prompt
        return TokenOutput(
            request_id=sequence.request_id,
            index=sequence.index,
            token_ids=taken.token_ids,
            logprobs=taken.logprobs,
            prompt_logprobs=tuple(scores) if scores is not None and is_whole else None,
            finish_reason=taken.reason,
            stop_id=taken.stop_id,
            stop_logprobs=taken.stop_logprobs,
            error=taken.error,
            is_refusal=taken.is_refusal,
            num_prompt_tokens=sequence.num_prompt,
            num_cached_tokens=sequence.num_cached,
            reuse=sequence.reuse,
            resumed_at=sequence.resumed_at,
            num_drafts=sequence.num_drafts,
            num_kept_drafts=sequence.num_kept_drafts,
            embedding=taken.embedding,
        )

    def _collect_of_prompts(self, plan: StepPlan, result: StepResult) -> None:
        """Gather the log-probabilities and hidden states of prompts, chunk by chunk."""
        for index, logprobs in result.prompt_logprobs.items():
            sequence = plan.rows[index].sequence
            if sequence.scores is not None:
                sequence.scores += logprobs
        for index, entry in result.fork_logprobs.items():
            fork = plan.forks[index]
            if not fork.sequence.num_output:  # with the first token they are handed out
                known = (fork.source.scores or ())[: fork.length]
                fork.sequence.scores = continue_scores(known, entry)
        for index, part in result.pooled.items():
            sequence = plan.rows[index].sequence
            # after a preemption the prompt is computed again from its first token
            is_first = sequence.computed == 0 or sequence not in self._pooled
            self._pooled[sequence] = part if is_first else self._pooled[sequence] + part

    def expire(self, now: float) -> list[TokenOutput]:
        """End what has run out of time; a step does so first."""
        late = [
            each
            for each in self.scheduler.sequences()
            if each.deadline is not None and now >= each.deadline
        ]
        return [self._end(sequence, _LATE) for sequence in late] if late else []

    def _fail_stuck(self) -> list[TokenOutput]:
        """A queue that cannot start although nothing runs would wait for ever."""
        if not self.scheduler.waiting or self.scheduler.running:
            return []
        self._stuck += 1
        if self._stuck < 3:
            return []
        first = next(self.scheduler.in_turn(), self.scheduler.waiting[0])
        return [self._fail(first, "the cache memory cannot hold this request")]


def refuse_closed(*_: object) -> NoReturn:
    """Take the place of what a closed engine computed with.

    Raises:
        EngineError: Always.
    """
    raise EngineError("the engine is not running.", found="it was closed")


def _drawn_by(draw_next: Callable[[int, int], Sampled], index: int, num_taken: int) -> Sampled:
    """What is drawn behind so many drafts; a failure ends one reply, as it does in the step."""
    try:
        return draw_next(index, num_taken)
    except EXITS:
        raise
    except BaseException as error:  # noqa: BLE001  (see EXITS)
        return failed_draw(error)


def _accept_forced(
    sequence: Sequence, constraint: Constraint, token: int
) -> tuple[tuple[int, ...], bool]:
    """The token drawn and those its constraint forces after it; then whether nothing may follow.

    Forced tokens skip the draw. Where log-probabilities are asked for, every token needs scores of
    its own, so none is skipped.
    """
    params = sequence.request.params
    room = 1
    if params.logprobs is None:
        in_context = sequence.max_length - len(sequence.tokens)
        room = min(in_context, sequence.max_output - sequence.num_output)
    ends = sequence.request.stop_ids | set(params.stop_token_ids)
    tokens = advance(constraint, token, max_tokens=room, stop_ids=ends)
    return tokens, constraint.is_finished
