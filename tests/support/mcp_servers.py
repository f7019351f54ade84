"""Servers of tools, written with the SDK: over stdio as a program, over HTTP in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import uvicorn

from tests.support.scripted import wait_until

PATIENT = {"startup_timeout": 100}  # a busy machine takes long to start a program
ROOT = Path(__file__).resolve().parent.parent.parent


def build(marks: Path | None = None):  # noqa: C901  (a tool each)
    """A server; two calls of ``meet`` end only together, and ``write`` leaves a file."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ImageContent, TextContent

    server = MCPServer("tried")
    met: list[asyncio.Event] = []

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def meet(name: str) -> str:
        """Wait for another call of this tool."""
        mine = asyncio.Event()
        met.append(mine)
        if len(met) % 2 == 0:
            for each in met[-2:]:
                each.set()
        await mine.wait()
        return f"met as {name}"

    @server.tool()
    def long(size: int) -> str:
        """A long text."""
        return "a" + "x" * (size - 2) + "z"

    @server.tool()
    async def wait() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return "never"

    @server.tool()
    def fail() -> str:
        """Go wrong."""
        raise ToolError("it went wrong")

    @server.tool(structured_output=False)
    def draw() -> list:
        """Words and a picture."""
        picture = ImageContent(type="image", data="aGk=", mime_type="image/png")
        return [TextContent(type="text", text="a cat:"), picture]

    @server.tool()
    def write(name: str) -> str:
        """Write a file."""
        if marks is not None:
            (marks / name).touch()
        return "written"

    return server


def on_stdio(**more: object) -> dict[str, object]:
    """The entry of an ``mcp.json`` for this server as a program."""
    code = "from tests.support import mcp_servers; mcp_servers.build().run()"
    return {"command": sys.executable, "args": ["-c", code], "cwd": str(ROOT), **PATIENT, **more}


def saying(
    tools: object,
    *,
    then: object = None,
    flood: int = 0,
    answers: Mapping[str, str] | None = None,
    **more: object,
) -> dict[str, object]:
    """The entry for a program that knows the protocol's beginning and lists these tools.

    Args:
        tools: What it lists.
        then: What it lists later, after it has said that its tools changed.
        answers: What it answers to calls of some tools, written in Latin-1, after the id.
        flood: So many bytes without an end of line are what it answers to a call; a call of `die`
            ends it, any other is answered with the tool's name.
        more: Other keys of the entry.
    """
    lists = json.dumps([tools] if then is None else [tools, then])
    code = f"""
import json, sys
lists = json.loads({lists!r})
answers = {dict(answers or {})!r}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {{"jsonrpc": "2.0", "id": asked["id"]}}
    if asked["method"] == "initialize":
        info = {{"name": "odd", "version": "1"}}
        answer["result"] = {{
            "protocolVersion": "2025-06-18", "capabilities": {{"tools": {{}}}}, "serverInfo": info
        }}
    elif asked["method"] == "tools/list":
        answer["result"] = {{"tools": lists[0]}}
        if len(lists) > 1:
            lists.pop(0)
            print(json.dumps(answer), flush=True)
            answer = {{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}}
    elif asked["method"] == "tools/call":
        name = asked["params"]["name"]
        if name == "die":
            sys.exit(3)
        if name in answers:
            whole = '{{"jsonrpc": "2.0", "id": %d, %s}}' % (asked["id"], answers[name])
            sys.stdout.buffer.write(whole.encode("latin-1") + b"\\n")
            sys.stdout.buffer.flush()
            continue
        if {flood}:
            print("x" * {flood}, end="", flush=True)
            continue
        answer["result"] = {{"content": [{{"type": "text", "text": name}}]}}
    else:
        answer["error"] = {{"code": -32601, "message": "unknown"}}
    print(json.dumps(answer), flush=True)
"""
    return {"command": sys.executable, "args": ["-c", code], **PATIENT, **more}


SILENT = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
GONE = {"command": "/nonexistent/program"}


@contextmanager
def on_http(
    marks: Path | None = None, *, port: int = 0, hosts: Sequence[str] = ()
) -> Iterator[str]:
    """The same server on a loopback port, until the block ends: its URL.

    Args:
        marks: Where ``write`` leaves files.
        port: Which; 0 is a free one.
        hosts: Names under which it answers.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    names = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*", *hosts])
    app = build(marks).streamable_http_app(transport_security=names)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def with_sessions(tools: list[object], status: int) -> Iterator[tuple[str, set[str]]]:
    """A server over HTTP that keeps sessions: its URL, and theirs, which may be taken out.

    Args:
        tools: What it lists.
        status: What it answers where it does not know the session.
    """
    known: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            result: dict[str, object] = {"content": [{"type": "text", "text": "here"}]}
            code, session = 200, self.headers.get("mcp-session-id")
            if asked["method"] == "initialize":
                session = uuid4().hex
                known.add(session)
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                result["serverInfo"] = {"name": "odd", "version": "1"}
            elif session not in known:
                code = status
            elif asked["method"] == "tools/list":
                result = {"tools": tools}
            elif "id" not in asked:
                code = 202
            answer = {"jsonrpc": "2.0", "id": asked.get("id"), "result": result}
            body = json.dumps(answer).encode() if code == 200 else b""
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("mcp-session-id", session or "")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp", known
        finally:
            server.shutdown()


def write_config(folder: Path, **servers: object) -> Path:
    """An ``mcp.json`` with these servers."""
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return path
