"""Servers of tools over stdio and HTTP; what is wrong with one costs nobody else."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from blazr.agent import bounded_lines, connection
from blazr.agent.config import McpServer, read_mcp_config
from blazr.agent.connection import Outcome
from blazr.agent.toolbox import Toolbox
from tests.support import mcp_servers
from tests.support.scripted import wait_until

pytest.importorskip("mcp")


@contextmanager
def opened(folder: Path, **servers: object) -> Iterator[Toolbox]:
    read = read_mcp_config(mcp_servers.write_config(folder, **servers))
    with Toolbox(read) as toolbox:
        toolbox.first_attempts().result()
        yield toolbox


def call(toolbox: Toolbox, tool: str, arguments: str = "{}") -> Outcome:
    return toolbox.call(toolbox.offer().tools[tool], arguments).result()


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_tools_are_listed_and_called(kind: str, tmp_path: Path) -> None:
    with mcp_servers.on_http() as url:
        entry = {"url": url} if kind == "http" else mcp_servers.on_stdio()
        with opened(tmp_path, tried={**entry, "max_output": 200}) as toolbox:
            (status,) = toolbox.connections
            assert (status.state, status.failure) == ("ready", "")
            offered = toolbox.offer().tools["add"]
            function = offered.as_function["function"]
            assert function["description"] == "Add two numbers."
            assert set(function["parameters"]["properties"]) == {"a", "b"}
            assert call(toolbox, "add", '{"a": 2, "b": 3}') == Outcome("5")
            both = [
                toolbox.call(toolbox.offer().tools["meet"], f'{{"name": "{name}"}}')
                for name in ("one", "two")
            ]
            assert [each.result().text for each in both] == ["met as one", "met as two"]
            failed = call(toolbox, "fail")
            assert failed.is_error
            assert "it went wrong" in failed.text
            assert call(toolbox, "draw").text == "a cat:\n[image/png, which is not shown]"
            long = call(toolbox, "long", '{"size": 10000}').text
            assert long.startswith("axxx")
            assert long.endswith("xxxz")
            assert "9,800 characters are left out" in long
            assert len(long) < 300


def test_wrong_arguments_and_answers_that_do_not_come(tmp_path: Path) -> None:
    with opened(tmp_path, tried=mcp_servers.on_stdio(timeout=0.2)) as toolbox:
        for arguments in ("{", "[]", '{"a": "two"}'):
            assert call(toolbox, "add", arguments).is_error
        slow = call(toolbox, "wait")
        assert slow == Outcome("the tool did not answer within 0.2 seconds.", is_error=True)
        assert toolbox.connections[0].state == "ready", "the server goes on"


TOOL = {"name": "look", "inputSchema": {"type": "object"}}
BAD_TOOLS = {
    "a schema that is none": [{"name": "look", "inputSchema": {"type": 7}}],
    "no object": [{"name": "look", "inputSchema": {"type": "string"}}],
    "a list as a schema": [{"name": "look", "inputSchema": []}],
    "no list of tools": "look",
    "a name too long": [{**TOOL, "name": "x" * 200}],
    "a name twice": [TOOL, TOOL],
    "too many": [{**TOOL, "name": f"look{i}"} for i in range(200)],
    "a large schema": [{**TOOL, "inputSchema": {"type": "object", "title": "x" * 70_000}}],
}


def test_what_is_wrong_with_a_server_costs_only_its_own_tools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("blazr"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("blazr"), "handlers", [])
    bad = {name: mcp_servers.saying(tools) for name, tools in BAD_TOOLS.items()}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        dead = {"url": f"http://127.0.0.1:{closed.getsockname()[1]}/mcp"}
        with opened(
            tmp_path,
            **bad,
            gone=mcp_servers.GONE,
            silent={**mcp_servers.SILENT, "startup_timeout": 0.5},
            dead=dead,
            good=mcp_servers.saying([TOOL]),
        ) as toolbox:
            states = {each.server.name: each.state for each in toolbox.connections}
            failures = {each.server.name: each.failure for each in toolbox.connections}
            assert states == dict.fromkeys((*bad, "gone", "silent", "dead"), "failed") | {
                "good": "ready"
            }
            assert all(failures[name] for name in states if name != "good"), failures
            assert list(toolbox.offer().tools) == ["look"]
            warned = [each.getMessage() for each in caplog.records if "left out" in each.msg]
            assert len(warned) == len(states) - 1, "one warning each"
            assert "no object" in failures
            assert "inputSchema" in failures["no object"]


def test_a_server_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST_RETRY_S", 0.05)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with opened(tmp_path, later={"url": f"http://127.0.0.1:{port}/mcp"}) as toolbox:
        assert toolbox.offer().tools == {}
        with mcp_servers.on_http(port=port):
            wait_until(lambda: toolbox.connections[0].state == "ready", timeout_s=60)
            assert call(toolbox, "add", '{"a": 1, "b": 2}') == Outcome("3")


def test_a_program_that_ends_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FIRST_RETRY_S", 0.05)
    tried = mcp_servers.saying([TOOL, {**TOOL, "name": "die"}])
    with opened(tmp_path, tried=tried) as toolbox:
        assert call(toolbox, "die") == Outcome(
            "the server has ended, or cannot be reached.", is_error=True
        )
        wait_until(lambda: toolbox.connections[0].state == "ready", timeout_s=60)
        assert call(toolbox, "look") == Outcome("look")


def test_what_a_server_gets_wrong_costs_no_later_call(tmp_path: Path) -> None:
    """A byte that is no UTF-8, and an error with the number that the SDK has for its own end."""
    answers = {
        "latin": '"result": {"content": [{"type": "text", "text": "na\xefve"}]}',
        "refuse": '"error": {"code": -32000, "message": "not today"}',
    }
    tools = [TOOL, *({**TOOL, "name": name} for name in answers)]
    with opened(tmp_path, tried=mcp_servers.saying(tools, answers=answers)) as toolbox:
        for _ in range(2):
            assert call(toolbox, "latin") == Outcome("na\ufffdve")
            assert call(toolbox, "refuse") == Outcome("not today", is_error=True)
            assert call(toolbox, "look") == Outcome("look")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud83d"}', '{"\\ude00": 1}', f'{{"a": {"[" * 300}{"]" * 300}}}']
)
@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_arguments_that_cannot_be_sent_cost_no_later_call(
    kind: str, arguments: str, tmp_path: Path
) -> None:
    """A model may write half a character, and the server belongs to everybody."""
    with mcp_servers.on_http() if kind == "http" else nullcontext() as url:
        entry = {"url": url} if url else mcp_servers.on_stdio()
        with opened(tmp_path, tried=entry) as toolbox:
            assert call(toolbox, "add", arguments) == Outcome(
                "the arguments are no JSON object.", is_error=True
            )
            assert call(toolbox, "add", '{"a": 1, "b": 2}') == Outcome("3")


def test_a_server_that_goes_away_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered_when_logged: list[object] = []
    with mcp_servers.on_http() as url:
        read = read_mcp_config(mcp_servers.write_config(tmp_path, tried={"url": url}))
        toolbox = Toolbox(read)
        toolbox.first_attempts().result()
        offered = toolbox.offer().tools["add"]
        monkeypatch.setattr(
            connection._log, "log", lambda *_: offered_when_logged.append(toolbox.offer().tools)
        )
    with toolbox:
        assert toolbox.call(offered, '{"a": 1, "b": 2}').result().is_error
        wait_until(lambda: toolbox.connections[0].state == "failed", timeout_s=60)
        assert toolbox.offer().tools == {}
        wait_until(lambda: offered_when_logged, timeout_s=60)
        assert offered_when_logged[0] == {}


@pytest.mark.parametrize("status", [404, 400])
def test_a_session_that_its_server_has_forgotten_is_begun_again(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """404 is what the protocol wants then, and 400 what many say."""
    monkeypatch.setattr(connection, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(connection, "RELIST_S", 0.01)
    with (
        mcp_servers.with_sessions([TOOL], status) as (url, sessions),
        opened(tmp_path, tried={"url": url}) as toolbox,
    ):
        assert call(toolbox, "look") == Outcome("here")
        sessions.clear()
        assert call(toolbox, "look").is_error
        wait_until(lambda: bool(sessions) and toolbox.connections[0].state == "ready")
        assert call(toolbox, "look") == Outcome("here")


def test_a_list_that_changes_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RELIST_S", 0.01)
    changing = mcp_servers.saying([TOOL], then=[{**TOOL, "name": "other"}])
    with opened(tmp_path, changing=changing) as toolbox:
        wait_until(lambda: list(toolbox.offer().tools) == ["other"], timeout_s=60)


def test_a_line_without_end_ends_the_program_and_not_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_lines, "MAX_LINE_BYTES", 300_000)
    tool = {"name": "talk", "inputSchema": {"type": "object"}}
    with opened(tmp_path, tried=mcp_servers.saying([tool], flood=400_000)) as toolbox:
        gone = call(toolbox, "talk")
        assert gone == Outcome(f"{connection.ENDED}.", is_error=True)
        wait_until(lambda: "a line of more than 300,000 bytes" in toolbox.connections[0].failure)


def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_ANSWER_BYTES", 100_000)
    with mcp_servers.on_http() as url, opened(tmp_path, tried={"url": url}) as toolbox:
        assert call(toolbox, "long", '{"size": 200000}').is_error
        wait_until(lambda: "an answer of more than 100,000" in toolbox.connections[0].failure)


def test_names_that_collide_are_prefixed(tmp_path: Path) -> None:
    one = mcp_servers.saying([TOOL, {**TOOL, "name": "find.it"}, {**TOOL, "name": "mine"}])
    with opened(tmp_path, one=one, two=mcp_servers.saying([TOOL])) as toolbox:
        assert list(toolbox.offer(taken=["mine"]).tools) == [
            "one__look",
            "find_it",
            "one__mine",
            "two__look",
        ]


def test_policies(tmp_path: Path) -> None:
    path = mcp_servers.write_config(
        tmp_path,
        files={
            "command": "x",
            "tools": {"read_secret": "deny", "read_*": "auto", "*": "deny"},
            "autoApprove": [],
        },
        web={"type": "http", "url": "https://a.example/mcp", "policy": "auto"},
        off={"command": "x", "disabled": True},
    )
    files, web = read_mcp_config(path)
    tools = ("read_it", "read_secret", "write")
    assert [files.policy_of(each) for each in tools] == ["auto", "deny", "deny"]
    assert web.policy_of("anything") == "auto"
    assert McpServer(command="x").policy_of("y") == "ask", "unless the file says otherwise"


FRESH = """
import sys, threading
from importlib.abc import MetaPathFinder
from blazr.agent.config import McpServer
from blazr.agent.toolbox import Toolbox

class Notes(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "mcp" or name.startswith("mcp.server"):
            print(name, threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Notes())
with Toolbox([McpServer(name="x", command="/nonexistent/program")]) as toolbox:
    toolbox.first_attempts().result()
"""


def test_the_sdk_is_imported_before_there_is_a_second_thread() -> None:
    """`mcp` and `mcp.server` import each other: threads that do it at once find half of one."""
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    found = dict(line.split() for line in done.stdout.splitlines())
    assert {"mcp", "mcp.server"} <= set(found)
    assert set(found.values()) == {"True"}
