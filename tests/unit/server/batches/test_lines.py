"""Batches of requests in files: what is read, what is asked, and what is written once."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import resource
from codecs import BOM_UTF8
from collections import Counter
from pathlib import Path

import httpx2
import msgspec
import pytest

from blazr.core.errors import ConfigError, EngineError
from blazr.server.batches import lines
from blazr.server.batches.lines import (
    AnswerFile,
    BatchAnswer,
    BatchRequest,
    BatchResponse,
    answer_all,
    read_ids,
    read_requests,
)
from blazr.server.routes import batch_paths

CHAT = "/v1/chat/completions"
PATHS = batch_paths()


def line_of(custom_id: str, **changes: object) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {}} | changes)


def answer_of(custom_id: str, status: int = 200) -> BatchAnswer:
    response = BatchResponse(status_code=status, request_id="1", body=msgspec.Raw(b'{"a":1}'))
    return BatchAnswer(id="batch_req_0", custom_id=custom_id, response=response)


def test_requests_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join([line_of("b"), "", line_of("a", body={"n": 1}), ""]))
    assert [(each.custom_id, each.body) for each in read_requests(path, PATHS)] == [
        ("b", {}),
        ("a", {"n": 1}),
    ]


def test_a_file_may_be_one_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(BOM_UTF8 + f"{line_of('a')}\r\n\r\n{line_of('b')}\r\n".encode())
    assert [each.custom_id for each in read_requests(path, PATHS)] == ["a", "b"]
    path.write_bytes(BOM_UTF8)
    assert not [*read_requests(path, PATHS)]
    path.write_bytes(f"{line_of('a')}\n".encode() + BOM_UTF8 + line_of("b").encode())
    with pytest.raises(ConfigError, match="line 2 of "):
        [*read_requests(path, PATHS)]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("nonsense", "malformed"),
        ("[1]", "Expected `object`"),
        (line_of("x", method="GET"), "GET"),
        (line_of("x", body=[]), "body"),
        (line_of("x", url="/v1/batches"), "/v1/batches"),
        (line_of("x", url="/sleep"), "/sleep"),
        (line_of("x", body={"stream": True}), "stream: true"),
        ('{"method": "POST"}', "custom_id"),
        ('{"custom_id": "\\ud800"}', "custom_id"),
        ('{"custom_id": "x", "url": "", "body": {"a": ' + "[" * 100_000, "nested"),
    ],
)
def test_a_line_that_cannot_be_answered_is_named(tmp_path: Path, line: str, found: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f"{line_of('first')}\n{line}\n")
    with pytest.raises(ConfigError, match=r"line 2 of ") as caught:
        list(read_requests(path, PATHS))
    assert found in str(caught.value) or "\\ud800" in line


def test_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f"{line_of('a')}\n{line_of('a')}\n")
    with pytest.raises(ConfigError, match="same custom_id"):
        read_ids(path, PATHS)


def test_endpoints_that_answer_to_a_body_may_be_named() -> None:
    assert {
        CHAT,
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
    } <= PATHS
    assert not PATHS & {
        "/v1/load_lora_adapter",
        "/v1/models",
        "/health",
        "/v1/files",
        "/v1/batches",
        "/v1/audio/transcriptions",
        "/v1/audio/speech",
    }


def test_an_answer_without_an_end_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with AnswerFile(path) as answers:
        for name in "ab":
            answers.append(answer_of(name))
    whole = path.read_bytes()
    ends = [whole.index(b"\n") + 1, len(whole)]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        with AnswerFile(path) as answers:
            assert answers.answered == {
                name for name, end in zip("ab", ends, strict=True) if end <= length
            }
            answers.append(answer_of("c"))
        lines = path.read_text().splitlines()
        assert [json.loads(line)["custom_id"] for line in lines][-1] == "c"


@pytest.mark.parametrize(
    "content", [b"my notes", b"my notes\n", b'{"a": 1}\n', b"\xff\xfe\n", b"[" * 100_000]
)
def test_a_file_with_something_else_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="no answer to a batch"):
        AnswerFile(path)
    assert path.read_bytes() == content


def test_two_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with AnswerFile(path), pytest.raises(ConfigError, match="another process"):
        AnswerFile(path)
    AnswerFile(path).close()


def test_a_file_system_without_locks_takes_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", has_none)
    AnswerFile(tmp_path / "out.jsonl").close()


def test_an_answer_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with AnswerFile(path) as answers:
        answers.append(answer_of("a"))
        before = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
        try:
            with pytest.raises(EngineError, match="cannot be written"):
                answers.append(answer_of("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == before
        assert answers.answered == {"a"}
        answers.append(answer_of("b"))
    assert len(path.read_bytes().splitlines()) == 2


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        AnswerFile(tmp_path / "missing" / "out.jsonl")


@pytest.mark.parametrize("is_pipe", [True, False])
def test_what_is_no_file_is_refused_before_it_is_read(tmp_path: Path, is_pipe: bool) -> None:
    path = tmp_path / "pipe" if is_pipe else Path("/dev/full")
    if is_pipe:
        os.mkfifo(path)
    with pytest.raises(ConfigError, match="regular file"):
        AnswerFile(path)


def test_a_batch_is_no_pipe_because_it_is_read_twice(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, line_of("a").encode())
    os.close(writer)
    with pytest.raises(ConfigError, match="regular file"):
        read_ids(Path(f"/dev/fd/{reader}"), PATHS)
    os.close(reader)


class Server:
    """Answers with what it was asked, after it has refused as often as it is told to."""

    def __init__(self, refusals: list[httpx2.Response | Exception]) -> None:
        self.refusals = refusals
        self.asked: Counter[str] = Counter()
        self.most = self.now = 0

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        name = json.loads(request.content)["name"]
        self.asked[name] += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        refusal = self.refusals.pop() if self.refusals else None
        if isinstance(refusal, Exception):
            raise refusal
        return refusal or httpx2.Response(200, json={"name": name})


def run(server: Server, count: int = 20, concurrency: int = 4) -> list[BatchAnswer]:
    written: list[BatchAnswer] = []
    requests = [BatchRequest(str(n), CHAT, {"name": str(n)}) for n in range(count)]

    async def ask() -> None:
        transport = httpx2.MockTransport(server)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            await answer_all(
                client, requests, written.append, places=asyncio.Semaphore(concurrency)
            )

    asyncio.run(ask())
    return written


def test_each_is_asked_once_and_no_more_at_once_than_allowed() -> None:
    server = Server([])
    written = run(server)
    assert sorted(int(each.custom_id) for each in written) == list(range(20))
    assert set(server.asked.values()) == {1}
    assert 1 < server.most <= 4
    for each in written:
        assert msgspec.json.decode(each.response.body)["name"] == each.custom_id


def test_places_are_free_again_when_a_batch_is_stopped_before_it_has_begun() -> None:
    async def stop() -> None:
        places = asyncio.Semaphore(4)
        requests = [BatchRequest(str(n), CHAT, {"name": str(n)}) for n in range(20)]
        transport = httpx2.MockTransport(Server([]))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            work = answer_all(client, requests, lambda _: None, places=places)
            task = asyncio.create_task(work)
            await asyncio.sleep(0)
            assert places.locked()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for _ in range(4):
            assert not places.locked()
            await places.acquire()

    asyncio.run(stop())


def test_a_busy_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_RETRY_S", 0.0)
    busy = [
        httpx2.Response(429, headers={"Retry-After": "0"}),
        httpx2.Response(503),
        httpx2.ConnectError("refused"),
    ]
    server = Server([*busy])
    written = run(server)
    assert server.asked.total() == 20 + len(busy)
    assert {each.response.status_code for each in written} == {200}


def test_other_errors_are_answers() -> None:
    server = Server([httpx2.Response(400, json={"error": {}}), httpx2.Response(502, text="<html>")])
    written = run(server)
    assert Counter(each.response.status_code for each in written) == {200: 18, 400: 1, 502: 1}
    page = next(each for each in written if each.response.status_code == 502)
    assert msgspec.json.decode(page.response.body) == "<html>"


def test_a_server_that_has_gone_ends_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_RETRY_S", 0.0)
    with pytest.raises(EngineError, match="does not answer"):
        run(Server([httpx2.ConnectError("refused") for _ in range(1000)]))
