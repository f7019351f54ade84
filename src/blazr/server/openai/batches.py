"""``/v1/files`` and ``/v1/batches``: requests in a file, answered in the background."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

import msgspec
from starlette.responses import FileResponse

from blazr.server.batches.files import FILE, FileObject, is_id
from blazr.server.batches.jobs import BATCH, Batch, BatchJobs
from blazr.server.endpoint import Call
from blazr.server.errors import HttpError, clean
from blazr.server.schema import Example, schema_hint

R = TypeVar("R", FileObject, Batch)

_Name = Annotated[str, msgspec.Meta(max_length=64)]
_Value = Annotated[str, msgspec.Meta(max_length=512)]


class FileBody(msgspec.Struct, kw_only=True):
    """A file of requests, one on each line."""

    file: Annotated[bytes, schema_hint(format="binary")]
    filename: Annotated[str, schema_hint(description="that of the file itself, if not given")] = ""
    purpose: Literal["batch"]
    example: ClassVar[Example] = {"file": "(lines of requests)", "purpose": "batch"}


class FileQuery(msgspec.Struct, kw_only=True):
    """Which files are listed; ``after`` is the last one of the list before."""

    purpose: Literal["batch", "batch_output"] | None = None
    after: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"


class _Page(msgspec.Struct, Generic[R], kw_only=True):
    id_prefix: ClassVar[str]
    object: Literal["list"] = "list"
    data: list[R]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(
        cls, rows: Iterable[R], after: str | None, limit: int, *, is_oldest_first: bool = False
    ) -> Self:
        """A page of some rows, whose ids are in the order of time.

        Raises:
            HttpError: 400, ``after`` never was the id of one; one that is gone still has its place.
        """
        if after is not None and not is_id(cls.id_prefix, after):
            message = f"'after' is no id of this list: {clean(after, 100)!r}."
            raise HttpError(400, message, param="after", code="invalid_value")
        rows = sorted(rows, key=lambda row: row.id, reverse=not is_oldest_first)
        if after is not None:
            rows = [x for x in rows if (x.id > after if is_oldest_first else x.id < after)]
        shown = rows[:limit]
        first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
        return cls(data=shown, first_id=first, last_id=last, has_more=len(rows) > limit)


class FileList(_Page[FileObject]):
    """Files of a key."""

    id_prefix: ClassVar[str] = FILE


class FileDeleted(msgspec.Struct, kw_only=True):
    """A file is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileContent(FileResponse):
    """What is in a file."""

    media_type = "application/octet-stream"


class BatchBody(msgspec.Struct, kw_only=True):
    """Which file is to be answered, by which endpoint."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[dict[_Name, _Value], msgspec.Meta(max_length=16)] | None = None
    example: ClassVar[Example] = {
        "input_file_id": "file-0",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }


class BatchQuery(msgspec.Struct, kw_only=True):
    """Which batches are listed; ``after`` is the last one of the list before."""

    after: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20


class BatchList(_Page[Batch]):
    """Batches of a key, the latest first."""

    id_prefix: ClassVar[str] = BATCH


async def upload(call: Call[FileBody]) -> FileObject:
    """Keep a file of requests."""
    body, store = call.body, _jobs(call).store
    if not body.file.strip():
        raise HttpError(400, "the file is empty.", param="file", code="invalid_value")
    return await call.translate(
        lambda: store.put(call.tenant, body.filename or "batch.jsonl", body.file)
    )


async def list_files(call: Call[FileQuery]) -> FileList:
    """The files there are."""
    query = call.body
    files = [
        each
        for each in _jobs(call).store.files_of(call.tenant)
        if query.purpose in {None, each.purpose}
    ]
    return FileList.of(files, query.after, query.limit, is_oldest_first=query.order == "asc")


async def show_file(call: Call[None]) -> FileObject:
    """One file."""
    return _jobs(call).store.find(call.tenant, call.path["id"])


async def read_file(call: Call[None]) -> FileContent:
    """What is in a file."""
    store = _jobs(call).store
    file = store.find(call.tenant, call.path["id"])
    # starlette guesses by the name, each release otherwise
    return FileContent(store.path_of(file.id), media_type=FileContent.media_type)


async def delete_file(call: Call[None]) -> FileDeleted:
    """Delete a file that no batch reads."""
    jobs = _jobs(call)
    file = jobs.store.find(call.tenant, call.path["id"])
    jobs.check_unused(file.id)
    jobs.store.delete(call.tenant, file.id)
    return FileDeleted(id=file.id)


async def create(call: Call[BatchBody]) -> Batch:
    """Begin to answer a file."""
    body = call.body
    return _jobs(call).create(call.tenant, body.input_file_id, body.endpoint, body.metadata)


async def list_batches(call: Call[BatchQuery]) -> BatchList:
    """The batches there are, those that have ended too."""
    batches = _jobs(call).batches_of(call.tenant)
    return BatchList.of(batches, call.body.after, call.body.limit)


async def show_batch(call: Call[None]) -> Batch:
    """How far a batch is."""
    return _jobs(call).find(call.tenant, call.path["id"])


async def cancel(call: Call[None]) -> Batch:
    """Stop a batch; what was answered is kept."""
    return _jobs(call).cancel(call.tenant, call.path["id"])


def _jobs(call: Call[Any]) -> BatchJobs:
    jobs = call.state.batches
    if jobs is None:
        raise HttpError.unsupported(
            "this server keeps no files; start it with --files-dir FOLDER.", code="no_files"
        )
    return jobs
