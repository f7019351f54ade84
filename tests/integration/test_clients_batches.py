"""Files and batches, through OpenAI's client: uploaded, answered, stopped, gone on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import openai
import pytest
from openai.types import Batch

from blazr.core.errors import ConfigError
from blazr.server.batches import jobs
from blazr.server.batches.files import FileStore
from tests.support.loopback import Loopback, serving
from tests.support.scripted import scripted_core, wait_until

PATH = "/v1/completions"


def line_of(custom_id: str, **changes: object) -> bytes:
    body = {"model": "scripted", "prompt": f"say {custom_id}", "max_tokens": 4}
    line = {"custom_id": custom_id, "method": "POST", "url": PATH, "body": body} | changes
    return json.dumps(line).encode() + b"\n"


@contextmanager
def keeping(folder: Path, **settings: object) -> Iterator[Loopback]:
    with serving(scripted_core(), files_dir=folder, **settings) as running:
        yield running


def client_of(server: Loopback, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with keeping(tmp_path_factory.mktemp("files"), api_keys=("one", "two")) as running:
        yield running


@pytest.fixture
def client(server: Loopback) -> Iterator[openai.OpenAI]:
    with client_of(server, "one") as found:
        yield found


def begin(client: openai.OpenAI, content: bytes, endpoint: str = PATH) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )


def wait_for(client: openai.OpenAI, batch: Batch) -> Batch:
    def has_ended() -> bool:
        return client.batches.retrieve(batch.id).status in {
            "completed",
            "failed",
            "expired",
            "cancelled",
        }

    wait_until(has_ended)
    return client.batches.retrieve(batch.id)


def answers(client: openai.OpenAI, name: str | None) -> dict[str, dict]:
    assert name is not None
    lines = client.files.content(name).text.splitlines()
    found = {each["custom_id"]: each for each in map(json.loads, lines)}
    assert len(found) == len(lines)
    return found


def test_a_file_is_kept_listed_and_deleted(client: openai.OpenAI) -> None:
    content = line_of("a")
    files = [client.files.create(file=(f"{n}.jsonl", content), purpose="batch") for n in range(3)]
    first = files[0]
    assert (first.filename, first.bytes, first.status) == ("0.jsonl", len(content), "processed")
    assert client.files.wait_for_processing(first.id).id == first.id
    assert client.files.content(first.id).content == content
    ids = [each.id for each in files]
    assert [each.id for each in client.files.list(order="asc")][-3:] == ids
    page = client.files.list(limit=2)
    assert [each.id for each in page.data] == ids[:0:-1]
    assert next(iter(page.get_next_page())).id == first.id
    assert {each.purpose for each in client.files.list(purpose="batch_output")} <= {"batch_output"}
    for each in ids:
        assert client.files.delete(each).deleted
        with pytest.raises(openai.NotFoundError, match="no file"):
            client.files.retrieve(each)


def test_every_line_of_a_batch_is_answered(client: openai.OpenAI) -> None:
    lines = [line_of(str(n)) for n in range(100)]
    wrong = line_of("wrong", body={"model": "scripted", "prompt": "x", "temperature": -1})
    other = line_of("other", body={"model": "another", "prompt": "x"})
    batch = begin(client, b"".join([*lines, wrong, other]))
    assert (batch.status, batch.metadata) == ("validating", {"a": "b"})
    done = wait_for(client, batch)
    assert done.status == "completed"
    assert done.completed_at is not None
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 102, "completed": 100, "failed": 2}
    good = answers(client, done.output_file_id)
    assert good.keys() == {str(n) for n in range(100)}
    assert {each["response"]["body"]["choices"][0]["text"] for each in good.values()} == {
        " one two three four"
    }
    bad = answers(client, done.error_file_id)
    assert {name: each["response"]["status_code"] for name, each in bad.items()} == {
        "wrong": 400,
        "other": 404,
    }
    output = client.files.retrieve(done.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert client.batches.list(limit=1).data[0].id == batch.id
    with pytest.raises(openai.ConflictError, match="completed"):
        client.batches.cancel(batch.id)
    with pytest.raises(openai.BadRequestError, match="holds answers"):
        client.batches.create(input_file_id=output.id, endpoint=PATH, completion_window="24h")


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (line_of("a") + b"nonsense\n", 2, "malformed"),
        (line_of("a") + line_of("a"), 2, "same custom_id"),
        (line_of("a", url="/v1/embeddings"), 1, "embeddings"),
        (line_of("a", body={"prompt": "a", "stream": True}), 1, "in one piece"),
    ],
)
def test_a_file_that_is_no_batch_fails(
    client: openai.OpenAI, content: bytes, line: int, message: str
) -> None:
    failed = wait_for(client, begin(client, content))
    assert failed.status == "failed"
    assert failed.output_file_id is None
    assert failed.errors is not None
    (error,) = failed.errors.data or ()
    assert error.line == line
    assert message in (error.message or "")


def test_what_cannot_be_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a", b"x"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.files.create(file=("a", b" \n"), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="endpoints are"):
        begin(client, line_of("a"), "/v1/models")
    with pytest.raises(openai.NotFoundError) as refused:
        client.batches.create(input_file_id="file-1", endpoint=PATH, completion_window="24h")
    assert refused.value.param == "input_file_id"
    for call in (client.batches.retrieve, client.batches.cancel, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call("none")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="three").files.list()


def test_a_list_goes_on_after_what_was_in_it(client: openai.OpenAI) -> None:
    """Also after what has been deleted meanwhile, as a loop that deletes all files does."""
    for number in range(5):
        client.files.create(file=(f"{number}.jsonl", line_of("a")), purpose="batch")
    for each in client.files.list(limit=2):
        client.files.delete(each.id)
    assert not [*client.files.list()]
    batch = wait_for(client, begin(client, line_of("a")))
    for after in ("unknown", "", "file-1", batch.id, batch.id.replace("batch_", "file-") + "0"):
        with pytest.raises(openai.BadRequestError, match="no id of this list") as caught:
            client.files.list(after=after)
        assert caught.value.param == "after"
    for after in ("unknown", "", batch.input_file_id):
        with pytest.raises(openai.BadRequestError, match="no id of this list"):
            client.batches.list(after=after)


def test_keys_do_not_see_each_others(server: Loopback, client: openai.OpenAI) -> None:
    batch = wait_for(client, begin(client, line_of("mine")))
    assert batch.output_file_id is not None
    names = (batch.input_file_id, batch.output_file_id)
    with client_of(server, "two") as other:
        looks = [
            *product((other.files.retrieve, other.files.content, other.files.delete), names),
            *product((other.batches.retrieve, other.batches.cancel), [batch.id]),
        ]
        for look, name in looks:
            with pytest.raises(openai.NotFoundError):
                look(name)
        with pytest.raises(openai.NotFoundError):
            other.batches.create(input_file_id=names[0], endpoint=PATH, completion_window="24h")
        assert [*other.files.list(), *other.batches.list()] == []
    salts = {each.cache_salt for each in server.engine.submitted if each.params.max_tokens == 4}
    assert len(salts) == 1  # that of the key which sent them
    assert salts != {""}


def test_a_batch_is_cancelled_and_keeps_its_answers(tmp_path: Path) -> None:
    with keeping(tmp_path) as server, client_of(server) as client:
        server.engine.halts_after = 300
        batch = begin(client, b"".join(line_of(str(n)) for n in range(200)))
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 20)
        with pytest.raises(openai.ConflictError, match="reads it"):
            client.files.delete(batch.input_file_id)
        assert client.batches.cancel(batch.id).status in {"cancelling", "cancelled"}
        done = wait_for(client, batch)
        assert done.status == "cancelled"
        assert len(answers(client, done.output_file_id)) == done.request_counts.completed
        assert 20 < done.request_counts.completed < 200
        client.files.delete(batch.input_file_id)


def test_a_batch_goes_on_when_the_server_starts_again(tmp_path: Path) -> None:
    count = 150
    with keeping(tmp_path, api_keys=("one",)) as server, client_of(server, "one") as client:
        server.engine.halts_after = 300
        batch = begin(client, b"".join(line_of(str(n)) for n in range(count)))
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 20)
    with keeping(tmp_path, api_keys=("one",)) as server, client_of(server, "one") as client:
        done = wait_for(client, batch)
        assert (done.status, done.request_counts.completed) == ("completed", count)
        assert answers(client, done.output_file_id).keys() == {str(n) for n in range(count)}
        assert len(server.engine.submitted) < count - 20  # the others were answered before


def test_without_its_key_a_batch_fails(tmp_path: Path) -> None:
    with keeping(tmp_path, api_keys=("one", "two")) as server, client_of(server, "one") as client:
        server.engine.go.clear()
        batch = begin(client, line_of("a"))
        wait_until(lambda: server.engine.submitted)
        server.server.handle_exit(15, None)  # as SIGTERM does
        wait_until(lambda: not server.state.num_working)
        server.engine.go.set()
    with keeping(tmp_path, api_keys=("two",)) as server:
        found = server.state.batches
        assert found is not None
        (tenant,) = {job.tenant for job in found._jobs.values()}
        wait_until(lambda: not found.find(tenant, batch.id).is_unfinished)
        failed = found.find(tenant, batch.id)
        assert failed.status == "failed"
        assert failed.errors is not None
        assert "API key" in failed.errors.data[0].message


def test_what_is_late_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_WINDOW_S", 1)
    with keeping(tmp_path) as server, client_of(server) as client:
        server.engine.go.clear()
        done = wait_for(client, begin(client, line_of("a") + line_of("b")))
        assert done.status == "expired"
        assert done.output_file_id is None
        late = answers(client, done.error_file_id)
        assert {each["error"]["code"] for each in late.values()} == {"batch_expired"}
        assert late.keys() == {"a", "b"}
        server.engine.go.set()


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping(tmp_path, files_disk_bytes=4000) as server, client_of(server) as client:
        with pytest.raises(openai.APIStatusError, match="no room") as caught:
            client.files.create(file=("a", b"x" * 4001), purpose="batch")
        assert caught.value.status_code == 413
        failed = wait_for(client, begin(client, b"".join(line_of(str(n)) for n in range(20))))
        assert failed.status == "failed"
        assert failed.errors is not None
        assert "no room for more answers" in failed.errors.data[0].message
        assert answers(client, failed.output_file_id)
        for each in client.files.list():
            client.files.delete(each.id)
        monkeypatch.setattr("blazr.server.batches.files.MAX_KEPT", 2)
        for _ in range(2):
            client.files.create(file=("a", b"x"), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="as many as a key may have"):
            client.files.create(file=("a", b"x"), purpose="batch")


def test_two_servers_do_not_share_a_folder_and_a_missing_one_is_named(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1000)
    with pytest.raises(ConfigError, match="another server"):
        FileStore(tmp_path, 1000)
    store.close()
    FileStore(tmp_path, 1000).close()
    with pytest.raises(ConfigError, match="--files-dir is missing"), keeping(tmp_path / "none"):
        pass
    with serving(scripted_core()) as server, client_of(server) as client:
        with pytest.raises(openai.APIStatusError, match="--files-dir") as caught:
            client.files.list()
        assert caught.value.status_code == 501


def test_files_of_others_stay(tmp_path: Path) -> None:
    for name in ("film.part", "tmp.part", "tmpabcd_123.part"):
        (tmp_path / name).touch()
    FileStore(tmp_path, 1000).close()
    # the last is what a process has not written to its end
    assert {each.name for each in tmp_path.glob("*.part")} == {"film.part", "tmp.part"}


def test_a_folder_that_cannot_be_written_is_an_error_that_may_pass(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with keeping(folder) as server, client_of(server) as client:
        shutil.rmtree(folder)
        with pytest.raises(openai.APIStatusError, match="cannot be written") as caught:
            client.files.create(file=("a", b"x"), purpose="batch")
        assert (caught.value.status_code, caught.value.code) == (503, "disk_full")
        assert caught.value.response.headers["retry-after"] == "60"
        assert not client.files.list().data
        folder.mkdir()
        assert client.files.create(file=("a", b"x"), purpose="batch").bytes == 1


def test_a_batch_whose_end_could_not_be_written_is_cancelled(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with keeping(folder) as server, client_of(server) as client:
        server.engine.go.clear()
        batch = begin(client, line_of("a"))
        wait_until(lambda: server.engine.submitted)
        shutil.rmtree(folder)
        server.engine.go.set()
        found = server.state.batches
        assert found is not None
        wait_until(lambda: not found._tasks)
        folder.mkdir()
        assert client.batches.retrieve(batch.id).status == "in_progress"
        client.batches.cancel(batch.id)
        assert wait_for(client, batch).status == "cancelled"
        client.files.delete(batch.input_file_id)
