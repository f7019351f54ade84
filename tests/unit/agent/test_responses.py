"""The ``mcp`` tools of ``/v1/responses``, with OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpcore2
import httpx2
import openai
import pytest

from blazr.server.public_network import PublicTransport
from tests.support import mcp_servers
from tests.support.loopback import Loopback, serving
from tests.support.scripted_calls import calling, calling_core, prompts

pytest.importorskip("mcp")

TWO_ROUNDS = [
    calling(("meet", {"name": "one"}), ("meet", {"name": "two"}), say="Let me see."),
    calling(("add", {"a": 20, "b": 22}), ("fail", {})),
    "It is 42.",
]
ALL = {"type": "mcp", "server_label": "tried", "require_approval": "never"}


@contextmanager
def responding(
    folder: Path, replies: Sequence[str], **entry: object
) -> Iterator[tuple[Loopback, openai.OpenAI]]:
    marks = folder / "marks"
    marks.mkdir()
    with mcp_servers.on_http(marks) as url:
        config = mcp_servers.write_config(
            folder, tried={"url": url, "policy": "auto", **entry}, gone=mcp_servers.GONE
        )
        core = calling_core(replies)
        with (
            serving(core, mcp_config=config) as running,
            openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
        ):
            yield running, client


def kinds(response: openai.types.responses.Response) -> list[str]:
    return [each.type for each in response.output]


def test_two_rounds(tmp_path: Path) -> None:
    with responding(tmp_path, TWO_ROUNDS) as (running, client):
        tool = {**ALL, "allowed_tools": ["add", "meet", "fail"], "headers": {"X-Key": "secret"}}
        response = client.responses.create(model="default", input="what is it?", tools=[tool])
        assert kinds(response) == [
            "mcp_list_tools",
            "message",
            *["mcp_call"] * 2,
            *["mcp_call"] * 2,
            "message",
        ]
        listed, _, one, two, add, fail, _ = response.output
        assert {each.name for each in listed.tools} == {"add", "meet", "fail"}
        assert listed.error is None
        assert {one.output, two.output} == {"met as one", "met as two"}
        assert (add.output, add.status, add.error) == ("42", "completed", None)
        assert (fail.output, fail.status) == (None, "failed")
        assert "it went wrong" in str(fail.error)
        assert response.output_text.endswith("It is 42.")
        assert "secret" not in response.to_json()
        # the next response knows what was called
        client.responses.create(
            model="default", input="sure?", previous_response_id=response.id, tools=[tool]
        )
        assert "met as two" in prompts(running.core)[-1]
        assert "it went wrong" in prompts(running.core)[-1]


def test_every_step_is_in_the_stream(tmp_path: Path) -> None:
    with responding(tmp_path, TWO_ROUNDS) as (_, client):
        asked = {"model": "default", "input": "what?", "tools": [ALL]}
        with client.responses.stream(**asked) as stream:
            events = list(stream)
        assert [each.sequence_number for each in events] == sorted(
            each.sequence_number for each in events
        )
        names = [each.type.removeprefix("response.") for each in events]
        assert names[:6] == [
            "created",
            "in_progress",
            "output_item.added",
            "mcp_list_tools.in_progress",
            "mcp_list_tools.completed",
            "output_item.done",
        ]
        assert names.count("created") == 1
        assert names.count("mcp_call.in_progress") == 4
        assert names.count("mcp_call.completed") == 3
        assert names.count("mcp_call.failed") == 1
        done = [each.item for each in events if each.type == "response.output_item.done"]
        whole = events[-1].response
        assert sorted(each.id for each in done) == sorted(each.id for each in whole.output)
        places = {each.item.id: each.output_index for each in events if hasattr(each, "item")}
        assert [places[each.id] for each in whole.output] == list(range(len(whole.output)))


def test_asking(tmp_path: Path) -> None:
    replies = [
        calling(("write", {"name": "file"}), ("add", {"a": 1, "b": 2})),
        "Done.",
        calling(("write", {"name": "other"})),
        "Then not.",
    ]
    some = {**ALL, "require_approval": {"never": {"tool_names": ["add"]}}}
    with responding(tmp_path, replies) as (running, client):
        asked = {"model": "default", "tools": [some]}
        first = client.responses.create(input="write it", **asked)
        assert sorted(kinds(first)) == ["mcp_approval_request", "mcp_call", "mcp_list_tools"]
        request = next(each for each in first.output if each.type == "mcp_approval_request")
        assert (request.server_label, request.name) == ("tried", "write")
        assert request.arguments == '{"name": "file"}'
        assert list((tmp_path / "marks").iterdir()) == []
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": request.id,
            "approve": True,
        }
        again = {"input": [answer], "previous_response_id": first.id, **asked}
        with client.responses.stream(**again) as stream:
            events = list(stream)
        assert [each.type for each in events].index("response.created") == 0
        second = events[-1].response
        assert kinds(second) == ["mcp_list_tools", "mcp_call", "message"]
        call = second.output[1]
        assert (call.output, call.approval_request_id) == ("written", request.id)
        assert [each.name for each in (tmp_path / "marks").iterdir()] == ["file"]
        # items may come back instead of an id; and the client may refuse
        third = client.responses.create(input="another", **asked)
        request = third.output[-1]
        items = [each.to_dict() for each in third.output]
        refusal = {**answer, "approval_request_id": request.id, "approve": False, "reason": "why?"}
        fourth = client.responses.create(input=[*items, refusal], **asked)
        assert fourth.output_text == "Then not."
        assert "the user has refused this call. why?" in prompts(running.core)[-1]
        assert [each.name for each in (tmp_path / "marks").iterdir()] == ["file"]


def test_the_operator_may_be_stricter(tmp_path: Path) -> None:
    tools = {"write": "ask", "fail": "deny"}
    with responding(tmp_path, [calling(("write", {"name": "file"}))], tools=tools) as (_, client):
        response = client.responses.create(model="default", input="write", tools=[ALL])
        assert kinds(response) == ["mcp_list_tools", "mcp_approval_request"]
        assert "fail" not in {each.name for each in response.output[0].tools}


def test_a_server_that_does_not_work_is_told_of(tmp_path: Path) -> None:
    with responding(tmp_path, ["Hello."]) as (_, client):
        gone = {**ALL, "server_label": "gone"}
        response = client.responses.create(model="default", input="hi", tools=[gone, ALL])
        assert kinds(response) == ["mcp_list_tools", "mcp_list_tools", "message"]
        assert "No such file" in response.output[0].error
        assert response.output[1].error is None


@pytest.mark.parametrize(
    "tool",
    [
        {"server_label": "unknown"},
        {"server_label": "tried\n"},
        {},
        {"server_label": "tried", "server_url": "https://a.example/mcp"},
        {"server_label": "tried", "require_approval": "perhaps"},
        {"server_label": "tried", "connector_id": "connector_gmail"},
    ],
)
def test_what_cannot_be_asked(tool: dict[str, object], tmp_path: Path) -> None:
    with responding(tmp_path, ["Hello."]) as (_, client):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="default", input="hi", tools=[{"type": "mcp", **tool}])
        assert caught.value.param == "tools"


class Internet(httpcore2.AsyncNetworkBackend):
    """The internet: everybody in it is this machine."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def connect_tcp(
        self, host: str, port: int, *_: object, **__: object
    ) -> httpcore2.AsyncNetworkStream:
        self.reached.append(host)
        stream = await httpcore2.AnyIOBackend().connect_tcp("127.0.0.1", port)
        ends = {"client_addr": ("93.184.215.1", 1), "server_addr": (host, port)}
        own = stream.get_extra_info
        stream.get_extra_info = lambda name: ends.get(name) or own(name)  # type: ignore[method-assign]
        return stream


async def resolve(host: str, port: int) -> list[str]:
    return ["93.184.215.14"] if host.endswith(".example") else [host]


def test_servers_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    internet = Internet()
    transport = partial(PublicTransport, resolve, internet)
    monkeypatch.setattr("blazr.server.openai.responses.mcp.PublicTransport", transport)
    core = calling_core([calling(("add", {"a": 1, "b": 2})), "3."])
    with (
        mcp_servers.on_http(hosts=["a.example:*"]) as url,
        serving(core, allow_mcp_urls=True) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        port = httpx2.URL(url).port
        for place in (f"http://127.0.0.1:{port}", f"http://[::1]:{port}", "http://10.0.0.1/mcp"):
            inside = {**ALL, "server_url": place}
            response = client.responses.create(model="default", input="add", tools=[inside])
            assert response.output[0].error is not None
            assert "public" in response.output[0].error
            assert response.output[0].tools == []
        assert internet.reached == []
        outside = {**ALL, "server_url": f"http://a.example:{port}/mcp", "allowed_tools": ["add"]}
        core.engine.submitted.clear()
        response = client.responses.create(model="default", input="add", tools=[outside])
        assert set(internet.reached) == {"93.184.215.14"}
        assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
        assert response.output[1].output == "3"
        for wrong in ("ftp://a.example", "http://user:word@a.example", "http://", "x"):
            with pytest.raises(openai.BadRequestError):
                client.responses.create(
                    model="default", input="x", tools=[{**ALL, "server_url": wrong}]
                )


def test_in_the_background(tmp_path: Path) -> None:
    with responding(tmp_path, TWO_ROUNDS) as (_, client):
        asked = {"model": "default", "input": "what?", "tools": [ALL]}
        with client.responses.create(background=True, stream=True, **asked) as stream:
            events = list(stream)
        found = client.responses.retrieve(events[-1].response.id)
        assert found.status == "completed"
        assert kinds(found).count("mcp_call") == 4
