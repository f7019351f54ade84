"""A connection to one server of tools, which is made again when it breaks."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream
from typing_extensions import override

import blazr
from blazr.agent import bounded_lines
from blazr.agent.config import McpServer

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import ReadStream, Transport, TransportStreams
    from mcp.shared.message import SessionMessage
    from mcp_types import CallToolResult, Tool

_log = logging.getLogger(__name__)

MAX_TOOLS = 128  # of one server
MAX_PAGES = 32
MAX_SCHEMA_BYTES = 65536
MAX_DESCRIPTION = 4096  # characters
MAX_NAME = 128
MAX_ANSWER_BYTES = 16 * 2**20  # over HTTP
FIRST_RETRY_S = 5.0
LAST_RETRY_S = 300.0
RELIST_S = 1.0  # from a change of the tools to their new list

ENDED = "the server has ended, or cannot be reached"

Network = Callable[[], httpx2.AsyncBaseTransport]
State = Literal["starting", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as its server describes it.

    Args:
        name: Its name there.
        description: What it does.
        schema: JSON Schema of its arguments.
        only_reads: Whether its server says that it changes nothing.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    only_reads: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call.

    Args:
        text: What the tool says, or why it says nothing.
        is_error: Whether it failed.
    """

    text: str
    is_error: bool = False


class BadToolsError(Exception):
    """A server describes its tools in a way that no model can be shown; its text says how."""


class Connection:
    """One server. All its methods run on the event loop of the toolbox.

    Args:
        server: Which.
        network: What connects over HTTP, to a server that a request names; None is httpx's own way.

    Attributes:
        state: Whether it can be used.
        failure: Why not.
        tools: Its tools, while it can be.
        first_attempt: Set once the first attempt to connect has succeeded or failed.
    """

    def __init__(self, server: McpServer, network: Network | None = None) -> None:
        self.server = server
        self.state: State = "starting"
        self.failure = ""
        self.tools: tuple[McpTool, ...] = ()
        self.first_attempt = anyio.Event()
        self._network = network or httpx2.AsyncHTTPTransport
        self._client: Client | None = None
        self._changed = anyio.Event()
        self._is_broken = False
        self._is_guest = network is not None  # what clients name is no concern of the operator's
        self._has_warned = False

    async def run(self) -> None:
        """Stay connected until cancelled. What fails is tried again, after ever longer pauses."""
        pause_s = FIRST_RETRY_S
        while True:
            begun_s = anyio.current_time()
            await self.connect()
            if anyio.current_time() - begun_s > pause_s + self.server.startup_timeout:
                pause_s = FIRST_RETRY_S  # it has worked for some time
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_RETRY_S)

    async def connect(self) -> None:
        """Connect, list the tools, and stay connected until the server ends or something fails."""
        try:
            await self._serve()
            self._fail(ENDED)
        except TimeoutError:
            self._fail(f"nothing within {self.server.startup_timeout:g} seconds")
        except Exception as error:  # noqa: BLE001  (whatever it is, the others go on)
            self._fail(_describe_error(error))
        finally:
            self._client = None
            self.tools = ()

    async def _serve(self) -> None:
        from mcp import Client
        from mcp_types import Implementation

        self._is_broken = False
        seconds = self.server.startup_timeout
        with anyio.fail_after(seconds) as limit:
            client = Client(
                _watched(self._transport(), self._break),
                client_info=Implementation(name="blazr", version=blazr.__version__),
                message_handler=self._on_message,
                cache=None,
            )
            async with client:
                while not self._is_broken:
                    self._changed = anyio.Event()
                    self.tools = await _list_tools(client)
                    limit.deadline = inf
                    self._client = client
                    self._succeed()
                    await self._wait_for_change()
                    limit.deadline = anyio.current_time() + seconds

    async def _wait_for_change(self) -> None:
        await self._changed.wait()
        if not self._is_broken:
            await anyio.sleep(RELIST_S)  # some change their tools many times at once

    async def call(self, tool: str, arguments: Mapping[str, object]) -> Outcome:
        """Call a tool. Whatever goes wrong is an outcome, which the model gets to see."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        if self._client is None:
            return Outcome(f"the server {self.server.name!r} does not work now.", is_error=True)
        try:
            with anyio.fail_after(self.server.timeout):
                result = await self._client.call_tool(tool, dict(arguments))
            return Outcome(self._shorten(_text_of(result)), is_error=result.is_error)
        except TimeoutError:
            text = f"the tool did not answer within {self.server.timeout:g} seconds."
        except MCPError as error:
            text = error.message
            # servers give this code, too, as one of their own errors
            if error.code == CONNECTION_CLOSED and self._is_broken:
                text = f"{ENDED}."
                self._break()
            elif self.server.url is not None:
                # one that has forgotten the session refuses its list, too, and is connected again
                self._changed.set()
        except Exception as error:  # noqa: BLE001  (a result that breaks the protocol, for one)
            text = f"the tool's answer cannot be read: {_describe_error(error)}"
        return Outcome(self._shorten(text), is_error=True)

    def _break(self) -> None:
        """Mark the connection as ended; `run` makes another one."""
        self._is_broken = True
        self._client = None
        if self.state == "ready":
            self._offer_nothing(ENDED)
        self._changed.set()

    async def _on_message(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    def _succeed(self) -> None:
        self.state = "ready"
        self.failure = ""
        self.first_attempt.set()
        if self._has_warned and not self._is_guest:
            _log.warning("the MCP server %r works again", self.server.name)
        self._has_warned = False

    def _offer_nothing(self, failure: str) -> None:
        self._client = None
        self.tools = ()
        self.failure = failure
        self.state = "failed"  # last: another thread that sees it finds no tools

    def _fail(self, failure: str) -> None:
        self._offer_nothing(failure)
        self.first_attempt.set()
        level = logging.DEBUG if self._has_warned or self._is_guest else logging.WARNING
        self._has_warned = True
        _log.log(
            level,
            "the MCP server %r is left out, and tried again later: %s",
            self.server.name,
            failure,
        )

    def _shorten(self, text: str) -> str:
        """A text without its middle, where it is too long."""
        most = self.server.max_output
        if len(text) <= most:
            return text
        left_out = f"\n[... {len(text) - most:,} characters are left out here ...]\n"
        return text[: most - most // 4] + left_out + text[len(text) - most // 4 :]

    def _transport(self) -> Transport:
        if self.server.url is not None:
            return _over_http(self.server, self._network())
        return _over_stdio(self.server, self._break)


@asynccontextmanager
async def _watched(
    transport: Transport, on_end: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """A transport that tells when the server's side of it ends."""
    async with transport as (read, write):
        yield _WatchedStream(read, on_end), write


class _WatchedStream(ObjectReceiveStream["SessionMessage | Exception"]):
    """The stream of what a server says."""

    def __init__(
        self, stream: ReadStream[SessionMessage | Exception], on_end: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._on_end = on_end

    @property
    def last_context(self) -> object:
        """What the SDK's dispatcher looks for."""
        return getattr(self._stream, "last_context", None)

    @override
    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def _over_http(
    server: McpServer, network: httpx2.AsyncBaseTransport
) -> AsyncGenerator[TransportStreams]:
    from mcp.client.streamable_http import streamable_http_client

    assert server.url is not None
    client = httpx2.AsyncClient(
        headers=dict(server.headers),
        timeout=httpx2.Timeout(server.startup_timeout, read=2 * server.timeout),
        transport=network,
        event_hooks={"response": [_limit_answer]},
        trust_env=False,
    )
    async with client, streamable_http_client(server.url, http_client=client) as streams:
        yield streams


@asynccontextmanager
async def _over_stdio(
    server: McpServer, on_long_line: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    from mcp import StdioServerParameters, stdio_client

    assert server.command is not None
    bounded_lines.on_long_line.set(on_long_line)
    parameters = StdioServerParameters(
        command=server.command,
        args=list(server.args),
        env=dict(server.env),
        cwd=server.cwd,
        encoding=bounded_lines.ENCODING,
        encoding_error_handler="replace",  # else one wrong byte is the last that is read
    )
    # what it writes there would break into answers and progress bars
    shows = _log.isEnabledFor(logging.DEBUG)
    with nullcontext(sys.stderr) if shows else open(os.devnull, "w", encoding="utf-8") as stderr:  # noqa: PTH123
        async with stdio_client(parameters, errlog=stderr) as streams:
            yield streams


async def _limit_answer(response: httpx2.Response) -> None:
    """Let reading an answer fail after `MAX_ANSWER_BYTES`."""
    if response.request.method == "POST":  # what is listened to with GET has no end
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for part in self._inner:
            num_bytes += len(part)
            if num_bytes > MAX_ANSWER_BYTES:
                raise httpx2.ReadError(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
            yield part

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


async def _list_tools(client: Client) -> tuple[McpTool, ...]:
    """All tools of a server.

    Raises:
        BadToolsError: A model cannot be shown them.
    """
    found: list[McpTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += [_checked_tool(each) for each in page.tools]
        cursor = page.next_cursor
        if not cursor or len(found) > MAX_TOOLS:
            break
    if cursor or len(found) > MAX_TOOLS:
        raise BadToolsError(f"it has more than {MAX_TOOLS} tools, or lists them without end")
    if len({each.name for each in found}) < len(found):
        raise BadToolsError("two of its tools have the same name")
    return tuple(found)


def _checked_tool(tool: Tool) -> McpTool:
    """A tool that a model can be shown.

    Raises:
        BadToolsError: It has no usable name, or no usable schema.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not 0 < len(tool.name) <= MAX_NAME:
        raise BadToolsError(f"a tool has the name {tool.name[:50]!r}")
    schema = tool.input_schema
    try:
        if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
            raise BadToolsError(f"the schema of {tool.name!r} has over {MAX_SCHEMA_BYTES:,} bytes")
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError, ValueError) as error:
        said = getattr(error, "message", "") or type(error).__name__
        raise BadToolsError(f"the schema of {tool.name!r} is none: {said[:150]}") from None
    if schema.get("type") != "object":
        raise BadToolsError(f"the schema of {tool.name!r} is not of an object")
    only_reads = bool(tool.annotations and tool.annotations.read_only_hint)
    return McpTool(tool.name, (tool.description or "")[:MAX_DESCRIPTION], schema, only_reads)


def _text_of(result: CallToolResult) -> str:
    """What a model is shown of a result: its text; of what is no text, that it was there."""
    parts = [_text_of_block(each.model_dump()) for each in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _text_of_block(block: Mapping[str, Any]) -> str:
    if isinstance(block.get("text"), str):
        return str(block["text"])
    resource = block.get("resource")
    if isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    if block.get("type") == "resource_link":
        return f"[{block.get('name')}: {block.get('uri')}]"
    return f"[{block.get('mime_type') or block.get('type')}, which is not shown]"


def _describe_error(error: BaseException) -> str:
    """An error in one line; of a group, its first."""
    from pydantic import ValidationError

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:100]
        return f"an answer breaks the protocol at {place}: {first['msg'][:100]}"
    text = " ".join(str(error).split())[:200]
    if isinstance(error, BadToolsError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
