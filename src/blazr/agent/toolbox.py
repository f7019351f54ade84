"""All servers of tools, on a thread of their own, and what a request is offered of them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import import_module
from typing import Self, TypeVar

import anyio

from blazr.agent.config import McpServer, Policy, check_installed
from blazr.agent.connection import Connection, McpTool, Network, Outcome
from blazr.text.messages import function_tool

R = TypeVar("R")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]")  # in the name of a function
_MAX_NAME = 64
MAX_OFFERED = 128  # with a request's own; more confuse a model, and fill its context


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a server that a model may call.

    Args:
        shown_name: Its name for the model.
        connection: Its server.
        tool: The tool there.
        policy: Whether it runs without asking.
    """

    shown_name: str
    connection: Connection
    tool: McpTool
    policy: Policy

    @property
    def server(self) -> str:
        """The name of its server."""
        return self.connection.server.name

    @property
    def as_function(self) -> dict[str, object]:
        """The tool in OpenAI's shape."""
        return function_tool(self.shown_name, self.tool.description, self.tool.schema)


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools that one request is offered, by the names that the model is shown."""

    tools: Mapping[str, OfferedTool] = field(default_factory=dict)

    def beside(
        self, tools: Sequence[Mapping[str, object]] | None
    ) -> Sequence[Mapping[str, object]] | None:
        """A request's own tools, as they are given, with these behind them."""
        return [*(tools or ()), *self.functions] if self.tools else tools

    @property
    def functions(self) -> list[dict[str, object]]:
        """All of them in OpenAI's shape."""
        return [each.as_function for each in self.tools.values()]

    def shown_name(self, server: str, name: str) -> str:
        """The name that the model is shown of a server's tool; its own where it is not offered."""
        found = (
            shown
            for shown, each in self.tools.items()
            if (each.server, each.tool.name) == (server, name)
        )
        return next(found, name)


@dataclass(frozen=True, slots=True)
class RequestConnections:
    """Connections to the servers that one request names, for as long as it runs.

    Args:
        connections: To each server.
        running: The task that keeps them open.
    """

    connections: Sequence[Connection]
    running: Future[None]

    def close(self) -> None:
        """End the connections. Idempotent."""
        self.running.cancel()


class Toolbox:
    """Connections to servers of tools, on a thread and event loop of their own. Thread-safe.

    A server that sends too much, or too slowly, thus delays no request that does not use it.

    Args:
        servers: The servers; connecting to them starts at once.

    Attributes:
        connections: The servers, in that order.

    Raises:
        ConfigError: The library that speaks to them is not installed.
    """

    def __init__(self, servers: Sequence[McpServer] = ()) -> None:
        check_installed()
        for name in ("mcp", "client"):  # the SDK logs tracebacks of what a server does wrong
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if servers:  # its modules import each other: two threads at once would find half of one
            import_module("mcp")
        self.connections = [Connection(each) for each in servers]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="blazr-tools", daemon=True)
        self._thread.start()
        self._has_begun.wait()

    def first_attempts(self) -> Future[None]:
        """Return a future that is done once each server has connected, failed or timed out."""
        return self.begin(_first_attempts(self.connections))

    def offer(self, taken: Collection[str] = ()) -> Offer:
        """What the servers that work now offer.

        Args:
            taken: Names of the request's own tools.
        """
        return offer_of(self.connections, taken)

    async def connect(self, servers: Sequence[McpServer], network: Network) -> RequestConnections:
        """Connect to servers that one request names; there is one attempt for each."""
        connections = [Connection(each, network) for each in servers]
        running = self.begin(_connect_all(connections))
        opened = RequestConnections(connections, running)
        try:
            await asyncio.wrap_future(self.begin(_first_attempts(connections)))
        except BaseException:
            opened.close()
            raise
        return opened

    def call(self, offered: OfferedTool, arguments: str) -> Future[Outcome]:
        """Call a tool.

        Args:
            offered: Which.
            arguments: Text of a JSON object, as a model wrote it.
        """
        given = read_arguments(arguments)
        if given is None:
            failed: Future[Outcome] = Future()
            failed.set_result(Outcome("the arguments are no JSON object.", is_error=True))
            return failed
        return self.begin(offered.connection.call(offered.tool.name, given))

    def begin(self, work: Coroutine[object, object, R]) -> Future[R]:
        """Run a coroutine on the servers' event loop; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End all servers. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        async with anyio.create_task_group() as group:
            for each in self.connections:
                group.start_soon(each.run)
            self._has_begun.set()
            await self._stop.wait()
            group.cancel_scope.cancel()


def read_arguments(text: str) -> dict[str, object] | None:
    """The arguments that a model wrote; none where it wrote nothing. None: no JSON object.

    One with half a character, or that nests too deep, is none either: neither templates nor the
    SDK, which would end the connection, can write it.
    """
    from pydantic_core import to_json

    try:
        given = json.loads(text.strip() or "{}")
        to_json({"params": {"arguments": given}})  # as deep as in a message of the SDK
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def own_policy(server: McpServer, tool: McpTool) -> Policy:
    """What the settings file says of a tool."""
    return server.policy_of(tool.name)


def offer_of(
    connections: Sequence[Connection],
    taken: Collection[str] = (),
    policy_of: Callable[[McpServer, McpTool], Policy] = own_policy,
) -> Offer:
    """The tools of some servers, each under a name that no other has.

    Args:
        connections: The servers; those that do not work offer nothing.
        taken: Names of the request's own tools.
        policy_of: Whether a tool runs without asking, after asking, or is not offered.
    """
    found = [
        (each, tool, policy)
        for each in connections
        for tool in each.tools
        if (policy := policy_of(each.server, tool)) != "deny"
    ][: max(MAX_OFFERED - len(taken), 0)]
    plain = [_UNUSUAL.sub("_", tool.name)[:_MAX_NAME] for _, tool, _ in found]
    offered: dict[str, OfferedTool] = {}
    for (connection, tool, policy), name in zip(found, plain, strict=True):
        shown = name
        if name in taken or plain.count(name) > 1:
            shown = f"{_UNUSUAL.sub('_', connection.server.name)}__{name}"[:_MAX_NAME]
        number = 2
        while shown in taken or shown in offered:  # they differ in unusual characters alone
            shown = f"{shown[: _MAX_NAME - 4]}_{number}"
            number += 1
        offered[shown] = OfferedTool(shown, connection, tool, policy)
    return Offer(offered)


async def _first_attempts(connections: Sequence[Connection]) -> None:
    for each in connections:
        await each.first_attempt.wait()


async def _connect_all(connections: Sequence[Connection]) -> None:
    async with anyio.create_task_group() as group:
        for each in connections:
            group.start_soon(each.connect)
