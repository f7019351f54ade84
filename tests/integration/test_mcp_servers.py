"""MCP with what others have written: their servers' tools, and their clients at ours.

``python -m tests.integration.mcp_servers.install`` installs them under build/mcp; without it, these
tests are skipped.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blazr.agent.config import read_mcp_config
from blazr.agent.toolbox import Toolbox
from tests.integration.mcp_servers.table import BUILD, NODE_MODULES, SDKS, SERVERS, Served, python
from tests.support import mcp_servers
from tests.support.loopback import Loopback, serving
from tests.support.scripted import SCRIPT, scripted_core, wait_until

pytest.importorskip("mcp")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BUILD.exists(), reason="the servers are not installed"),
]

_OLD_CLIENT = """
import asyncio, json, sys
from contextlib import asynccontextmanager
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

async def main(target):
    if isinstance(target, str):
        streams = streamablehttp_client(target)
    else:
        streams = stdio_client(StdioServerParameters(**target))
    async with streams as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        tools = [each.name for each in (await session.list_tools()).tools]
        said = await session.call_tool("chat", {"prompt": "hi", "max_tokens": 20})
        wrong = await session.call_tool("chat", {})
        print(json.dumps([tools, said.content[0].text, wrong.isError]))

asyncio.run(main(json.loads(sys.argv[1])))
"""


@contextmanager
def started(row: Served, folder: Path) -> Iterator[dict[str, object]]:
    """The entry of an ``mcp.json`` for a server, which runs until the block ends."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    def fill(text: str) -> str:
        return text.replace("{port}", str(port)).replace("{folder}", str(folder))

    command = [fill(each) for each in row.command]
    env = {name: fill(each) for name, each in row.env.items()}
    patient = {**mcp_servers.PATIENT, "policy": "auto"}
    if row.over == "stdio":
        entry = {"command": command[0], "args": command[1:], "env": env, "cwd": str(row.cwd)}
        yield {**entry, **patient}
        return
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    beside = [f"{name}={value}" for name, value in env.items()]
    with subprocess.Popen(["env", *beside, *command], cwd=row.cwd, **quiet) as program:
        try:
            wait_until(lambda: program.poll() is not None or answers(port), timeout_s=100)
            yield {"url": f"http://127.0.0.1:{port}/mcp", **patient}
        finally:
            program.kill()


def answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("row", SERVERS, ids=lambda row: row.name.replace(" ", "-"))
def test_their_servers(row: Served, tmp_path: Path) -> None:
    with started(row, tmp_path) as entry:
        config = read_mcp_config(mcp_servers.write_config(tmp_path, tried=entry))
        with Toolbox(config) as toolbox:
            toolbox.first_attempts().result()
            (status,) = toolbox.connections
            assert (status.state, status.failure) == ("ready", "")
            tools = toolbox.offer().tools
            assert len(tools) == row.num_tools, sorted(tools)
            for name, (arguments, says) in row.calls.items():
                given = json.dumps(arguments).replace("{folder}", str(tmp_path))
                outcome = toolbox.call(tools[name], given).result()
                assert outcome.is_error == says.startswith("!"), (name, outcome)
                assert says.removeprefix("!") in outcome.text, (name, outcome)
            assert toolbox.connections[0].state == "ready"


@pytest.fixture(scope="module")
def server() -> Iterator[Loopback]:
    with serving(scripted_core(), mcp=True) as running:
        yield running


def own_program(running: Loopback) -> dict[str, object]:
    """Our server of tools over stdio."""
    args = ["-m", "blazr", "mcp", "--url", running.url]
    path = {"PYTHONPATH": ":".join(sys.path)}
    return {"command": sys.executable, "args": args, "env": path}


def told(*command: str):
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_the_client_of_an_older_sdk(server: Loopback, over: str) -> None:
    target = own_program(server) if over == "stdio" else f"{server.url}/mcp"
    found = told(str(python(SDKS[1])), "-c", _OLD_CLIENT, json.dumps(target))
    assert found == [["chat", "generate", "embed"], SCRIPT, True]


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_the_inspector(server: Loopback, over: str) -> None:
    own = own_program(server)
    if over == "stdio":
        beside = [("-e", f"{name}={value}") for name, value in own["env"].items()]
        target = [own["command"], *own["args"], *(each for pair in beside for each in pair)]
    else:
        target = [f"{server.url}/mcp", "--transport", "http"]
    inspect = ["node", str(NODE_MODULES / "inspector" / "cli" / "build" / "cli.js"), "--cli"]
    listed = told(*inspect, *target, "--method", "tools/list")
    assert [each["name"] for each in listed["tools"]] == ["chat", "generate", "embed"]
    call = ("--method", "tools/call", "--tool-name", "chat", "--tool-arg", "prompt=hi")
    assert told(*inspect, *target, *call)["content"][0]["text"] == SCRIPT
