"""Chats with tools that the server runs: rounds, parallel calls, asking, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from blazr.core.errors import ConfigError
from blazr.server.config import ServerConfig
from tests.support import mcp_servers
from tests.support.loopback import Loopback, serving
from tests.support.scripted import wait_until
from tests.support.scripted_calls import calling, calling_core, prompts

pytest.importorskip("mcp")

TWO_ROUNDS = [
    calling(("meet", {"name": "one"}), ("meet", {"name": "two"}), say="Let me see."),
    calling(("add", {"a": 20, "b": 22}), ("fail", {})),
    "It is 42.",
]
HELLO = [{"role": "user", "content": "what is it?"}]
OWN = {"type": "function", "function": {"name": "own", "parameters": {"type": "object"}}}


@contextmanager
def chatting(
    folder: Path,
    replies: Sequence[str],
    *,
    settings: dict[str, object] | None = None,
    **entry: object,
) -> Iterator[Loopback]:
    marks = folder / "marks"
    marks.mkdir()
    with mcp_servers.on_http(marks) as url:
        entry = {"url": url, "policy": "auto", "tools": {"write": "ask"}, **entry}
        config = mcp_servers.write_config(folder, tried=entry)
        with serving(calling_core(replies), mcp_config=config, **(settings or {})) as running:
            yield running


def post(running: Loopback, **body: object) -> dict:
    asked = {"messages": HELLO, "max_tokens": 300, "agent": True, **body}
    reply = running.client.post("/v1/chat/completions", json=asked)
    assert reply.is_success, reply.text
    return reply.json()


def test_two_rounds_with_calls_that_run_together(tmp_path: Path) -> None:
    with chatting(tmp_path, TWO_ROUNDS) as running:
        reply = post(running)
        (choice,) = reply["choices"]
        assert choice["finish_reason"] == "stop"
        message = choice["message"]
        assert message["content"] == "Let me see.\n\nIt is 42."
        assert "tool_calls" not in message
        by_name = {(each["name"], each["output"]) for each in message["mcp_calls"]}
        assert {("meet", "met as one"), ("meet", "met as two"), ("add", "42")} < by_name
        statuses = {each["name"]: each["status"] for each in message["mcp_calls"]}
        assert statuses == {"meet": "completed", "add": "completed", "fail": "failed"}
        first, second, third = prompts(running.core)
        assert "Add two numbers." in first
        assert "met as two" in second
        assert "met as two" in third
        assert "it went wrong" in third
        usage = reply["usage"]
        sizes = [len(each.prompt_ids) for each in running.engine.submitted]
        assert usage["prompt_tokens"] == sum(sizes)
        scripts = [len(running.core.tokenizer.encode(each)) for each in TWO_ROUNDS]
        assert usage["completion_tokens"] == sum(scripts)
        # the whole goes back with the next question
        told = [*HELLO, message, {"role": "user", "content": "sure?"}]
        post(running, messages=told, agent=False)
        assert "met as one" in prompts(running.core)[-1]


def test_tools_take_no_time_between_tokens(tmp_path: Path) -> None:
    replies = [calling(("add", {"a": 1, "b": 2})), "It is 3."]
    with chatting(tmp_path, [*replies, *replies]) as running:

        def count() -> float:
            lines = running.client.get("/metrics").text.splitlines()
            found = [x for x in lines if x.startswith("blazr_inter_token_seconds_count")]
            return sum(float(each.split()[-1]) for each in found)

        post(running)
        of_agent = count()
        own = {**OWN["function"], "name": "add"}
        post(running, agent=False, tools=[{"type": "function", "function": own}])
        post(running, agent=False)
        assert of_agent == count() - of_agent > 0


def test_every_step_is_in_the_stream(tmp_path: Path) -> None:
    with chatting(tmp_path, TWO_ROUNDS, settings={"agent": True}) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        with client, client.chat.completions.stream(model="default", messages=HELLO) as stream:
            chunks = [each.chunk for each in stream if each.type == "chunk"]
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        calls = [each for delta in deltas for each in getattr(delta, "mcp_calls", None) or ()]
        assert [each["index"] for each in calls[:2]] == [0, 1]
        assert {each["status"] for each in calls[:2]} == {"in_progress"}, "both at once"
        assert {each["index"] for each in calls[2:4]} == {0, 1}
        assert [each["index"] for each in calls if each["status"] != "in_progress"][2:] in (
            [2, 3],
            [3, 2],
        )
        assert sum(delta.role == "assistant" for delta in deltas) == 1
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_call_that_needs_asking_goes_to_the_client(tmp_path: Path) -> None:
    replies = [calling(("write", {"name": "file"}), ("add", {"a": 1, "b": 2})), "Done."]
    with chatting(tmp_path, replies) as running:
        (choice,) = post(running)["choices"]
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "write"
        assert json.loads(call["function"]["arguments"]) == {"name": "file"}
        assert [each["output"] for each in message["mcp_calls"]] == ["3"]
        assert list((tmp_path / "marks").iterdir()) == []
        # the client agrees
        (agreed,) = post(
            running, messages=[*HELLO, message], approved_tool_calls=[call["id"], "another"]
        )["choices"]
        assert agreed["message"]["content"] == "Done."
        (ran,) = agreed["message"]["mcp_calls"]
        assert (ran["id"], ran["output"]) == (call["id"], "written")
        assert [each.name for each in (tmp_path / "marks").iterdir()] == ["file"]
        # or it does not
        refusal = {"role": "tool", "tool_call_id": call["id"], "content": "no"}
        (refused,) = post(
            running, messages=[*HELLO, message, refusal], approved_tool_calls=[call["id"]]
        )["choices"]
        assert "mcp_calls" not in refused["message"]


def test_own_tools_go_to_the_client(tmp_path: Path) -> None:
    replies = [calling(("own", {}), ("add", {"a": 1, "b": 2}))]
    with chatting(tmp_path, replies) as running:
        (choice,) = post(running, tools=[OWN])["choices"]
        assert [each["function"]["name"] for each in choice["message"]["tool_calls"]] == ["own"]
        assert [each["output"] for each in choice["message"]["mcp_calls"]] == ["3"]
        assert choice["finish_reason"] == "tool_calls"


def test_rounds_have_an_end(tmp_path: Path) -> None:
    with chatting(tmp_path, [calling(("add", {"a": 1, "b": 2}))]) as running:
        (choice,) = post(running, max_tool_rounds=3)["choices"]
        assert len(choice["message"]["mcp_calls"]) == 3
        assert len(choice["message"]["tool_calls"]) == 1
        assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "arguments", ['"two"', "[1]", '{"a": "two"}', '{"a": 1', "", '{"a": "\\ud83d"}']
)
def test_arguments_that_are_wrong_are_told_to_the_model(arguments: str, tmp_path: Path) -> None:
    written = f'{{"name": "add", "arguments": {arguments}}}'
    with chatting(tmp_path, [f"<tool_call>\n{written}\n</tool_call>", "Sorry."]) as running:
        (choice,) = post(running)["choices"]
        assert choice["finish_reason"] == "stop"
        for call in choice["message"].get("mcp_calls", ()):
            assert call["status"] == "failed"
            assert "Error: " in prompts(running.core)[1]


def test_nothing_is_offered_unasked(tmp_path: Path) -> None:
    with chatting(tmp_path, TWO_ROUNDS) as running:
        (choice,) = post(running, agent=None)["choices"]
        assert not {"tool_calls", "mcp_calls"} & set(choice["message"])
        assert "Add two numbers." not in prompts(running.core)[0]

        def told() -> dict:
            (server,) = running.client.get("/server_info").json()["mcp_servers"]
            return server

        wait_until(lambda: told()["status"] == "ready")
        assert (told()["name"], told()["failure"]) == ("tried", None)
        assert told()["num_tools"] > 5


def test_a_client_that_leaves_ends_the_calls(tmp_path: Path) -> None:
    with chatting(tmp_path, [calling(("wait", {}))]) as running:
        body = {"messages": HELLO, "agent": True, "stream": True}
        with running.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert any("in_progress" in line for line in reply.iter_lines())
        wait_until(lambda: running.state.num_working == 0)


def test_calls_that_take_longer_than_the_request_may(tmp_path: Path) -> None:
    with chatting(tmp_path, [calling(("wait", {}))]) as running:
        body = {"messages": HELLO, "agent": True, "timeout": 0.5}
        reply = running.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 408, "however far it has come by then"


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    with chatting(tmp_path, TWO_ROUNDS) as running:
        body = {"messages": HELLO, "agent": True, "n": 2}
        reply = running.client.post("/v1/chat/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")
    with serving(calling_core(TWO_ROUNDS)) as running:
        body = {"messages": HELLO, "agent": True}
        reply = running.client.post("/v1/chat/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "agent")
    with pytest.raises(ConfigError, match="--agent needs tools"):
        ServerConfig(agent=True)
