"""Puts a load on something that generates, and writes down when each token came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Protocol
from uuid import uuid4

from msgspec.structs import replace

from blazr.bench.workload import BenchRequest, Workload
from blazr.core.errors import BlazrError

WARMUP_TOKENS = 16


@dataclass(slots=True, kw_only=True)
class Record:
    """One request as its client saw it. Times are seconds of one monotonic clock.

    Args:
        prompt_tokens: Length of the prompt.
        arrival_s: When it was due; where nothing says when, when there was room for it.
        token_s: When tokens came: one time for each, or for each piece of text over HTTP.
        end_s: When it was over.
        output_tokens: Tokens generated.
        cached_tokens: Tokens of the prompt that were not computed again.
        error: What failed, if something did.
    """

    prompt_tokens: int
    arrival_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether it was answered."""
        return bool(self.token_s) and not self.error

    @property
    def ttft_s(self) -> float:
        """Time to the first token, waiting included."""
        return self.token_s[0] - self.arrival_s

    @property
    def decode_s(self) -> float:
        """Time from the first token to the last."""
        return self.token_s[-1] - self.token_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens."""
        return [after - before for before, after in pairwise(self.token_s)]


class Target(Protocol):
    """What is measured. Ids below ``vocab_size`` may be asked for."""

    vocab_size: int

    async def run(self, request: BenchRequest, record: Record, *, salt: str) -> None:
        """Generate, and fill the record in; a `BlazrError` becomes the record's error."""

    def stats(self) -> Mapping[str, float]:
        """The engine's figures by name; none where they cannot be had."""


async def drive(
    target: Target,
    requests: Sequence[BenchRequest],
    concurrency: int | None = None,
    *,
    salt: str = "",
    on_end: Callable[[], None] = lambda: None,
) -> list[Record]:
    """Run requests, each when it is due, at most ``concurrency`` at once (None is no limit).

    Where one was due, the time it waits for room counts. ``on_end`` is called after each.
    """
    room = asyncio.Semaphore(concurrency or max(len(requests), 1))
    started_s = perf_counter()

    async def one(request: BenchRequest) -> Record:
        record = Record(prompt_tokens=len(request.prompt_ids))
        if request.arrival_s is not None:
            record.arrival_s = started_s + request.arrival_s
            await asyncio.sleep(record.arrival_s - perf_counter())
        async with room:
            if request.arrival_s is None:
                record.arrival_s = perf_counter()
            try:
                await target.run(request, record, salt=salt)
            except BlazrError as error:
                record.error = " ".join(str(error).split())[:200]
            record.end_s = perf_counter()
        on_end()
        return record

    return await asyncio.gather(*map(one, requests))


async def run_level(
    target: Target,
    workload: Workload,
    concurrency: int | None,
    *,
    count: int,
    warmup: int,
    on_end: Callable[[], None],
) -> tuple[list[Record], dict[str, float]]:
    """Run ``count`` requests after ``warmup`` short ones, none of them a known prefix from before.

    Returns:
        One record per request, and what the engine's figures grew by.
    """
    level = str(concurrency)
    run = uuid4().hex
    size = target.vocab_size
    first = workload.draw(warmup, vocab_size=size, salt=f"{level}/warmup")
    short = [
        replace(request, output_tokens=min(request.output_tokens, WARMUP_TOKENS), arrival_s=None)
        for request in first
    ]
    await drive(target, short, concurrency, salt=f"{run}/warmup")
    requests = workload.draw(count, vocab_size=size, salt=level)
    before = target.stats()
    records = await drive(target, requests, concurrency, salt=run, on_end=on_end)
    return records, {key: value - before.get(key, 0) for key, value in target.stats().items()}
