"""As many drafts are computed as are worth their time."""

from __future__ import annotations

import pytest

from blazr.engine.sequence import Sequence
from blazr.engine.speculation import speculator as speculator_module
from blazr.engine.speculation.drafter import ComputingDrafter, Draft, Drafter
from blazr.engine.speculation.speculator import FIRST_STEPS, LEAST_GAIN, MOST_DRAFTS, Speculator
from tests.support.drafts import EagerSpeculator, running_sequence

pytestmark = pytest.mark.smoke
GRID = 64


class Ones:
    """Always proposes the same token."""

    def __init__(self) -> None:
        self.forgotten: list[Sequence] = []

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        return Draft((1,) * most, "ones")

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence)


def drive(
    sequences: list[Sequence],
    *,
    right: int,
    per_draft: float,
    steps: int = 300,
    drafter: Drafter | None = None,
    speculator: Speculator | None = None,
) -> tuple[list[int], Speculator]:
    """A machine on which a draft takes so much of a step; ``right`` of them are kept each time.

    Returns:
        The number of drafts in each step, and the speculator.
    """
    speculator = speculator or Speculator([drafter or Ones()], grid=GRID)
    depths = []
    for _ in range(steps):
        drafts = speculator.propose(sequences, room=100)
        count = sum(map(len, drafts.values()))
        depths.append(count)
        for sequence in sequences:
            num_drafts = len(drafts.get(sequence, ()))
            num_kept = min(right, num_drafts)
            sequence.tokens.extend([1] * num_kept + [1 if right else 0])
            if num_drafts:
                speculator.learn_outcome(sequence, num_drafts, num_kept)
        time = 1.0 + per_draft * count
        speculator.learn_time(len(sequences), len(sequences) + count, time)
    return depths, speculator


def some(count: int) -> list[Sequence]:
    return [running_sequence([9, 8, *[7] * 18]) for _ in range(count)]


def test_drafts_that_are_always_kept_are_computed_to_the_end() -> None:
    depths, _ = drive(some(1), right=MOST_DRAFTS, per_draft=0.02)
    assert max(depths[-100:]) == MOST_DRAFTS


def test_drafts_that_are_never_kept_are_not_computed_for_long() -> None:
    depths, _ = drive(some(1), right=0, per_draft=0.02)
    assert sum(depths[:50]) > 0
    assert sum(depths[-100:]) <= 5


class Halves:
    """Proposes ones, the first three of which are of another kind than those behind."""

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        return Draft((1,) * most, "first", num_first=3, kind_behind="behind")

    def forget(self, sequence: Sequence) -> None:
        """Nothing is kept."""


def test_drafts_end_where_a_kind_begins_that_is_never_kept() -> None:
    depths, _ = drive(some(1), right=3, per_draft=0.02, drafter=Halves())
    assert max(depths[-100:]) == 3


def test_drafts_that_cost_as_much_as_steps_are_not_computed() -> None:
    """As where the arithmetic of a full batch takes the time, and not the reading of weights."""
    for count in (1, 8):
        depths, _ = drive(some(count), right=16, per_draft=1.0 / count)
        assert sum(depths[-100:]) <= 10 * count, count
    assert LEAST_GAIN > 1


def test_a_full_batch_gets_fewer_each_where_they_cost() -> None:
    alone, _ = drive(some(1), right=3, per_draft=0.1)
    many, _ = drive(some(8), right=3, per_draft=0.1)
    assert sum(many[-100:]) / 8 < sum(alone[-100:])


def test_a_request_may_refuse() -> None:
    willing, unwilling = running_sequence([1] * 20), running_sequence([1] * 20, speculate=False)
    drafts = Speculator([Ones()], grid=GRID).propose([willing, unwilling], room=100)
    assert drafts[willing]
    assert unwilling not in drafts


def test_drafts_end_before_the_block_does_and_before_the_reply() -> None:
    for length in range(20, 2 * GRID + 2):
        sequence = running_sequence([1] * length)
        drafts = Speculator([Ones()], grid=GRID).propose([sequence], room=100).get(sequence, ())
        edge = (length - 1) // GRID * GRID + GRID
        assert length + len(drafts) < max(edge, length + 1)
    short = running_sequence([1] * 20, max_output=15)
    drafts = Speculator([Ones()], grid=GRID).propose([short], room=100).get(short, ())
    assert len(drafts) <= 15 - short.num_output - 1


def test_where_no_state_is_kept_drafts_go_on_in_the_next_block(monkeypatch) -> None:
    """But for those that are computed."""
    for length in range(20, 2 * GRID + 2):
        sequence = running_sequence([1] * length)
        looking = EagerSpeculator([Ones()], grid=GRID, crosses_blocks=True)
        assert len(looking.propose([sequence], room=100)[sequence]) == MOST_DRAFTS
        computing = EagerSpeculator([Thinker(0.1, monkeypatch)], grid=GRID, crosses_blocks=True)
        drafts = computing.propose([sequence], room=100).get(sequence, ())
        assert (length - 1) % GRID + len(drafts) < GRID - 1 + (not drafts)


def test_the_room_of_a_step_is_kept_to() -> None:
    sequences = some(4)
    drafts = Speculator([Ones()], grid=GRID).propose(sequences, room=5)
    assert 0 < sum(map(len, drafts.values())) <= 5


def test_nothing_is_kept_of_a_sequence_that_has_finished() -> None:
    sequences = some(3)
    _, speculator = drive(sequences, right=2, per_draft=0.05)
    for sequence in sequences:
        speculator.forget(sequence)
    per_sequence = [
        value
        for value in vars(speculator).values()
        if isinstance(value, dict) and any(isinstance(key, Sequence) for key in value)
    ]
    assert per_sequence == []


def test_a_size_is_timed_when_it_has_been_recorded() -> None:
    speculator = Speculator([Ones()], grid=GRID)
    for _ in range(FIRST_STEPS):
        speculator.learn_time(1, 1, 100.0)
    assert speculator._measured(1, 0) == 0.0
    speculator.learn_time(1, 1, 1.0)
    assert speculator._measured(1, 0) == 1.0


class Thinker(ComputingDrafter):
    """Knows what comes, and thinks about it for a while."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.thoughts = 0
        monkeypatch.setattr(speculator_module, "perf_counter", lambda: self.now)

    def propose(self, sequence: Sequence, most: int) -> Draft | None:
        return Draft((), "thought", min(most, 8))

    def compute(self, counts):
        self.thoughts += max(counts.values())
        self.now += self.seconds * max(counts.values())
        return {each: (1,) * count for each, count in counts.items()}

    def forget(self, sequence: Sequence) -> None:
        pass


@pytest.mark.parametrize(("cost", "is_worth_it"), [(0.1, True), (2.0, False)])
def test_what_computing_drafts_costs_counts(monkeypatch, cost, is_worth_it) -> None:
    """In steps' time: a tenth of one for each draft is little, twice as much as one is not."""
    drafter = Thinker(cost, monkeypatch)
    depths, _ = drive(some(1), right=16, per_draft=0.02, drafter=drafter)
    assert (sum(depths[-100:]) > 400) == is_worth_it
    # where it is not, it is tried again from time to time
    assert drafter.thoughts > 0
    assert is_worth_it or drafter.thoughts < 40


class Reader(Thinker):
    """Has to read a while before it can think."""

    num_chunks = 5

    def prepare(self, sequences):
        self.num_chunks -= 1
        self.now += 100.0
        return [] if self.num_chunks > 0 else sequences


def test_what_is_read_before_drafts_is_no_part_of_their_cost(monkeypatch) -> None:
    drafter = Reader(0.1, monkeypatch)
    depths, _ = drive(some(1), right=16, per_draft=0.02, drafter=drafter)
    assert sum(depths[-100:]) > 400
    assert drafter.thoughts > 0


def test_computed_drafts_wait_until_a_step_without_them_is_known(monkeypatch) -> None:
    drafter = Thinker(0.0, monkeypatch)
    depths, _ = drive(some(1), right=16, per_draft=0.02, drafter=drafter, steps=16)
    assert depths[: FIRST_STEPS + 1] == [0] * (FIRST_STEPS + 1)
    assert sum(depths) > 0


def test_computed_drafts_that_were_wrong_are_tried_again(monkeypatch) -> None:
    """Nothing is learnt of what is not computed, so what was learnt counts less and less."""
    drafter = Thinker(0.05, monkeypatch)
    (sequence,) = some(1)
    _, speculator = drive([sequence], right=0, per_draft=0.02, drafter=drafter, steps=200)
    before = drafter.thoughts
    depths, _ = drive([sequence], right=8, per_draft=0.02, steps=400, speculator=speculator)
    assert before < 100
    assert sum(depths[-100:]) > 100


def timed_without_drafts() -> Speculator:
    speculator = Speculator([Ones()], grid=GRID)
    for _ in range(FIRST_STEPS + 1):
        speculator.learn_time(1, 1, 1.0)
    return speculator


def test_steps_that_were_slow_for_a_while_are_tried_again() -> None:
    """Others use the machine, too: what was measured meanwhile does not count for long."""
    (sequence,) = some(1)
    speculator = timed_without_drafts()
    depths, _ = drive([sequence], right=8, per_draft=5.0, steps=40, speculator=speculator)
    assert sum(depths) > 0
    assert sum(depths[-10:]) == 0
    depths, _ = drive([sequence], right=8, per_draft=0.02, steps=200, speculator=speculator)
    assert sum(depths[-20:]) > 60


def test_a_draw_that_took_long_once_keeps_no_drafts_away() -> None:
    (sequence,) = some(1)
    speculator = timed_without_drafts()
    for seconds in [0.01] * 3 + [1000.0]:
        assert sequence in speculator.propose([sequence], room=1)
        sequence.tokens.extend([1, 1])
        speculator.learn_outcome(sequence, 1, 1, seconds)
    depths, _ = drive([sequence], right=8, per_draft=0.02, steps=50, speculator=speculator)
    assert sum(depths[-20:]) > 60


class Nothing(Drafter):
    """Proposes nothing."""

    def propose(self, sequence: Sequence, most: int) -> None:
        return None


def looks(speculator: Speculator, sequence: Sequence, num_tokens: int) -> int:
    """How often drafts of a reply are looked for, on a machine whose steps take no longer."""
    count = 0
    for _ in range(num_tokens):
        assert not speculator.propose([sequence], room=100)
        count += speculator.has_looked
        sequence.tokens.append(0)
        speculator.learn_time(1, 1, 1e-7)
    speculator.forget(sequence)
    return count


def test_a_reply_is_looked_at_as_seldom_as_the_last_one_that_repeated_nothing() -> None:
    speculator = Speculator([Nothing()], grid=GRID)
    first, second = (looks(speculator, some(1)[0], 300) for _ in range(2))
    assert second < first / 2


def test_short_replies_and_those_that_refuse_say_nothing_of_others() -> None:
    speculator, other = (Speculator([Nothing()], grid=GRID) for _ in range(2))
    for _ in range(20):
        looks(speculator, some(1)[0], 5)
    looks(speculator, running_sequence([1] * 20, speculate=False), 300)
    assert looks(speculator, some(1)[0], 300) == looks(other, some(1)[0], 300)
