"""Runs conversations against replicas, in simulated time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random
from time import perf_counter

from benchmarks.fleet.replica import SimulatedReplica, Stepped
from benchmarks.fleet.workload import Turn
from blazr.bench.load import Record
from blazr.bench.report import spread_of
from blazr.engine.request import Request
from blazr.engine.sampling_params import SamplingParams
from blazr.server.replicas.pool import cheapest

Choose = Callable[[Sequence[SimulatedReplica], Sequence[bytes]], SimulatedReplica]


def round_robin() -> Choose:
    """One after the other."""
    turn = count()
    return lambda replicas, _: replicas[next(turn) % len(replicas)]


def least_loaded() -> Choose:
    """The one with the fewest requests; of equal ones any, so that all get some."""
    chance = Random(0)
    return lambda replicas, _: min(replicas, key=lambda x: (x.num_running, chance.random()))


def prefix_aware() -> Choose:
    """What ``blazr serve --replicas`` uses."""
    return cheapest


ROUTERS: dict[str, Callable[[], Choose]] = {
    "round robin": round_robin,
    "least loaded": least_loaded,
    "prefix-aware": prefix_aware,
}


@dataclass
class Asked:
    """A request on its way."""

    turn: Turn
    turns: Iterator[Turn]
    replica: SimulatedReplica
    waiting: int
    record: Record


def figures(records: Sequence[Record]) -> dict[str, float]:
    """What clients have seen: throughput, times to the first token and between tokens, reuse."""
    span_s = max(r.end_s for r in records) - min(r.arrival_s for r in records)
    first = spread_of(r.ttft_s for r in records)
    gap = spread_of(r.decode_s / (r.output_tokens - 1) for r in records if r.output_tokens > 1)
    assert first is not None
    assert gap is not None
    prompt_tokens = sum(r.prompt_tokens for r in records)
    return {
        "requests": len(records),
        "output_per_s": sum(r.output_tokens for r in records) / span_s,
        "ttft_mean_s": first["mean"],
        "ttft_p50_s": first["p50"],
        "ttft_p90_s": first["p90"],
        "ttft_p99_s": first["p99"],
        "gap_mean_s": gap["mean"],
        "cached_share": sum(r.cached_tokens for r in records) / prompt_tokens,
    }


class Fleet:
    """Users and the replicas that they ask.

    Args:
        replicas: At least one.
        choose: The router.
        latency_s: What a request takes besides: the network, and reading it.

    Attributes:
        records: Of the requests that were answered.
        num_again: Tokens of their prompts that some replica had computed before, and one computed.
        choosing_s: Real seconds that the router took.
    """

    def __init__(
        self, replicas: Sequence[SimulatedReplica], choose: Choose, *, latency_s: float = 0.0
    ) -> None:
        self._replicas = replicas
        self._choose = choose
        self._latency_s = latency_s
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._ids = count(1)
        self._asked: dict[int, Asked] = {}
        self.records: list[Record] = []
        self.num_again = 0
        self.choosing_s = 0.0

    def next_token(self, request_id: int, num_output: int) -> int:
        """What the model says: what its user expects, so that the next prompt goes on from it."""
        return self._asked[request_id].turn.reply[num_output]

    def add(self, turns: Iterator[Turn], at_s: float) -> None:
        """A user begins to ask."""
        turn = next(turns, None)
        if turn is not None:
            self._push(at_s, lambda now_s: self._ask(turn, turns, now_s))

    def run(self, until_s: float = inf) -> None:
        """Simulate until then, or until nobody asks any more."""
        while self._events and self._events[0][0] <= until_s:
            now_s, _, event = heapq.heappop(self._events)
            event(now_s)

    def _push(self, at_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _ask(self, turn: Turn, turns: Iterator[Turn], now_s: float) -> None:
        started_s = perf_counter()
        replica = self._choose(self._replicas, turn.names)
        self.choosing_s += perf_counter() - started_s
        waiting = len(turn.names) - replica.sent.match(turn.names)
        replica.sent.add(turn.names)
        replica.num_running += 1
        replica.waiting_blocks += waiting
        request_id = next(self._ids)
        record = Record(prompt_tokens=len(turn.prompt), arrival_s=now_s)
        self._asked[request_id] = Asked(turn, turns, replica, waiting, record)
        params = SamplingParams(temperature=0, max_tokens=len(turn.reply), ignore_eos=True)
        request = Request(prompt_ids=turn.prompt, params=params, anchors=turn.anchors)
        self._push(
            now_s + self._latency_s, lambda at_s: self._arrive(replica, request_id, request, at_s)
        )

    def _arrive(
        self, replica: SimulatedReplica, request_id: int, request: Request, now_s: float
    ) -> None:
        replica.inbox.append((request_id, request))
        if not replica.is_stepping:
            self._step(replica, now_s)

    def _step(self, replica: SimulatedReplica, now_s: float) -> None:
        replica.is_stepping = replica.has_work
        if replica.is_stepping:
            done = replica.step(now_s)
            self._push(now_s + done.seconds, lambda at_s: self._deliver(replica, done, at_s))

    def _deliver(self, replica: SimulatedReplica, done: Stepped, now_s: float) -> None:
        for output in done.outputs:
            assert output.error is None, output.error
            asked = self._asked[output.request_id]
            record = asked.record
            record.output_tokens += len(output.token_ids)
            if not record.token_s:
                record.token_s.append(now_s)
                record.cached_tokens = output.num_cached_tokens
                replica.waiting_blocks -= asked.waiting
            if output.finish_reason is not None:
                del self._asked[output.request_id]
                replica.num_running -= 1
                self._end(asked, now_s)
        self._step(replica, now_s)

    def _end(self, asked: Asked, now_s: float) -> None:
        record = asked.record
        record.token_s.append(now_s)
        record.end_s = now_s
        self.records.append(record)
        self.num_again += max(asked.turn.known - record.cached_tokens, 0)
        turn = next(asked.turns, None)
        if turn is not None:
            turns = asked.turns
            self._push(now_s + turn.think_s, lambda at_s: self._ask(turn, turns, at_s))
