"""Which replica is chosen, and the ids that lead back to it."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import httpx2
import pytest

from blazr.cli.serve import _replica_config
from blazr.server.config import ServerConfig
from blazr.server.errors import HttpError
from blazr.server.replica_ids import id_of, number_in
from blazr.server.replicas import pool as pool_module
from blazr.server.replicas.front import _request_of
from blazr.server.replicas.pool import Pool, cheapest
from blazr.server.replicas.replica import Replica, ReplicaRequest
from blazr.server.serve import uvicorn_config
from tests.support.loopback import serving
from tests.support.scripted import scripted_core

if TYPE_CHECKING:
    from starlette.types import ASGIApp


@pytest.fixture
def replicas(tmp_path: Path) -> list[Replica]:
    return [Replica(number, tmp_path, ()) for number in range(3)]


def names(text: str) -> list[bytes]:
    """Names of blocks, one for each letter."""
    return [text[: end + 1].encode() for end in range(len(text))]


def test_the_longest_prefix_wins(replicas: list[Replica]) -> None:
    replicas[0].sent.add(names("abcd"))
    replicas[2].sent.add(names("abcdef"))
    assert cheapest(replicas, names("abcdefgh")) is replicas[2]


def test_of_equal_prefixes_the_least_busy_wins(replicas: list[Replica]) -> None:
    for each in replicas:
        each.sent.add(names("abcd"))
    replicas[0].num_running = 2
    replicas[1].num_running = 1
    assert cheapest(replicas, names("abcdef")) is replicas[2]


def test_a_prefix_that_saves_less_than_what_waits_there_loses(replicas: list[Replica]) -> None:
    replicas[1].sent.add(names("ab"))
    replicas[1].waiting_blocks = 100
    assert cheapest(replicas, names("abc")) is replicas[0]


def test_new_prompts_go_where_least_is_known_so_that_all_caches_fill(
    replicas: list[Replica],
) -> None:
    for text in ("abc", "def", "ghi"):
        cheapest(replicas, names(text)).sent.add(names(text))
    assert [len(each.sent) for each in replicas] == [3, 3, 3]


def test_an_id_leads_back_to_its_replica() -> None:
    fresh = uuid.uuid4().hex
    assert number_in(f"resp_{id_of(7, fresh)}") == 7
    assert number_in(f"msg_{id_of(7, fresh)}_12") == 7  # of an item
    assert number_in(f"resp_{7:032}") == 0
    assert len(id_of(7, fresh)) == len(fresh)


@pytest.mark.parametrize(
    "name",
    ["", "resp_", "resp_12", "resp_xyz!", "nothing", "resp_-001a", "resp_+001a", "resp_ 1 a"],
)
def test_other_names_lead_nowhere(name: str) -> None:
    assert number_in(name) is None


@pytest.mark.parametrize(("said", "told"), [(None, "https"), (b"http", "http")])
def test_a_replica_knows_how_clients_reach_the_server(
    said: bytes | None, told: str, tmp_path: Path
) -> None:
    config = replace(ServerConfig(), root_path="/llm", replicas=2)
    assert _replica_config(config, tmp_path / "0.sock").root_path == "/llm"
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "https",
        "path": "/a",
        "query_string": b"",
        "headers": [] if said is None else [(b"x-forwarded-proto", said)],
        "request_id": "x",
    }
    headers = dict(_request_of(scope, b"").headers)
    assert headers == {b"x-forwarded-proto": told.encode(), b"x-request-id": b"x"}


def test_a_replica_takes_no_prefix_off_a_path() -> None:
    """The process in front has done so: with /api, /api/api/tags is asked for as /api/tags."""
    with serving(scripted_core(), root_path="/api", replica=0) as running:
        assert running.client.get("/api/tags").is_success
    with serving(scripted_core(), root_path="/api") as running:
        assert running.client.get("/api/api/tags").is_success
        assert running.client.get("/api/tags").status_code == 404


def test_a_replica_shows_the_limits_that_clients_meet(tmp_path: Path) -> None:
    """``/server_info`` is answered by a replica; the process in front keeps to these limits."""
    config = ServerConfig(
        replicas=2, max_connections=77, files_dir=tmp_path, files_disk_bytes=2**20
    )
    own = _replica_config(config, tmp_path / "0.sock")
    assert (own.max_connections, own.files_disk_bytes) == (77, 2**20)
    limit = uvicorn_config(cast("ASGIApp", None), own).limit_concurrency
    assert (limit or 0) > 77, "the process in front has connections of its own"


def test_without_a_replica_that_is_ready_requests_are_told_to_come_again() -> None:
    pool = Pool((), ServerConfig(replicas=2))
    try:
        with pytest.raises(HttpError) as caught:
            pool.choose([])
        assert caught.value.status == 503
        assert caught.value.headers["Retry-After"] == "1"
        pool.replicas[1].is_ready = True
        assert pool.choose([]) is pool.replicas[1]
        with pytest.raises(HttpError, match="no replica"):
            pool.choose([], number=0)
        with pytest.raises(HttpError, match="no replica"):
            pool.choose([], but=pool.replicas)
    finally:
        pool.close()


def test_a_replica_that_ends_while_it_is_told_is_not_called_ready(
    replicas: list[Replica], caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool((), ServerConfig(replicas=2))
    pool.commands["pause"] = ReplicaRequest("POST", b"/pause", ())
    try:
        with caplog.at_level("INFO", logger="blazr"):
            asyncio.run(pool._admit(replicas[0]))  # nothing listens on its socket
    finally:
        pool.close()
    assert not replicas[0].is_ready
    assert "is ready" not in caplog.text


class HangingReplica(Replica):
    """It says nothing any more once it is told something, until it is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0, folder, ())
        self.is_told = False
        self.has_ended = asyncio.Event()

    def exit_code(self) -> int | None:
        return -9 if self.has_ended.is_set() else None

    def end(self, *, at_once: bool = False) -> None:
        assert at_once
        self.has_ended.set()

    async def ask(
        self, request: ReplicaRequest, *, timeout_s: float | None = None
    ) -> httpx2.Response:
        if request.method == "POST":
            self.is_told = True
            await self.has_ended.wait()
            raise httpx2.ReadError("it has ended")
        if self.is_told:
            raise httpx2.ReadTimeout("silence")
        return httpx2.Response(200)


def test_a_replica_that_hangs_while_it_is_told_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_HANG_S", 0.01)
    pool = Pool((), ServerConfig(replicas=2))
    pool.commands["pause"] = ReplicaRequest("POST", b"/pause", ())

    async def watch() -> HangingReplica:
        replica = HangingReplica(tmp_path)
        async with asyncio.timeout(10):
            await pool._watch(replica)
        return replica

    try:
        replica = asyncio.run(watch())
    finally:
        pool.close()
    assert replica.is_told
    assert not replica.is_ready
    assert not pool.changing.locked()
