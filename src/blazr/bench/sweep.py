"""One workload at several levels of concurrency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from msgspec.structs import replace

from blazr.bench.load import Record, Target, drive
from blazr.bench.workload import Workload

# Enough to have decoded, at every size of batch that comes up.
WARMUP_TOKENS = 16
# The engine's figures that are shown as what they grew by.
COUNTERS = (
    "steps",
    "computed_tokens",
    "generated_tokens",
    "prompt_tokens",
    "cached_tokens",
    "preemptions",
    "page_evictions",
    "state_evictions",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What came of one level.

    Args:
        concurrency: Most requests at once; None is no limit.
        records: One per request.
        counters: What the engine's figures grew by.
    """

    concurrency: int | None
    records: Sequence[Record]
    counters: Mapping[str, float]


async def run_level(
    target: Target,
    workload: Workload,
    concurrency: int | None,
    *,
    count: int,
    warmup: int,
    on_end: Callable[[], None],
) -> Level:
    """Run one level, with prompts that no other level and no earlier run has used.

    Args:
        target: What is measured.
        workload: With what.
        concurrency: Most requests at once; None is no limit.
        count: How many requests.
        warmup: How many more before them, not measured.
        on_end: Called when a request has ended.
    """
    name, run = str(concurrency), uuid4().hex
    first = workload.draw(warmup, vocab_size=target.vocab_size, salt=f"{name}/warmup")
    short = [replace(a, output_tokens=min(a.output_tokens, WARMUP_TOKENS)) for a in first]
    await drive(target, short, concurrency, salt=f"warmup {run}")
    asks = workload.draw(count, vocab_size=target.vocab_size, salt=name)
    before = target.stats()
    records = await drive(target, asks, concurrency, salt=run, on_end=on_end)
    after = target.stats()
    counters = {key: after[key] - before[key] for key in COUNTERS if key in after}
    return Level(concurrency=concurrency, records=records, counters=counters)
