"""Whose turn it is to start: those who wait share the engine by what is computed for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import count

from blazr.engine.sequence import Sequence

Client = tuple[str, ...]


@dataclass(slots=True)
class _Flow:
    """A client, or a group of them.

    Args:
        served: Tokens computed for it, and what it was given when it began to wait.
        clock: What that was for the one of its own clients that started last.
    """

    served: float = 0
    clock: float = 0


class Turns:
    """Fair queueing: of the clients that wait, the one goes first that has got fewest tokens.

    A client that begins to wait counts like the one that was served last, so that time in which it
    asked for nothing gives it no credit, and a flow of newcomers keeps nobody waiting for ever.
    Groups share in the same way, and the clients of a group share what is the group's. Priorities
    order the requests of one group; they do not reach beyond it.

    Source: Sheng et al. 2024, "Fairness in Serving Large Language Models", arXiv:2401.00588; the
    clock is Golestani's (1994, "A Self-Clocked Fair Queueing Scheme").
    """

    def __init__(self) -> None:
        self._flows: dict[Client, _Flow] = {(): _Flow()}
        self._waiting: set[Client] = set()

    def order(self, waiting: list[Sequence], running: Iterable[Sequence]) -> Iterator[Sequence]:
        """Yield those who wait in the order in which they are to start.

        Args:
            waiting: In order of priority and arrival.
            running: Those that have started; they and the others are all there are.
        """
        if not any(each.request.client for each in waiting):
            return iter(waiting)
        begun = {path for each in waiting for path in paths_of(each.request.client)}
        known = begun.union(*(paths_of(each.request.client) for each in running), [()])
        self._flows = {path: self._flows.get(path) or _Flow() for path in known}
        for path in begun - self._waiting:
            flow = self._flows[path]
            flow.served = max(flow.served, self._flows[path[:-1]].clock)
        self._waiting = begun
        return self._merge(waiting, 1)

    def start(self, sequence: Sequence) -> None:
        """A sequence starts: what it has to read counts at once."""
        self.charge(sequence, sequence.remaining)
        for path in paths_of(sequence.request.client):
            if path in self._flows:
                group = self._flows[path[:-1]]
                group.clock = max(group.clock, self._flows[path].served)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """So many tokens are computed for a sequence."""
        for path in paths_of(sequence.request.client):
            if path in self._flows:
                self._flows[path].served += num_tokens

    def _merge(self, sequences: list[Sequence], depth: int) -> Iterator[Sequence]:
        """Take from the clients of one group in turn.

        Args:
            sequences: Theirs.
            depth: How many names tell these clients from each other.
        """
        members: dict[Client, list[Sequence]] = {}
        for each in sequences:
            members.setdefault(each.request.client[:depth], []).append(each)
        # what has no more names is one queue
        if len(members) == 1 and len(sequences[0].request.client) < depth:
            yield from sequences
            return
        numbers = count()  # in the order of the first of each, which decides between equals
        heap = []
        for path, own in members.items():
            branch = self._merge(own, depth + 1)
            head = next(branch)
            served = self._flows[path].served
            heap.append((_rank(head, depth), served, next(numbers), head, branch))
        heapify(heap)
        while heap:
            _, served, number, head, branch = heap[0]
            yield head
            after = next(branch, None)
            if after is None:
                heappop(heap)
            else:
                served += head.remaining
                heapreplace(heap, (_rank(after, depth), served, number, after, branch))


def paths_of(client: Client) -> list[Client]:
    """The groups that a client is in, and itself."""
    return [client[:depth] for depth in range(1, len(client) + 1)]


def _rank(head: Sequence, depth: int) -> int:
    """The priority of what is next, where it counts: among requests, not among groups."""
    return head.request.priority if len(head.request.client) <= depth else 0
