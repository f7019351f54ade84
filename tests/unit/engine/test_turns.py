"""Who starts next: clients in turn by the tokens they got, and nobody waits for ever."""

from __future__ import annotations

import itertools
from array import array

import pytest

from blazr.engine.request import Request
from blazr.engine.sequence import Phase, Sequence
from blazr.engine.turns import Turns

pytestmark = pytest.mark.smoke


class Queue:
    """Sequences that wait, each of so many tokens, and start one at a time."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._ids = itertools.count(1)

    def add(self, *client: str, length: int = 10, priority: int = 0) -> None:
        request_id = next(self._ids)
        request = Request(prompt_ids=(1,) * length, client=client, priority=priority)
        self.waiting.append(
            Sequence(
                request_id=request_id,
                request=request,
                index=0,
                order=(priority, request_id, 0),
                tokens=array("i", request.prompt_ids),
                seed=0,
                max_length=length + 1,
                max_output=1,
            )
        )
        self.waiting.sort(key=lambda each: each.order)

    def start(self) -> str:
        """Start the next, and end what ran before; the name of its client."""
        first = next(self.turns.order(self.waiting, self.running))
        self.waiting.remove(first)
        first.phase = Phase.RUNNING
        self.turns.start(first)
        self.running = [first]
        return "/".join(first.request.client)

    def order(self) -> list[str]:
        return ["/".join(each.request.client) for each in self.turns.order(self.waiting, ())]

    def start_all(self) -> list[str]:
        return [self.start() for _ in range(len(self.waiting))]


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_without_names_the_order_is_that_of_arrival(queue: Queue) -> None:
    for length in (30, 5, 20):
        queue.add(length=length)
    ids = [each.request_id for each in queue.turns.order(queue.waiting, ())]
    assert ids == [1, 2, 3]


def test_neighbours_do_not_wait_for_the_rest_of_a_batch(queue: Queue) -> None:
    for _ in range(50):
        queue.add("hog")
    for _ in range(10):
        queue.start()
    for number in range(5):
        queue.add(f"n{number}")
    begun = queue.start_all()
    last = max(begun.index(f"n{number}") for number in range(5))
    assert last <= 6


def test_the_whole_order_is_told_before_anybody_starts(queue: Queue) -> None:
    for _ in range(3):
        queue.add("a")
    for _ in range(3):
        queue.add("b")
    assert queue.order() == ["a", "b", "a", "b", "a", "b"]


def test_who_asks_for_long_ones_starts_fewer(queue: Queue) -> None:
    for _ in range(40):
        queue.add("long", length=40)
    for _ in range(40):
        queue.add("short", length=10)
    begun = queue.start_all()[:30]
    assert begun.count("short") == pytest.approx(4 * begun.count("long"), abs=4)


def test_what_is_generated_counts_too(queue: Queue) -> None:
    for _ in range(20):
        queue.add("talks")
    for _ in range(20):
        queue.add("listens")
    begun = []
    while len(begun) < 20:
        begun.append(queue.start())
        if begun[-1] == "talks":
            queue.turns.charge(queue.running[0], 90)
    assert begun.count("listens") > 5 * begun.count("talks")


def test_idle_time_is_no_credit(queue: Queue) -> None:
    queue.add("late")
    queue.add("hog")
    queue.start_all()
    for _ in range(60):
        queue.add("hog")
    for _ in range(30):
        queue.start()
    for _ in range(30):
        queue.add("late")
    begun = queue.start_all()[:20]
    assert begun.count("hog") >= 9


def test_a_flow_of_newcomers_keeps_nobody_waiting_for_ever(queue: Queue) -> None:
    queue.add("patient", length=50)
    queue.add("patient", length=50)
    queue.start()
    for number in range(40):
        queue.add(f"newcomer {number}")
        queue.add(f"another {number}")
        if queue.start() == "patient":
            break
    else:
        pytest.fail("it never got its turn")
    assert number < 15


def test_groups_share_equally_whatever_they_consist_of(queue: Queue) -> None:
    for number in range(40):
        queue.add("key 1", f"request {number}")
    for _ in range(40):
        queue.add("key 2", "batch")
    begun = [name.split("/")[0] for name in queue.start_all()[:40]]
    assert begun.count("key 1") == begun.count("key 2")


def test_within_a_group_requests_go_in_turn(queue: Queue) -> None:
    for _ in range(30):
        queue.add("key", "batch")
    for _ in range(5):
        queue.start()
    queue.add("key", "chat")
    assert "key/chat" in [queue.start() for _ in range(2)]


def test_priorities_order_a_group_and_reach_no_other(queue: Queue) -> None:
    queue.add("b", "late", priority=5)
    queue.add("b", "early", priority=-5)
    for number in range(4):
        queue.add("a", f"urgent {number}", priority=-100)
    begun = queue.start_all()
    assert begun.index("b/early") < begun.index("b/late")
    assert begun.index("b/early") <= 1


def test_priorities_come_first_where_no_groups_are(queue: Queue) -> None:
    for number in range(3):
        queue.add(f"usual {number}")
    for _ in range(3):
        queue.add("urgent", priority=-1)
    assert queue.start_all()[:3] == ["urgent"] * 3


def test_nothing_is_kept_of_those_who_left(queue: Queue) -> None:
    for number in range(50):
        queue.add("key", f"request {number}")
        queue.start()
    queue.add("other")
    queue.start()
    queue.add("last")
    queue.order()
    assert len(queue.turns._flows) <= 4
