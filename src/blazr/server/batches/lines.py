"""OpenAI's batch files: a request on each line, an answer to each, and none answered twice.

The format is that of https://platform.openai.com/docs/guides/batch. Answers are appended as they
come, in any order; what was answered before is not asked again, so a batch that was stopped at any
moment is continued by running it again.
"""

from __future__ import annotations

import asyncio
import os
import stat
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator
from io import FileIO
from itertools import count
from pathlib import Path
from typing import BinaryIO, Literal, Self
from uuid import uuid4

import httpx2
import msgspec

from blazr.core.errors import ConfigError, EngineError, as_config_error
from blazr.core.files import try_lock

_ANSWER_BEGINS = b'{"id":"batch_req_'
_TRIES = 8
_RETRY_S, _MAX_RETRY_S = 1.0, 60.0
_RETRIED = frozenset({429, 503})


class BatchRequest(msgspec.Struct, frozen=True):
    """A line of the input.

    Args:
        custom_id: What the answer is found by; no other line has it.
        url: Path of an endpoint, such as ``/v1/chat/completions``.
        body: What is sent there.
        method: Always POST.
    """

    custom_id: str
    url: str
    body: dict[str, object]
    method: Literal["POST"] = "POST"


class BatchResponse(msgspec.Struct, frozen=True):
    """What an endpoint answered."""

    status_code: int
    request_id: str | None
    body: msgspec.Raw


class BatchError(msgspec.Struct, frozen=True):
    """Why a request has no answer."""

    code: str
    message: str


class BatchAnswer(msgspec.Struct, frozen=True):
    """A line of the output."""

    id: str
    custom_id: str
    response: BatchResponse | None
    error: BatchError | None = None

    @property
    def is_failure(self) -> bool:
        """Whether the endpoint refused the request, or was not asked."""
        return self.response is None or self.response.status_code >= 400


class LineError(ConfigError):
    """A line of the input cannot be answered.

    Args:
        message: What is wrong.
        line: Its number, from 1 on.
        parts: What was found, and what was expected.
    """

    def __init__(self, message: str, line: int, **parts: str) -> None:
        super().__init__(message, **parts)
        self.line = line


class _Answered(msgspec.Struct):
    """What is looked at in an answer of an earlier run."""

    id: str
    custom_id: str


def read_requests(path: Path, paths: Collection[str]) -> Iterator[BatchRequest]:
    """The requests of a file, line by line; empty lines are left out.

    Args:
        path: The file.
        paths: The endpoints that a line may name.

    Raises:
        ConfigError: The file cannot be read.
        LineError: A line is no request that can be answered in a batch.
    """
    for _, request in _read(path, paths):
        yield request


def _read(path: Path, paths: Collection[str]) -> Iterator[tuple[int, BatchRequest]]:
    with as_config_error("the batch cannot be read."), path.open("rb") as file:
        # it is read twice: for the ids, and for what is sent
        _check_regular(file, path, "the batch cannot be read.")
        for number, line in enumerate(file, 1):
            # editors on Windows begin files with a mark that says nothing
            given = line.removeprefix(BOM_UTF8) if number == 1 else line
            if given.strip():
                yield number, _parse(given, number, paths)


def _check_regular(file: BinaryIO | FileIO, path: Path, message: str) -> None:
    """Refuse pipes and devices.

    Raises:
        ConfigError: It is one; with the message.
    """
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise ConfigError(
            message,
            found=f"{str(path)[:200]}, a pipe or a device",
            expected="a regular file",
        )


def _lock(file: FileIO, path: Path) -> None:
    """Keep other processes from writing to a file.

    Raises:
        ConfigError: One does.
    """
    if not try_lock(file.fileno()):
        raise ConfigError(
            "the answers cannot be written.",
            found=f"{str(path)[:200]}, which another process writes",
            hint="wait until it has ended, or name another file",
        )


def _parse(line: bytes, number: int, paths: Collection[str]) -> BatchRequest:
    try:
        request = msgspec.json.decode(line, type=BatchRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = "JSON nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
        expected = (
            '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'
        )
    else:
        if request.url in paths and not request.body.get("stream"):
            return request
        found, expected = f"url {request.url[:100]!r}", ", ".join(sorted(paths))
        if request.url in paths:
            found, expected = "stream: true", "an answer in one piece"
    raise LineError(
        f"line {number:,} of the batch cannot be answered.", number, found=found, expected=expected
    )


def read_ids(path: Path, paths: Collection[str]) -> set[str]:
    """The ids of all requests of a file.

    Raises:
        ConfigError: As `read_requests`.
        LineError: As `read_requests`; or a line has the id of one before.
    """
    ids: set[str] = set()
    for number, request in _read(path, paths):
        if request.custom_id in ids:
            raise LineError(
                f"line {number:,} of the batch has the same custom_id as one before.",
                number,
                found=repr(request.custom_id)[:100],
                expected="another for each line, so that its answer can be found",
            )
        ids.add(request.custom_id)
    return ids


class AnswerFile:
    """The output of a batch, to which answers are appended; no other process writes to it.

    An answer whose end was never written is cut off: it counts as not given.

    Args:
        path: The file; it is made if it is missing.

    Attributes:
        answered: The ids of the requests that have been answered.
        num_bytes: Length of the file.

    Raises:
        ConfigError: The file cannot be written, is no regular file, is used by another batch, or
            holds something else than answers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with as_config_error("the answers cannot be written."):
            self._file = path.open("a+b", buffering=0)
        try:
            # of others what was answered cannot be read: a device may give zeros without end
            _check_regular(self._file, path, "the answers cannot be written.")
            _lock(self._file, path)
            self.answered, self.num_bytes = self._read()
            self._file.truncate(self.num_bytes)
        except OSError as error:
            self.close()
            raise ConfigError(
                "the answers cannot be written.",
                found=f"{str(path)[:200]}: {str(error)[:200]}",
            ) from None
        except ConfigError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def append(self, answer: BatchAnswer) -> None:
        """Write an answer; all of it, or nothing.

        Raises:
            EngineError: It cannot be written.
        """
        line = memoryview(msgspec.json.encode(answer) + b"\n")
        length = self.num_bytes + len(line)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self._file.truncate(self.num_bytes)
            raise EngineError("an answer cannot be written.", found=str(error)[:200]) from None
        self.num_bytes = length
        self.answered.add(answer.custom_id)

    def _read(self) -> tuple[set[str], int]:
        """The ids of the answers in the file, and the length of those that are whole."""
        ids: set[str] = set()
        length = 0
        decoder = msgspec.json.Decoder(_Answered)
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                is_cut = not line.endswith(b"\n")
                if is_cut and line.startswith(_ANSWER_BEGINS[: len(line)]):
                    break
                try:
                    ids.add(decoder.decode(line).custom_id)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    raise ConfigError(
                        f"line {number:,} of {str(self._path)[:200]} is no answer to a batch.",
                        found=repr(line[:60]),
                        hint="write to another file; this one was left as it is",
                    ) from None
                length += len(line)
        return ids, length


def fresh_answer_id() -> str:
    """An id for an answer; with these every line of an output begins."""
    return f"batch_req_{uuid4().hex}"


async def answer_all(
    client: httpx2.AsyncClient,
    requests: Iterable[BatchRequest],
    write: Callable[[BatchAnswer], None],
    *,
    places: asyncio.Semaphore,
    most_tries: int | None = _TRIES,
) -> None:
    """Ask a server all of some requests.

    Args:
        client: Sends to the server.
        requests: In this order they are sent.
        write: Gets each answer as it comes.
        places: How many may wait for their answers at once.
        most_tries: How often a request is sent to a server that is too busy or away; None goes on.

    Raises:
        EngineError: The server cannot be reached, or an answer cannot be written; what was answered
            until then has been written.
    """

    async def answer(request: BatchRequest) -> None:
        write(await _answer(client, request, most_tries))

    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                await places.acquire()
                task = group.create_task(answer(request))
                # a callback, because a task that is cancelled before it begins does nothing
                task.add_done_callback(lambda _: places.release())
    except* EngineError as errors:
        failure = errors
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
    if failure is not None:  # before Python 3.11.4, what is raised above comes out in a group
        raise failure


async def _answer(
    client: httpx2.AsyncClient, request: BatchRequest, most_tries: int | None
) -> BatchAnswer:
    """Ask until the server takes the request; one that is too busy says when to come again."""
    for attempt in count(1):
        is_last = attempt == most_tries
        delay_s = min(_RETRY_S * 2 ** min(attempt - 1, 10), _MAX_RETRY_S)
        try:
            reply = await client.post(request.url, json=request.body)
        except httpx2.TransportError as error:
            if is_last:
                raise EngineError(
                    "the server does not answer.", found=f"{type(error).__name__}: {error}"[:200]
                ) from None
        else:
            if reply.status_code not in _RETRIED or is_last:
                break
            wanted = reply.headers.get("retry-after", "")
            delay_s = min(float(wanted), _MAX_RETRY_S) if wanted.isdecimal() else delay_s
        await asyncio.sleep(delay_s)
    try:
        msgspec.json.decode(reply.content)
        body = reply.content
    except (msgspec.DecodeError, UnicodeDecodeError):  # a proxy's page
        body = msgspec.json.encode(reply.text[:1000])
    return BatchAnswer(
        id=fresh_answer_id(),
        custom_id=request.custom_id,
        response=BatchResponse(
            status_code=reply.status_code,
            request_id=reply.headers.get("x-request-id"),
            body=msgspec.Raw(body),
        ),
    )
