"""A step that computes drafts of one sequence, as speculation would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blazr.engine.cache.manager import CacheManager
from blazr.engine.runner import StepResult
from blazr.engine.scheduler import Scheduler, StepPlan
from blazr.engine.sequence import Phase
from blazr.engine.sequence import Sequence as RunningSequence


def most_drafts(memory: CacheManager, sequence: RunningSequence) -> int:
    """How many can be computed behind what remains and still be dropped; -1 where not even that."""
    return memory.shape.grid - 1 - sequence.computed % memory.shape.grid - sequence.remaining


def compute_drafts(
    scheduler: Scheduler,
    execute: Callable[[StepPlan], StepResult],
    sequence: RunningSequence,
    drafts: Sequence[int],
) -> bool:
    """Compute what remains of a running sequence and so many drafts.

    Returns:
        Whether it was done. If not, the sequence has given way to others, and has no drafts.

    Raises:
        RuntimeError: The step failed, and was cancelled.
    """
    before = len(sequence.tokens)
    sequence.tokens.extend(drafts)
    row = scheduler._plan(sequence, sequence.remaining)
    scheduler._fork_points.clear()
    plan = scheduler._finish_plan([] if row is None else [row._replace(samples=False)])
    if row is None:
        assert sequence.phase is Phase.WAITING
        del sequence.tokens[before:]
        return False
    try:
        execute(plan)
    except RuntimeError:
        scheduler.cancel(plan)
        raise
    scheduler.commit(plan)
    return True
