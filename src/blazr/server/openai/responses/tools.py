"""The tools of OpenAI's newer APIs: functions, custom tools, and both in namespaces."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

from blazr.core.errors import RequestError
from blazr.server.params import CUSTOM_TOOL
from blazr.server.schema import of_type, schema_hint

logger = logging.getLogger(__name__)
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


GivenTool = Annotated[
    dict[str, Any],
    schema_hint(anyOf=[of_type("function", "namespace", *sorted(_HOSTED_TOOLS)), CUSTOM_TOOL]),
]


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools of a request as a model can be shown them.

    Args:
        tools: Functions and custom tools.
        shown: The tools as they were sent, without those that are left out.
        namespaces: Namespace and own name of the tools in namespaces, by the name a model is shown.
    """

    tools: Sequence[Tool] = ()
    shown: Sequence[Tool] = ()
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def read_tools(given: Sequence[Tool] | None) -> ToolSet:
    """The tools of a request.

    Raises:
        RequestError: One is of a kind that cannot be offered.
    """
    shown = []
    for tool in given or ():
        kind = tool.get("type")
        if kind in _HOSTED_TOOLS:
            _warn_of(str(kind))
        else:
            shown.append(tool)
    namespaces: dict[str, tuple[str, str]] = {}
    tools = [each for tool in shown for each in _flat(tool, namespaces)]
    return ToolSet(tools, shown, namespaces)


@cache  # an agent offers it with every request
def _warn_of(kind: str) -> None:
    logger.warning("leave out the tool %s, which runs at OpenAI's alone; this is said once", kind)


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
        expected="'function', 'custom' or 'namespace'",
        hint="send a function, and call it yourself",
    )
