"""Batches, answered in the background by the server itself; what was begun survives it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, Self

import httpx2
import msgspec

from blazr.core.errors import BlazrError, ConfigError
from blazr.server.batches.files import FILE, MAX_KEPT, ROOM_S, FileStore, fresh_id
from blazr.server.batches.lines import (
    AnswerFile,
    BatchAnswer,
    BatchError,
    LineError,
    answer_all,
    fresh_answer_id,
    read_ids,
    read_requests,
)
from blazr.server.errors import HttpError, clean, on_one_line
from blazr.server.params import unix_time

_log = logging.getLogger(__name__)

BATCH = "batch_"  # the beginning of ids
_WINDOW_S = 24 * 3600
_AT_ONCE = 8  # batches; further ones wait
_PLACES = 64  # requests of all of them that wait for their answers at once

BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
_UNFINISHED = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class RequestCounts(msgspec.Struct):
    """How many requests a batch has, and how many have an answer, or an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchFailure(msgspec.Struct):
    """Why a batch has failed."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchFailures(msgspec.Struct, kw_only=True):
    """All of that."""

    object: Literal["list"] = "list"
    data: list[BatchFailure]


class Batch(msgspec.Struct, kw_only=True):
    """A file of requests that is answered in the background."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchFailures | None = None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    metadata: dict[str, str] | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether it is, or will be, worked on."""
        return self.status in _UNFINISHED


class Job(msgspec.Struct):
    """A batch's entry, as it is written; its files have these names before they are shown."""

    tenant: str
    batch: Batch
    output_id: str
    error_id: str


class BatchJobs:
    """All batches of a server.

    Args:
        store: Where they and their files are kept.
        connect: Gives what sends the requests of a key to this server.
        paths: The endpoints that a batch may be for.
    """

    def __init__(
        self,
        store: FileStore,
        connect: Callable[[str], httpx2.AsyncClient],
        paths: Collection[str],
    ) -> None:
        self.store = store
        self.paths = paths
        self._connect = connect
        self._jobs = dict(store.read(BATCH, Job))
        self._tasks: dict[str, tuple[asyncio.Task[BatchStatus], asyncio.Task[None]]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._places = asyncio.Semaphore(_PLACES)
        store.sweep({x for job in self._unfinished() for x in (job.output_id, job.error_id)})

    def begin(self) -> None:
        """Go on with what an earlier server has begun; in the event loop."""
        for job in self._unfinished():
            self._start(job)

    async def stop(self) -> None:
        """Leave everything as it is; the next server goes on with it."""
        tasks = [*self._tasks.values()]
        for work, _ in tasks:
            work.cancel()
        await asyncio.gather(*(task for _, task in tasks))

    def create(
        self, tenant: str, file_id: str, endpoint: str, metadata: dict[str, str] | None
    ) -> Batch:
        """Begin to answer a file.

        Raises:
            HttpError: 400, no batch may be for this endpoint; 404, there is no such file; 429, too
                many wait.
        """
        if endpoint not in self.paths:
            raise HttpError(
                400,
                f"no batch can be for {clean(endpoint, 100)!r}; endpoints are "
                f"{', '.join(sorted(self.paths))}.",
                param="endpoint",
                code="invalid_value",
            )
        param = "input_file_id"
        if self.store.find(tenant, file_id, param=param).purpose != "batch":
            message = "that file holds answers: upload one with purpose 'batch'."
            raise HttpError(400, message, param=param, code="invalid_value")
        self._make_room(tenant)
        now = unix_time()
        batch = Batch(
            id=fresh_id(BATCH),
            endpoint=endpoint,
            input_file_id=file_id,
            created_at=now,
            expires_at=now + _WINDOW_S,
            request_counts=RequestCounts(),
            metadata=metadata,
        )
        job = Job(tenant, batch, output_id=fresh_id(FILE), error_id=fresh_id(FILE))
        self.store.write(batch.id, job)
        self._jobs[batch.id] = job
        self._start(job)
        return batch

    def find(self, tenant: str, name: str) -> Batch:
        """A batch of a key.

        Raises:
            HttpError: 404, it has none of this name.
        """
        job = self._jobs.get(name)
        if job is None or job.tenant != tenant:
            raise HttpError.missing("batch", name)
        return job.batch

    def batches_of(self, tenant: str) -> list[Batch]:
        """The batches of a key."""
        return [each.batch for each in self._jobs.values() if each.tenant == tenant]

    def cancel(self, tenant: str, name: str) -> Batch:
        """Stop a batch; what was answered is kept.

        Raises:
            HttpError: 404, there is no such batch; 409, it has ended.
        """
        batch = self.find(tenant, name)
        if not batch.is_unfinished:
            raise HttpError(409, f"the batch has ended: it is {batch.status}.", code="batch_ended")
        if batch.status != "cancelling":
            self._set(self._jobs[name], "cancelling")
            if name in self._tasks:
                self._tasks[name][0].cancel()
        if name not in self._tasks:  # nothing works on it: its end could not be written down
            self._start(self._jobs[name])
        return batch

    def check_unused(self, name: str) -> None:
        """Refuse to delete what a batch still reads.

        Raises:
            HttpError: 409.
        """
        for job in self._unfinished():
            if job.batch.input_file_id == name:
                raise HttpError(409, f"the batch {job.batch.id} reads it.", code="file_in_use")

    def _unfinished(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.batch.is_unfinished]

    def _make_room(self, tenant: str) -> None:
        """Forget the oldest batch that has ended, where there are too many."""
        own = self.batches_of(tenant)
        if len(own) < MAX_KEPT:
            return
        ended = next((each for each in own if not each.is_unfinished), None)
        if ended is None:
            message = f"{MAX_KEPT:,} batches wait, as many as a key may have."
            raise HttpError(429, message, code="too_many_batches", retry_after_s=ROOM_S)
        del self._jobs[ended.id]
        self.store.remove(ended.id)

    def _start(self, job: Job) -> None:
        work = asyncio.create_task(self._work(job))
        task = asyncio.create_task(self._record_outcome(job, work))
        self._tasks[job.batch.id] = work, task
        task.add_done_callback(lambda _: self._tasks.pop(job.batch.id, None))

    async def _record_outcome(self, job: Job, work: asyncio.Task[BatchStatus]) -> None:
        """Wait for the work on a batch, and store how it has ended."""
        batch = job.batch
        try:
            status = await work
        except asyncio.CancelledError:
            if batch.status != "cancelling":
                return  # the server stops
            status = "cancelled"
        except BlazrError as error:
            status = "failed"
            batch.errors = BatchFailures(data=[_failure_of(error)])
        except Exception:  # noqa: BLE001  (the batch says so)
            _log.exception("%s has failed", batch.id)
            status = "failed"
            failure = BatchFailure("internal_error", "something went wrong in the server.")
            batch.errors = BatchFailures(data=[failure])
        try:
            self._show_answers(job)
            self._set(job, status)
        except BlazrError as error:  # the disk is full: the next server tries again
            _log.error("%s is not written down as %s: %s", batch.id, status, error)

    async def _work(self, job: Job) -> BatchStatus:
        """Answer what has no answer yet."""
        batch = job.batch
        if batch.status == "cancelling":
            return "cancelled"
        async with self._turns:
            source = self.store.path_of(batch.input_file_id)
            ids = await asyncio.to_thread(read_ids, source, {batch.endpoint})
            if not ids:
                raise ConfigError("the file holds no request.")
            batch.request_counts.total = len(ids)
            if batch.status == "validating":
                self._set(job, "in_progress")
            with await asyncio.to_thread(_Answers, self.store, job) as answers:
                return await self._answer(job, source, ids, answers)

    async def _answer(
        self, job: Job, source: Path, ids: set[str], answers: _Answers
    ) -> BatchStatus:
        batch = job.batch
        left = ids - answers.ids
        requests = read_requests(source, {batch.endpoint})
        try:
            async with (
                asyncio.timeout(batch.expires_at - unix_time()),
                self._connect(job.tenant) as client,
            ):
                await answer_all(
                    client,
                    (each for each in requests if each.custom_id in left),
                    answers.write,
                    places=self._places,
                    most_tries=None,
                )
        except TimeoutError:
            for custom_id in ids - answers.ids:
                answers.write(_expired(custom_id))
            return "expired"
        return "completed"

    def _show_answers(self, job: Job) -> None:
        """Make files of what was answered."""
        batch = job.batch
        for name, field in ((job.output_id, "output"), (job.error_id, "error")):
            path = self.store.path_of(name)
            if not path.exists():
                continue
            if not path.stat().st_size:
                self.store.remove(name)
                continue
            self.store.add(job.tenant, name, f"{batch.id}_{field}.jsonl", "batch_output")
            setattr(batch, f"{field}_file_id", name)

    def _set(self, job: Job, status: BatchStatus) -> None:
        """Write down what becomes of a batch, and when."""
        batch = job.batch
        before = batch.status
        now = unix_time()
        if status == "completed":
            batch.finalizing_at = now
        setattr(batch, f"{status}_at", now)
        batch.status = status
        try:
            self.store.write(batch.id, job)
        except BlazrError:
            batch.status = before
            raise


class _Answers:
    """The two files of a batch's answers: of those that are one, and of those that failed.

    Args:
        store: Has the files.
        job: The batch, whose counts follow them.

    Raises:
        ConfigError: They cannot be written.
    """

    def __init__(self, store: FileStore, job: Job) -> None:
        self._store = store
        self._names = job.output_id, job.error_id
        self._counts = job.batch.request_counts
        for name in self._names:
            store.path_of(name).touch(0o600)  # for its owner alone
        self._files = [AnswerFile(store.path_of(name)) for name in self._names]
        self._count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for each in self._files:
            each.close()

    @property
    def ids(self) -> set[str]:
        """The ids of the requests that have an answer, or an error."""
        return set().union(*(each.answered for each in self._files))

    def write(self, answer: BatchAnswer) -> None:
        """Write an answer.

        Raises:
            EngineError: It cannot be written, or there is no room for more.
        """
        file, name = self._files[answer.is_failure], self._names[answer.is_failure]
        file.append(answer)
        self._count()
        self._store.resize(name, file.num_bytes)

    def _count(self) -> None:
        self._counts.completed, self._counts.failed = (len(x.answered) for x in self._files)


def _failure_of(error: BlazrError) -> BatchFailure:
    line = error.line if isinstance(error, LineError) else None
    code = "invalid_file" if isinstance(error, ConfigError) else "not_answered"
    return BatchFailure(code, clean(on_one_line(error), 600), line)


def _expired(custom_id: str) -> BatchAnswer:
    error = BatchError("batch_expired", "this was not answered within 24 hours.")
    return BatchAnswer(fresh_answer_id(), custom_id, None, error)
