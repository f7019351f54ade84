"""Places of the queue: nobody takes all, everybody finds one, and what is given back is free."""

from __future__ import annotations

import itertools

import pytest

from blazr.core.errors import CapacityError, RequestError
from blazr.engine.admission import Admission

pytestmark = pytest.mark.smoke


def fill(admission: Admission, client: tuple[str, ...]) -> int:
    """Take one place after the other until one is refused; how many those were."""
    for taken in range(1000):
        try:
            admission.take(client, 1)
        except CapacityError:
            return taken
    raise AssertionError("nothing is refused")


def test_without_names_the_queue_s_length_is_the_only_bound() -> None:
    assert fill(Admission(160, max_running=32), ()) == 160


def test_what_the_whole_queue_has_no_places_for_is_not_to_be_tried_again() -> None:
    with pytest.raises(RequestError, match="at most 3"):
        Admission(3, max_running=1).take((), 4)


def test_one_client_leaves_room_for_many_others() -> None:
    admission = Admission(160, max_running=32)
    held = fill(admission, ("hog",))
    assert 32 < held <= 160 / 3
    for number in range(160 - held):
        admission.take((f"neighbour {number}",), 1)
    with pytest.raises(CapacityError, match="full"):
        admission.take(("one more",), 1)


def test_with_every_other_a_client_may_hold_less() -> None:
    admission = Admission(160, max_running=32)
    held = [fill(admission, (f"hog {number}",)) for number in range(5)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(held))
    assert all(held)
    free = 160 - sum(held)
    assert free > 10
    # those who hold more than their part get no more, and what ends is left to the others
    for _ in range(10):
        admission.give_back(("hog 0",))
        with pytest.raises(CapacityError, match="kept for others"):
            admission.take(("hog 0",), 1)
    for number in range(10 + free):
        admission.take((f"neighbour {number}",), 1)


@pytest.mark.parametrize(("places", "running"), [(33, 32), (40, 32), (160, 32), (5, 1)])
def test_a_client_that_is_alone_can_fill_every_run_slot(places: int, running: int) -> None:
    assert fill(Admission(places, max_running=running), ("hog",)) >= running


def test_a_group_is_bounded_like_a_client_and_its_clients_within_it() -> None:
    admission = Admission(160, max_running=32)
    batch = fill(admission, ("key", "batch"))
    assert batch > 32
    requests = 0
    while requests < 160:  # of the same key, as many as it likes
        try:
            admission.take(("key", f"request {requests}"), 1)
        except CapacityError:
            break
        requests += 1
    assert requests >= 30
    assert batch + requests <= 2 / 3 * 160 + 1
    for number in range(30):
        admission.take(("other key", f"request {number}"), 1)


def test_all_or_none_of_several_places() -> None:
    admission = Admission(20, max_running=2)
    admission.take(("a",), 16)  # the first are limited by the queue alone
    with pytest.raises(CapacityError):
        admission.take(("a",), 1)
    admission.take(("b",), 4)
    with pytest.raises(CapacityError):
        admission.take(("c",), 1)


def test_everything_comes_back() -> None:
    admission = Admission(40, max_running=8)
    first = fill(admission, ("key", "a"))
    for _ in range(first):
        admission.give_back(("key", "a"))
    assert fill(admission, ("key", "a")) == first
    admission.take(("key", "b"), 2)
    for _ in range(first):
        admission.give_back(("key", "a"))
    for _ in range(2):
        admission.give_back(("key", "b"))
    assert not admission._held[()]
    assert len(admission._held) == 1
    assert not admission._num_clients
