"""The ``mcp`` tools of ``/v1/responses``: the operator's servers by label, others by URL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx2

from blazr.agent.config import McpServer, Policy
from blazr.agent.connection import Connection, McpTool
from blazr.agent.toolbox import Offer, offer_of, own_policy
from blazr.core.errors import RequestError
from blazr.server.agent import ServerTools
from blazr.server.endpoint import Call
from blazr.server.openai.responses.tools import GivenMcp
from blazr.server.public_network import PublicTransport

STARTUP_S = 20.0
CALL_S = 120.0


@dataclass(frozen=True, slots=True)
class ToolList:
    """What a server offers that a request names.

    Args:
        server: Its label.
        tools: Its tools, as far as they are offered.
        failure: Why there are none.
    """

    server: str
    tools: Sequence[McpTool]
    failure: str


@dataclass(frozen=True, slots=True)
class ResponseTools(ServerTools):
    """The tools that are run for a response.

    Args:
        lists: What the servers offer that the request names.
    """

    lists: Sequence[ToolList] = ()


async def open_tools(
    call: Call[object], given: Sequence[GivenMcp], taken: set[str], *, wants_all: bool
) -> ResponseTools:
    """The tools of the servers that a request names, or of all the operator's.

    Args:
        call: The request.
        given: What it names; none is all, where it wants them.
        taken: The names of its own tools.
        wants_all: Whether it wants them.

    Raises:
        RequestError: It names one that there is not, or may not be connected to.
    """
    toolbox = call.models.toolbox
    own = {each.server.name: each for each in toolbox.connections} if toolbox else {}
    by_url = [_read_server(call, each) for each in given if each.server_url is not None]
    for each in given:
        if each.server_url is None and each.server_label not in own:
            raise RequestError(
                "this server has no MCP server of that label.",
                param="tools",
                found=each.server_label,
                expected=", ".join(own)[:200] or "a server_url",
            )
    if toolbox is None or not (given or wants_all):
        return ResponseTools()
    await asyncio.wrap_future(toolbox.first_attempts())
    opened = await toolbox.connect(by_url, PublicTransport) if by_url else None
    from_urls = {each.server.name: each for each in opened.connections} if opened else {}
    labels = {each.server_label: each for each in given}
    found = {name: (from_urls.get(name) or own[name]) for name in labels} if given else own
    offer = offer_of([*found.values()], taken, lambda *of: _policy(labels, from_urls, *of))
    lists = [ToolList(name, *_offered(found[name], offer)) for name in labels]
    return ResponseTools(offer, toolbox, opened, lists)


def _policy(
    labels: Mapping[str, GivenMcp],
    from_urls: Mapping[str, Connection],
    server: McpServer,
    tool: McpTool,
) -> Policy:
    """The stricter of what the request and the operator say; of a URL's server, the request's."""
    said: set[Policy] = set()
    if server.name in labels:
        said.add(labels[server.name].policy_of(tool.name, only_reads=tool.only_reads))
    if server.name not in from_urls:
        said.add(own_policy(server, tool))
    strict: tuple[Policy, ...] = ("deny", "ask", "auto")
    return next(each for each in strict if each in said)


def _offered(connection: Connection, offer: Offer) -> tuple[list[McpTool], str]:
    tools = [each.tool for each in offer.tools.values() if each.connection is connection]
    return tools, connection.failure


def _read_server(call: Call[object], given: GivenMcp) -> McpServer:
    """A server that a request names by URL.

    Raises:
        RequestError: That is not allowed, or its URL is none.
    """
    if not call.state.config.allow_mcp_urls:
        raise RequestError(
            "this server connects to no server of an 'mcp' tool that names it by URL.",
            param="tools",
            found=f"server_url of {given.server_label!r}",
            expected="the server_label of one of its own servers",
            hint="start it with --allow-mcp-urls",
        )
    assert given.server_url is not None
    try:
        url = httpx2.URL(given.server_url)
        is_fine = url.scheme in {"http", "https"} and bool(url.host) and not url.userinfo
    except (httpx2.InvalidURL, ValueError):
        is_fine = False
    if not is_fine:
        raise RequestError(
            "the server_url of an MCP server cannot be used.",
            param="tools",
            found=repr(given.server_url[:80]),
            expected="an http or https URL without a password",
        )
    headers = {k: v for k, v in (given.headers or {}).items() if k.lower() != "host"}
    if given.authorization is not None:
        headers["Authorization"] = f"Bearer {given.authorization}"
    return McpServer(
        name=given.server_label,
        url=given.server_url,
        headers=headers,
        startup_timeout=STARTUP_S,
        timeout=CALL_S,
    )
