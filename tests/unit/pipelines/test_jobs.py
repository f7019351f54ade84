"""One job after the other on a thread of its own; who leaves ends the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from blazr.core.errors import CapacityError, EngineError
from blazr.pipelines.jobs import JobQueue, Outlet


@pytest.fixture
def queue() -> Iterator[JobQueue]:
    found = JobQueue("test", max_waiting=2)
    yield found
    found.close()


class Gate:
    """Work that tells when it begins, and waits until it may end."""

    def __init__(self) -> None:
        self.has_begun, self.may_end, self.was_told = (threading.Event() for _ in range(3))

    def __call__(self, outlet: Outlet[object]) -> None:
        self.has_begun.set()
        while not self.may_end.wait(0.005):
            try:
                outlet.check()
            except BaseException:
                self.was_told.set()
                raise


async def gather(queue: JobQueue, work: Callable[[Outlet[object]], None]) -> list[object]:
    return [item async for item in queue.start(work).items()]


def test_items_come_in_order_from_another_thread(queue: JobQueue) -> None:
    def work(outlet: Outlet[object]) -> None:
        for index in range(100):
            outlet.emit(index)
        outlet.emit(threading.current_thread().name)

    assert asyncio.run(gather(queue, work)) == [*range(100), "blazr-test"]


def test_an_error_is_raised_and_the_next_job_runs(queue: JobQueue) -> None:
    def fails(outlet: Outlet[object]) -> None:
        outlet.emit(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(gather(queue, fails))
    assert asyncio.run(gather(queue, lambda outlet: outlet.emit(2))) == [2]


def test_a_full_queue_refuses_and_one_at_a_time_runs(queue: JobQueue) -> None:
    async def scenario() -> None:
        gates = [Gate() for _ in range(3)]
        jobs = [queue.start(gates[0])]
        await asyncio.to_thread(gates[0].has_begun.wait)
        jobs += [queue.start(gate) for gate in gates[1:]]
        assert queue.figures == {"running": 1, "waiting": 2}
        with pytest.raises(CapacityError):
            queue.start(Gate())
        assert not gates[1].has_begun.is_set()
        for gate, job in zip(gates, jobs, strict=True):
            gate.may_end.set()
            assert [each async for each in job.items()] == []

    asyncio.run(scenario())


def test_who_leaves_ends_the_work_and_what_waits_never_begins(queue: JobQueue) -> None:
    async def scenario() -> None:
        running, waiting = Gate(), Gate()
        job = queue.start(running)
        await asyncio.to_thread(running.has_begun.wait)
        other = queue.start(waiting)
        other.abort()
        job.abort()
        await asyncio.to_thread(running.was_told.wait)
        for each in (job, other):
            with pytest.raises(EngineError, match="aborted"):
                await each.take(timeout_s=5)
        assert not waiting.has_begun.is_set()
        assert [each async for each in queue.start(lambda _: None).items()] == []

    asyncio.run(scenario())


def test_a_job_can_be_failed_and_waiting_ends_in_time(queue: JobQueue) -> None:
    async def scenario() -> None:
        gate = Gate()
        job = queue.start(gate)
        assert await job.take(timeout_s=0.01) == []
        job.fail(KeyError("x"))
        with pytest.raises(KeyError):
            await job.take(timeout_s=5)
        await asyncio.to_thread(gate.was_told.wait)

    asyncio.run(scenario())


@pytest.mark.parametrize("num_turns", range(8))
def test_who_leaves_just_as_an_item_comes_has_left(queue: JobQueue, num_turns: int) -> None:
    async def scenario() -> None:
        gate = Gate()
        job = queue.start(gate)

        async def take_all() -> None:
            while True:
                await job.take(timeout_s=5)

        taking = asyncio.create_task(take_all())
        await asyncio.sleep(0)
        job.emit("a")
        for _ in range(num_turns):  # of the loop, until whoever takes the item goes on
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking], timeout=1)
        gate.may_end.set()
        assert taking.cancelled()

    asyncio.run(scenario())


def test_closing_ends_everything() -> None:
    idle = threading.Event()
    queue = JobQueue("closing", on_idle=idle.set)

    async def scenario() -> None:
        assert [each async for each in queue.start(lambda _: None).items()] == []
        await asyncio.to_thread(idle.wait)
        gate, waiting = Gate(), Gate()
        jobs = [queue.start(gate), queue.start(waiting)]
        await asyncio.to_thread(gate.has_begun.wait)
        await asyncio.to_thread(queue.close)
        for job in jobs:
            with pytest.raises(EngineError):
                await job.take(timeout_s=5)
        with pytest.raises(EngineError, match="stopped"):
            queue.start(gate)

    asyncio.run(scenario())
    queue.close()
    assert not queue.is_alive
