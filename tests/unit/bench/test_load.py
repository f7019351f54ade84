"""The load itself: who runs when, and from when their time counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter

import pytest

from blazr.bench.load import Record, drive, run_level
from blazr.bench.workload import BenchRequest, Workload
from blazr.core.errors import CapacityError


class Turnstile:
    """Answers with one token after giving the others a chance to come in."""

    vocab_size = 7

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.salts: list[str] = []
        self.asked: list[BenchRequest] = []

    async def run(self, request: BenchRequest, record: Record, *, salt: str) -> None:
        self.asked.append(request)
        self.salts.append(salt)
        self.inside += 1
        self.most = max(self.most, self.inside)
        for _ in range(5):
            await asyncio.sleep(0)
        self.inside -= 1
        if request.output_tokens == 13:
            raise CapacityError("the queue is full.", hint="later")
        record.token_s.append(perf_counter())
        record.output_tokens = 1

    def stats(self) -> Mapping[str, float]:
        return {"steps": len(self.asked)}


def requests(count: int, **fields: object) -> list[BenchRequest]:
    return [BenchRequest(**{"prompt_ids": (1, 2, 3), **fields}) for _ in range(count)]


def test_no_more_than_asked_for_run_at_once() -> None:
    for concurrency, most in ((1, 1), (3, 3), (None, 8)):
        turnstile = Turnstile()
        records = asyncio.run(drive(turnstile, requests(8), concurrency))
        assert turnstile.most == most
        assert all(record.is_ok for record in records)


def test_without_a_time_the_clock_starts_when_there_is_room() -> None:
    first, second = asyncio.run(drive(Turnstile(), requests(2), 1))
    assert second.arrival_s >= first.end_s
    assert second.ttft_s <= second.end_s - first.end_s


def test_one_that_was_due_waits_on_the_clock() -> None:
    """A user who has to queue has waited, whatever the load generator was doing."""
    first, second = asyncio.run(drive(Turnstile(), requests(2, arrival_s=0.0), 1))
    assert second.arrival_s == first.arrival_s
    assert second.ttft_s >= first.end_s - first.arrival_s


def test_nothing_is_sent_before_it_is_due() -> None:
    early, late = asyncio.run(
        drive(Turnstile(), requests(1, arrival_s=0.0) + requests(1, arrival_s=0.03))
    )
    assert late.arrival_s - early.arrival_s == pytest.approx(0.03)
    assert late.token_s[0] >= late.arrival_s


def test_a_failure_is_one_requests_own() -> None:
    records = asyncio.run(drive(Turnstile(), requests(1) + requests(1, output_tokens=13)))
    assert [record.is_ok for record in records] == [True, False]
    assert records[1].error == "the queue is full. try later"


def test_a_level_warms_up_first_and_counts_only_itself() -> None:
    target = Turnstile()
    ended = []
    workload = Workload(requests=[BenchRequest(prompt_tokens=4, output_tokens=40, arrival_s=0.0)])

    async def twice() -> list[tuple[list[Record], dict[str, float]]]:
        return [
            await run_level(
                target, workload, 2, count=3, warmup=2, on_end=lambda: ended.append(None)
            )
            for _ in range(2)
        ]

    (records, counters), _ = asyncio.run(twice())
    assert len(records) == 3
    assert counters == {"steps": 3}
    assert len(ended) == 6
    assert [request.output_tokens for request in target.asked[:5]] == [16, 16, 40, 40, 40]
    assert {request.arrival_s for request in target.asked[:2]} == {None}
    assert len(set(target.salts)) == 4, "no run finds the prefixes of another"
    assert target.asked[:5] == target.asked[5:], "but the same is asked for"
