"""How many drafts are computed in a step: as many as are worth their time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from time import perf_counter

from blazr.engine.sequence import Sequence
from blazr.engine.speculation.drafter import ComputingDrafter, Draft, Drafter

MOST_DRAFTS = 15  # of one sequence in a step
# Numbers of drafts in a step that are considered: each size of a step is recorded once. Beside the
# token before them, those of one sequence fill the rows that a kernel multiplies together.
COUNTS = (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63)
LEAST_GAIN = 1.05  # expected tokens a second with drafts over without; below, none are computed
DECAY = 0.9  # of the weight of an outcome with each later one
PRIOR = 2.0  # outcomes that the rate of other replies counts for in a new reply
FIRST_STEPS = 1  # of a size that are not timed, as they may be recorded
TOKEN_SHARE = 0.05  # assumed cost of a further token, as a share of a step, until it is measured
FIRST_TRY = 2  # most drafts in a step while no size is measured; then twice the measured ones
PACE = 1.03  # the time known of a size grows by this factor at most with each step
MOST_VAIN = 0.002  # share of a step's time that may go into looking for drafts in vain
PATIENCE = 16  # a pause has (looks in vain)**2 / PATIENCE tokens
REDEEMED = 2  # looks in vain that an accepted draft cancels
LONGEST_PAUSE = 63  # tokens of a reply between two looks for drafts
COMPUTED_PAUSE = 7  # the same for computed drafts: what is known of them fades with each look
LEAST_RATE = 0.05  # drafts that are less likely to be accepted are not considered
LONGEST_DRAW = 2  # times the average; a draw that took longer has waited for something else
LASTING = 64  # timed steps after which the time of a size with drafts is no longer known
PLAIN_LASTING = 512  # the same without drafts: where drafts are accepted, such steps are rare
FADING = 0.98  # of what is known of computed drafts each time that none is worth its time


KEPT, FAILED = 2.0, 1.0  # outcomes that a kind of draft starts with
# What accepted drafts make of the outcomes before them, by how many they are, and what they add.
_FADED = [DECAY**count for count in range(MOST_DRAFTS + 1)]
_ADDED = [(1 - faded) / (1 - DECAY) for faded in _FADED]


@dataclass(slots=True)
class _Outcomes:
    """How often drafts of one kind were accepted; later ones count more."""

    kept: float = KEPT
    failed: float = FAILED

    def add(self, num_kept: int, num_failed: int) -> None:
        faded = _FADED[num_kept]
        self.kept = faded * self.kept + _ADDED[num_kept]
        self.failed *= faded
        if num_failed:
            self.kept *= DECAY
            self.failed = DECAY * self.failed + 1

    def fade(self) -> None:
        """Move a little towards the initial rate, while there are no outcomes to learn from."""
        self.kept = FADING * self.kept + (1 - FADING) * KEPT
        self.failed = FADING * self.failed + (1 - FADING) * FAILED

    @property
    def rate(self) -> float:
        return self.kept / (self.kept + self.failed)


@dataclass(slots=True)
class _Reply:
    """What is known of one reply.

    Attributes:
        draft: Of its next tokens, until it is known which are right.
        asked_at: How long the reply was when that was proposed.
        computed_by: Who computes the draft once it is known how many tokens are wanted.
        outcomes: How often drafts were kept, by kind: its own, and those of all replies.
        wake_at: How many tokens there are of it when drafts are looked for again.
        num_vain: How often there were none that were worth it; drafts that were kept make up for
            some.
    """

    draft: Draft | None = None
    asked_at: int = 0
    computed_by: ComputingDrafter | None = None
    outcomes: dict[str, tuple[_Outcomes, _Outcomes]] = field(default_factory=dict)
    wake_at: int = 0
    num_vain: int = 0


@dataclass(slots=True)
class _Time:
    """How long steps of one size take, in seconds, and after how many steps that was measured."""

    seconds: float = 0.0
    measured_at: int = 0
    num_steps: int = 0

    def add(self, seconds: float, now: int) -> None:
        """Record a step.

        Args:
            seconds: How long it took.
            now: Steps of all sizes so far.
        """
        self.num_steps += 1
        if self.num_steps > FIRST_STEPS:
            self.seconds = min(seconds, PACE * (self.seconds or seconds))
            self.measured_at = now


class Speculator:
    """Asks drafters for drafts, and chooses how many of them a step computes.

    The number is the one with most expected tokens a second. How likely a draft is to be accepted
    follows from earlier drafts of its kind, in this reply and in others, whether they were computed
    or only proposed; what it costs follows from the times of earlier steps of the same size.

    Args:
        drafters: Asked in this order; the first that knows something counts.
        grid: Tokens of a block. Computed drafts end with the block, as their drafter has no page
            beyond it.
        crosses_blocks: Whether others do not: no state is kept at the end of a block, which could
            not be taken back.

    Attributes:
        has_looked: Whether drafts were looked for before the current step. Only such steps are
            timed: where nothing repeats, most are not.
        apart_s: Seconds of the current step that went into computing drafts and into drawing what
            follows accepted ones. They are costs of drafts and not part of the step's time.
    """

    def __init__(
        self, drafters: Iterable[Drafter], *, grid: int, crosses_blocks: bool = False
    ) -> None:
        self._drafters = tuple(
            (each, each if isinstance(each, ComputingDrafter) else None) for each in drafters
        )
        self._crosses_blocks = crosses_blocks
        self._computes = any(by is not None for _, by in self._drafters)
        self._grid = grid
        self.has_looked = False
        self.apart_s = 0.0
        self._replies: dict[Sequence, _Reply] = {}
        self._common: dict[str, _Outcomes] = {}
        self._draw_s: dict[bool, float] = {}  # what a kept draft costs, by whether argmax will do
        self._times: dict[int, dict[int, _Time]] = {}  # by numbers of sequences and of drafts
        self._computing: dict[int, _Time] = {}  # one draft of each of so many sequences
        self._vain_s = 0.0  # what it takes to look for drafts of a sequence where there are none
        self._num_vain = 0  # of the last reply that was long enough to tell
        self._num_steps = 0

    def propose(self, sequences: list[Sequence], room: int) -> dict[Sequence, tuple[int, ...]]:
        """Choose the drafts that the next step computes.

        Args:
            sequences: All that decode in it.
            room: Most drafts in all.

        Returns:
            Token ids by sequence; a sequence without drafts is left out.
        """
        asked: dict[Sequence, _Reply] = {}
        for sequence in sequences:
            reply = self._replies.get(sequence)
            if reply is None:
                # it repeats as seldom as others did
                reply = self._replies[sequence] = _Reply(num_vain=self._num_vain)
            if sequence.num_output >= reply.wake_at:
                asked[sequence] = reply
        self.has_looked, self.apart_s = bool(asked), 0.0
        if not asked:
            return {}
        started = perf_counter()
        proposed: dict[Sequence, _Reply] = {}
        for sequence, reply in asked.items():
            reply.draft = self._ask(sequence, reply)
            if reply.draft is not None:
                proposed[sequence] = reply
        depths = self._choose_depths(len(sequences), proposed, room) if proposed else {}
        if not depths:
            self._learn_vain_time(asked.values(), perf_counter() - started)
        if len(depths) < len(asked):
            self._rest({each: asked[each] for each in asked if each not in depths}, len(sequences))
        if depths and self._computes:
            started = perf_counter()
            self._compute(depths)
            self.apart_s = perf_counter() - started
        return {
            sequence: self._draft(sequence).token_ids[:depth] for sequence, depth in depths.items()
        }

    def _draft(self, sequence: Sequence) -> Draft:
        draft = self._replies[sequence].draft
        assert draft is not None
        return draft

    def learn_outcome(
        self, sequence: Sequence, num_drafts: int, num_kept: int, seconds: float = 0.0
    ) -> None:
        """Record how many drafts of a sequence were accepted.

        Args:
            sequence: One for which `propose` chose drafts.
            num_drafts: How many were computed.
            num_kept: How many of them were accepted, from the first on.
            seconds: How long the draws took that decided so.
        """
        reply = self._replies[sequence]
        self._add_outcome(reply, self._draft(sequence), num_drafts, num_kept)
        reply.draft, reply.wake_at = None, 0
        self.apart_s += seconds
        if num_kept:
            reply.num_vain = max(reply.num_vain - REDEEMED * num_kept, 0)
            likeliest, draw_s = sequence.takes_likeliest, seconds / num_kept
            known = self._draw_s.get(likeliest, draw_s)
            # without a limit, one that was interrupted would keep drafts away for good
            self._draw_s[likeliest] = DECAY * known + (1 - DECAY) * min(
                draw_s, LONGEST_DRAW * known
            )

    def learn_time(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """Record how long a step of this size took."""
        self._num_steps += 1
        times = self._times.setdefault(num_sequences, {})
        num_drafts = num_tokens - num_sequences
        time = times.get(num_drafts)
        if time is None:
            time = times[num_drafts] = _Time()
        time.add(seconds, self._num_steps)

    def forget(self, sequence: Sequence) -> None:
        """A sequence has finished."""
        reply = self._replies.pop(sequence, None)
        has_tried = sequence.request.params.speculate and sequence.num_output > LONGEST_PAUSE
        if reply is not None and has_tried:
            self._num_vain = reply.num_vain
        for drafter, _ in self._drafters:
            drafter.forget(sequence)

    def _learn_vain_time(self, replies: Collection[_Reply], seconds: float) -> None:
        """Record how long it took to look for drafts of replies, if none are computed."""
        # behind longer pauses all of it has left the caches
        if all(reply.num_vain < PATIENCE for reply in replies):
            each_s = seconds / len(replies)
            known = self._vain_s or each_s
            # one that was interrupted has waited for others
            self._vain_s = DECAY * known + (1 - DECAY) * min(each_s, LONGEST_DRAW * known)

    def _rest(self, replies: Mapping[Sequence, _Reply], num_sequences: int) -> None:
        """Pause looking for drafts of some replies: the longer, the more often there were none.

        Args:
            replies: Those without drafts in the next step.
            num_sequences: How many decode in it.
        """
        base_s = self._measured(num_sequences, 0)
        longest = LONGEST_PAUSE
        if base_s:
            longest = min(int(num_sequences * self._vain_s / (MOST_VAIN * base_s)), longest)
        for sequence, reply in replies.items():
            pause = longest
            if reply.draft is not None and reply.computed_by is not None:
                pause = COMPUTED_PAUSE
                for outcomes in self._outcomes(reply, reply.draft.kind):
                    outcomes.fade()
            if reply.num_vain**2 < PATIENCE * pause or not reply.num_vain:
                reply.num_vain += 1
            reply.wake_at = sequence.num_output + min(reply.num_vain**2 // PATIENCE, pause)

    def _ask(self, sequence: Sequence, reply: _Reply) -> Draft | None:
        if reply.draft is not None:
            self._learn_from_what_came(sequence, reply, reply.draft)
        num_output = sequence.num_output
        if not num_output or not sequence.takes_drafts or sequence.asks_of_prompt:
            return None
        length = len(sequence.tokens)
        most = min(
            MOST_DRAFTS, sequence.max_length - length - 1, sequence.max_output - num_output - 1
        )
        most_in_block = min(most, self._grid - 2 - (length - 1) % self._grid)
        for drafter, by in self._drafters:
            room = most if self._crosses_blocks and by is None else most_in_block
            draft = drafter.propose(sequence, room) if room > 0 else None
            if draft is not None:
                reply.asked_at, reply.computed_by = num_output, by
                return draft
        return None

    def _compute(self, depths: dict[Sequence, int]) -> None:
        """Let drafters compute the chosen drafts that they have only announced so far."""
        by = {each: self._replies[each].computed_by for each in depths}
        for drafter in {each: None for each in by.values() if each is not None}:
            ready = drafter.prepare([each for each in depths if by[each] is drafter])
            wanted = {each: depths[each] for each in ready}
            if not wanted:
                continue
            started = perf_counter()
            found = drafter.compute(wanted)
            seconds = (perf_counter() - started) / max(wanted.values())
            self._computing.setdefault(len(wanted), _Time()).add(seconds, self._num_steps)
            for sequence, token_ids in found.items():
                draft = self._draft(sequence)
                self._replies[sequence].draft = draft._replace(token_ids=token_ids)

    def _learn_from_what_came(self, sequence: Sequence, reply: _Reply, draft: Draft) -> None:
        """Compare the first token of a draft that was not computed with the one that was drawn."""
        place = len(sequence.tokens) - (sequence.num_output - reply.asked_at)
        if draft.token_ids and 0 <= place < len(sequence.tokens):
            is_right = sequence.tokens[place] == draft.token_ids[0]
            self._add_outcome(reply, draft, 1, int(is_right))

    def _add_outcome(self, reply: _Reply, draft: Draft, num_drafts: int, num_kept: int) -> None:
        """Record that ``num_kept`` of the first ``num_drafts`` tokens of a draft were right."""
        num_first = min(draft.num_first, num_drafts)
        for outcomes in self._outcomes(reply, draft.kind):
            outcomes.add(min(num_kept, num_first), num_kept < num_first)
        if num_kept >= num_first < num_drafts:
            for outcomes in self._outcomes(reply, draft.kind_behind):
                outcomes.add(num_kept - num_first, num_kept < num_drafts)

    def _outcomes(self, reply: _Reply, kind: str) -> tuple[_Outcomes, _Outcomes]:
        """The outcomes of a kind of draft, in this reply and in all."""
        outcomes = reply.outcomes.get(kind)
        if outcomes is None:
            common = self._common.setdefault(kind, _Outcomes())
            own = _Outcomes(PRIOR * common.rate, PRIOR * (1 - common.rate))
            outcomes = reply.outcomes[kind] = own, common
        return outcomes

    def _choose_depths(
        self, num_sequences: int, proposed: dict[Sequence, _Reply], room: int
    ) -> dict[Sequence, int]:
        """Choose how many drafts of each sequence give most expected tokens a second."""
        compute_s = 0.0
        if self._computes:
            computed = [each for each, reply in proposed.items() if reply.computed_by is not None]
            compute_s = self._computing.get(len(computed), _Time()).seconds
            # what they cost beside a step is known once one has been measured
            if not self._measured(num_sequences, 0):
                proposed = {each: proposed[each] for each in proposed if each not in computed}
        if not proposed:
            return {}
        rates: list[float] = []
        owners: list[Sequence] = []
        for sequence, reply in proposed.items():
            its = self._rates(reply, self._draft(sequence))
            rates += its
            owners += [sequence] * len(its)
        if len(proposed) > 1:
            order = sorted(range(len(rates)), key=rates.__getitem__, reverse=True)
            rates, owners = [rates[each] for each in order], [owners[each] for each in order]
        draw_s = sum(self._draw_s.get(each.takes_likeliest, 0.0) for each in proposed)
        guess_s: list[float] = []
        if compute_s:
            num_guessed = dict.fromkeys(computed, 0)
            for owner in owners:
                if owner in num_guessed:
                    num_guessed[owner] += 1
                guess_s.append(max(num_guessed.values()) * compute_s)
        draw_s /= len(proposed)
        best = self._choose_count(num_sequences, rates[: max(room, 0)], draw_s, guess_s)
        depths: dict[Sequence, int] = {}
        for owner in owners[:best]:
            depths[owner] = depths.get(owner, 0) + 1
        return depths

    def _rates(self, reply: _Reply, draft: Draft) -> list[float]:
        """How often tokens like those of a draft are kept, as far as they are worth weighing."""
        num_first = min(draft.num_first, draft.most)
        steps = [self._outcomes(reply, draft.kind)[0].rate] * num_first
        if num_first < draft.most:
            behind = self._outcomes(reply, draft.kind_behind)[0].rate
            steps += [behind] * (draft.most - num_first)
        return [rate for rate in accumulate(steps, mul) if rate >= LEAST_RATE]

    def _choose_count(
        self, num_sequences: int, rates: list[float], draw_s: float, guess_s: list[float]
    ) -> int:
        """Choose with how many drafts a step gives most expected tokens a second.

        Args:
            num_sequences: How many decode in it.
            rates: How often such drafts are kept as may be computed, the likeliest first.
            draw_s: How long it takes to draw what follows a kept one, on average.
            guess_s: How long it takes to guess the drafts up to each, where any are guessed.
        """
        times = self._times.get(num_sequences, {})
        base = self._measured(num_sequences, 0)
        expected, time, share = float(num_sequences), 1.0, TOKEN_SHARE  # a step without takes 1
        best, most, last = 0, LEAST_GAIN * expected, 0
        allowed, oldest = FIRST_TRY, self._num_steps - LASTING
        for count in COUNTS:
            if count > allowed or count > len(rates):
                break
            expected += sum(rates[last:count])
            known = times.get(count)
            if base and known is not None and known.seconds and known.measured_at >= oldest:
                time, allowed = known.seconds / base, 2 * count
                share = (time - 1) / count
            else:
                time += share * (count - last)
            last = count
            whole = time
            if base:
                beside_s = (expected - num_sequences) * draw_s
                if guess_s:
                    beside_s += guess_s[count - 1]
                whole += beside_s / base
            if expected > most * whole:
                best, most = count, expected / whole
            elif best and count >= 2 * best:
                break  # later ones are less likely still
        return best

    def _measured(self, num_sequences: int, num_drafts: int) -> float:
        """Seconds that a step of this size takes, or 0 where that is not known."""
        time = self._times.get(num_sequences, {}).get(num_drafts)
        lasting = LASTING if num_drafts else PLAIN_LASTING
        if time is None or time.measured_at + lasting < self._num_steps:
            return 0.0
        return time.seconds
