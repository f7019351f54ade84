"""Drafts from a smaller model of the same vocabulary, which reads every text beside the large one.

Source: Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative
Decoding", arXiv:2211.17192.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from typing_extensions import override

from blazr.engine.cache.arena import OutOfMemoryError
from blazr.engine.cache.manager import CacheManager
from blazr.engine.request import Request
from blazr.engine.runner import ModelRunner, StepResult
from blazr.engine.sampling_params import SamplingParams
from blazr.engine.scheduler import PlannedSequence, StepPlan
from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import ComputingDrafter, Draft

_log = logging.getLogger(__name__)

T = TypeVar("T")
MOST_BEHIND = 8  # tokens that are read in the step that guesses; more are read before
_GREEDY = SamplingParams(temperature=0)


@dataclass(slots=True)
class _Copy:
    """A sequence as the small model has it.

    Args:
        sequence: Its tokens, then what was guessed behind them.
        num_certain: Tokens that are those of the text, and no guesses.
        num_dropped: What the text had forgotten then; with others, places are others.
    """

    sequence: Sequence
    num_certain: int
    num_dropped: int


class DraftModel(ComputingDrafter):
    """Lets a small model go on with each sequence, by its likeliest tokens.

    Its memory is like the large one's, and its own: it holds a copy of each sequence. What was
    guessed and did not come is forgotten, as drafts are that were rejected; so a copy may be
    behind its sequence, by what came since the last guesses, but never wrong. A copy that finds no
    room takes that of another that was used before it.

    Args:
        runner: The small model.
        memory: Of the shape that its runner has.
        token_budget: Most tokens in a step.
    """

    def __init__(self, runner: ModelRunner, memory: CacheManager, *, token_budget: int) -> None:
        self._runner = runner
        self._memory = memory
        self._max_seq_len = runner.model.config.max_seq_len
        self._vocab_size = runner.model.config.vocab_size
        self._token_budget = token_budget
        self._copies: dict[Sequence, _Copy] = {}  # the latest used last
        self._unreadable: set[Sequence] = set()  # texts with tokens beyond its vocabulary
        self._has_failed = False

    @override
    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        can_read = not sequence.request.embeddings and sequence.request.inputs is None
        can_read = can_read and sequence not in self._unreadable
        most = min(most, self._max_seq_len - len(sequence.tokens))
        if self._has_failed or most < 1 or not can_read:
            return None
        return Draft((), "draft", most)

    @override
    def prepare(self, sequences: Collection[Sequence]) -> Collection[Sequence]:
        """Read what is new to the small model, at most a step's tokens: prompts take several."""
        return self._unless_it_fails(lambda: self._read(sequences), [])

    @override
    def compute(self, counts: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        return self._unless_it_fails(lambda: self._compute(counts), {})

    @override
    def forget(self, sequence: Sequence) -> None:
        self._drop(sequence)
        self._unreadable.discard(sequence)

    def _unless_it_fails(self, work: Callable[[], T], nothing: T) -> T:
        """Ask the small model, if it has not failed yet; the replies do not need it."""
        if self._has_failed:
            return nothing
        try:
            return work()
        except Exception:  # noqa: BLE001  (it is logged, and nobody else can know what to do)
            _log.exception("the draft model has failed: nothing more is drafted by it")
            self._has_failed = True
            for each in list(self._copies):
                self._drop(each, publish=False)
            return nothing

    def _read(self, texts: Collection[Sequence]) -> list[Sequence]:
        """Let the copies have their texts' tokens, and those in memory that a guess cannot read.

        Returns:
            Those that are ready for a guess.
        """
        for each in texts:
            self._follow(each)
        rows: list[PlannedSequence] = []
        left = self._token_budget
        for each in texts:
            copy = self._copies.get(each)
            if copy is None or left <= 0:
                continue
            own = copy.sequence
            length = min(own.remaining - 1, left)
            if not self._is_near(own) and self._reserve(each, texts, length):
                rows.append(PlannedSequence(own, length, samples=False))
                left -= length
        if rows:
            self._step(rows)
        copies = {each: self._copies[each] for each in texts if each in self._copies}
        return [each for each, copy in copies.items() if self._is_near(copy.sequence)]

    def _compute(self, counts: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        drafts: dict[Sequence, list[int]] = {}
        for place in range(max(counts.values())):
            wanted = [each for each, count in counts.items() if count > place]
            self._guess([each for each in wanted if self._reserve(each, counts)])
            for each in wanted:
                if each in self._copies:
                    drafts.setdefault(each, []).append(self._copies[each].sequence.tokens[-1])
        return {each: tuple(found) for each, found in drafts.items()}

    def _follow(self, text: Sequence) -> None:
        """Let the copy of a text have its tokens; it keeps in memory what is still right.

        A text with a token that the small model does not have gets no copy.
        """
        tokens = text.tokens
        copy = self._copies.pop(text, None)
        if copy is not None:
            kept = self._num_right(copy, text)
            if kept < copy.sequence.computed // self._memory.shape.grid * self._memory.shape.grid:
                self._memory.release(copy.sequence)
                copy = None
            elif kept < copy.sequence.computed:
                self._memory.truncate(copy.sequence, kept)
        if max(tokens[0 if copy is None else copy.sequence.computed :]) >= self._vocab_size:
            self._unreadable.add(text)
            if copy is not None:
                self._memory.release(copy.sequence)
            return
        if copy is None:
            copy = self._begin(text)
        own = copy.sequence
        del own.tokens[own.computed :]
        own.tokens.extend(tokens[own.computed :])
        copy.num_certain = len(tokens)
        self._copies[text] = copy

    def _num_right(self, copy: _Copy, text: Sequence) -> int:
        """How much of what a copy has in memory stays; the last token is computed again."""
        if copy.num_dropped != text.num_dropped:
            return 0
        own = copy.sequence
        most = min(own.computed, len(text.tokens) - 1)
        kept = min(copy.num_certain, most)
        while kept < most and own.tokens[kept] == text.tokens[kept]:
            kept += 1
        return kept

    def _begin(self, text: Sequence) -> _Copy:
        """A copy that has nothing in memory but a prefix that is known."""
        while not self._memory.free_run_slots:
            self._drop(next(iter(self._copies)))
        own = Sequence(
            request_id=text.request_id,
            request=Request(
                prompt_ids=tuple(text.tokens),
                params=_GREEDY,
                cache_salt=text.request.cache_salt,
                anchors=text.request.anchors,
            ),
            index=text.index,
            order=text.order,
            tokens=array("i", text.tokens),
            seed=0,
            max_length=min(text.max_length, self._max_seq_len),
            max_output=text.max_output,
        )
        self._memory.start(own)
        return _Copy(own, len(own.tokens), text.num_dropped)

    def _is_near(self, own: Sequence) -> bool:
        """Whether a step that guesses can read what is left, as it would drafts.

        These lie on the page of the token before them, and end before the next one begins.
        """
        behind = own.remaining - 1
        grid = self._memory.shape.grid
        return behind == 0 or (behind <= MOST_BEHIND and own.computed % grid + own.remaining < grid)

    def _guess(self, texts: Iterable[Sequence]) -> None:
        """Append the likeliest next token to each of the copies."""
        rows = []
        for each in texts:
            own = self._copies[each].sequence
            # what it has not read is computed as drafts are, all of which are kept
            behind = tuple(own.tokens[own.computed + 1 :])
            del own.tokens[own.computed + 1 :]
            rows.append(PlannedSequence(own, 1 + len(behind), samples=True, drafts=behind))
        if not rows:
            return
        rows.sort(key=lambda row: row.num_tokens > 1)  # kernels take single tokens together
        result = self._step(rows)
        assert result.draw_next is not None
        for index, row in enumerate(rows):
            num_read = len(row.drafts)
            drawn = result.draw_next(index, num_read) if num_read else result.sampled[index]
            # -1 where there are no numbers
            row.sequence.tokens.extend((*row.drafts, max(drawn.token_id, 0)))

    def _step(self, rows: list[PlannedSequence]) -> StepResult:
        memory = self._memory
        plan = StepPlan(tuple(rows), (), *memory.take_new())
        result = self._runner.execute(plan, memory)
        for own, num_tokens, _, behind in rows:
            num_read = len(behind)
            memory.commit(own, num_tokens - num_read, num_drafts=num_read)
            if num_read:
                memory.accept(own, num_read, num_drafts=num_read)
        return result

    def _reserve(self, text: Sequence, needed: Container[Sequence], num_tokens: int = 1) -> bool:
        """Make room for the next tokens of a copy.

        Args:
            text: Whose copy.
            needed: Texts whose copies stay.
            num_tokens: How many.

        Returns:
            Whether there is room; if not, there is no such copy any more.
        """
        while text in self._copies:
            try:
                self._memory.reserve(self._copies[text].sequence, num_tokens)
            except OutOfMemoryError:
                self._drop(next((each for each in self._copies if each not in needed), text))
            else:
                return True
        return False

    def _drop(self, text: Sequence, *, publish: bool = True) -> None:
        copy = self._copies.pop(text, None)
        if copy is not None:
            self._memory.release(copy.sequence, publish=publish)
