"""The tools of OpenAI's newer APIs: functions, custom tools, both in namespaces, MCP servers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from blazr.agent.config import Policy
from blazr.core.errors import RequestError
from blazr.server.schema import END, any_given, of_type, schema_hint
from blazr.server.tool_choice import CUSTOM_TOOL

_log = logging.getLogger(__name__)
Tool = Mapping[str, Any]

# Tools that run at OpenAI's. Agents offer the first to every server, and can do without; the others
# stand for data or services of the user's, without which the answer would be another.
_HOSTED_TOOLS = frozenset(
    {
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
        "image_generation",
        "tool_search",
    }
)


_SECRET = frozenset({"headers", "authorization"})  # what responses do not show again

GivenTool = Annotated[
    dict[str, Any],
    schema_hint(
        anyOf=[
            of_type("function", "namespace", *sorted(_HOSTED_TOOLS)),
            CUSTOM_TOOL,
            of_type("mcp", **any_given("server_label", min_length=1)),
        ]
    ),
]


class McpFilter(msgspec.Struct):
    """Some tools of a server: those of these names, or those that it says only read."""

    tool_names: list[str] | None = None
    read_only: bool | None = None

    def takes(self, name: str, *, only_reads: bool) -> bool:
        """Whether a tool is one of them."""
        is_named = self.tool_names is None or name in self.tool_names
        return is_named and self.read_only in {None, only_reads}


class McpApproval(msgspec.Struct):
    """Which tools run only after the client has agreed."""

    always: McpFilter | None = None
    never: McpFilter | None = None


class GivenMcp(msgspec.Struct, kw_only=True):
    """A server of tools that a request names: one of the operator's, or one by URL."""

    server_label: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}" + END)]
    server_url: Annotated[str, msgspec.Meta(max_length=8192)] | None = None
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=64)] | None = None
    authorization: str | None = None
    allowed_tools: list[str] | McpFilter | None = None
    require_approval: McpApproval | Literal["always", "never"] | None = None

    def policy_of(self, name: str, *, only_reads: bool) -> Policy:
        """Whether a tool runs without asking, after asking, or is not offered."""
        allowed = self.allowed_tools
        allowed = McpFilter(allowed) if isinstance(allowed, list) else allowed
        if allowed is not None and not allowed.takes(name, only_reads=only_reads):
            return "deny"
        asked = self.require_approval
        if isinstance(asked, McpApproval):
            is_free = asked.never is not None and asked.never.takes(name, only_reads=only_reads)
            return "auto" if is_free else "ask"
        return "auto" if asked == "never" else "ask"


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools of a request as a model can be shown them.

    Args:
        tools: Functions and custom tools.
        shown: The tools as they were sent, without those that are left out.
        namespaces: Namespace and own name of the tools in namespaces, by the name a model is shown.
        mcp: Servers of tools.
    """

    tools: Sequence[Tool] = ()
    shown: Sequence[Tool] = ()
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    mcp: Sequence[GivenMcp] = ()


def read_tools(given: Sequence[Tool] | None) -> ToolSet:
    """The tools of a request.

    Raises:
        RequestError: One is of a kind that cannot be offered.
    """
    shown: list[Tool] = []
    flat: list[Tool] = []
    mcp: list[GivenMcp] = []
    namespaces: dict[str, tuple[str, str]] = {}
    for tool in given or ():
        kind = tool.get("type")
        if isinstance(kind, str) and kind in _HOSTED_TOOLS:
            _warn_of(kind)
            continue
        if kind == "mcp":
            mcp.append(_read_mcp(tool))
            shown.append({name: each for name, each in tool.items() if name not in _SECRET})
        else:
            flat += _flat(tool, namespaces)
            shown.append(tool)
    if len({each.server_label for each in mcp}) < len(mcp):
        raise RequestError("two MCP servers have one server_label.", param="tools")
    return ToolSet(flat, shown, namespaces, mcp)


def _read_mcp(tool: Tool) -> GivenMcp:
    elsewhere = next((each for each in ("connector_id", "tunnel_id") if tool.get(each)), None)
    if elsewhere is not None:
        raise RequestError(
            "an MCP server is reached through OpenAI alone.",
            param="tools",
            found=elsewhere,
            expected="a server_label of this server's own, or a server_url",
        )
    try:
        return msgspec.convert(tool, GivenMcp)
    except msgspec.ValidationError as error:
        raise RequestError(
            "an MCP server cannot be read.",
            param="tools",
            found=str(error)[:150],
            expected='{"type": "mcp", "server_label": "...", "server_url": "https://..."}',
        ) from None


@cache  # an agent offers it with every request
def _warn_of(kind: str) -> None:
    _log.warning("leave out the tool %s, which runs at OpenAI's alone; this is said once", kind)


def qualified_name(namespace: str | None, name: str) -> str:
    """The name by which a model is shown a tool of a namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def _flat(tool: Tool, namespaces: dict[str, tuple[str, str]]) -> Iterator[Tool]:
    kind = tool.get("type")
    namespace = str(tool.get("name") or "")
    if kind == "namespace":
        inner = tool.get("tools")
        for each in inner if isinstance(inner, list) else ():
            if not isinstance(each, Mapping) or not isinstance(each.get("name"), str):
                raise _unknown("a tool of a namespace without a name")
            name = qualified_name(namespace, each["name"])
            namespaces[name] = namespace, each["name"]
            yield from _flat({**each, "name": name}, namespaces)
    elif kind == "custom":
        yield tool
    elif kind == "function":
        yield {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
    else:
        raise _unknown(repr(kind)[:50])


def _unknown(found: str) -> RequestError:
    return RequestError(
        "a tool is of a kind that does not run here.",
        param="tools",
        found=found,
        expected="'function', 'custom', 'namespace' or 'mcp'",
        hint="send a function, and call it yourself",
    )
