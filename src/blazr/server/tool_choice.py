"""The choice among tools as OpenAI's APIs spell it, for those that answer and those that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from blazr.core.errors import RequestError
from blazr.server.params import ToolFields, tool_choice, tool_name
from blazr.server.schema import schema_hint

_TOOL_KINDS = ("function", "custom")
_TOOL_MODES = ("auto", "none", "required")
ToolMode = Annotated[str, schema_hint(enum=_TOOL_MODES)]


class ToolName(msgspec.Struct):
    """A tool by its name."""

    name: str


class ToolRef(msgspec.Struct, kw_only=True):
    """A tool by its name, nested or flat."""

    type: str
    function: ToolName | None = None
    custom: ToolName | None = None
    name: str | None = None

    @property
    def tool_name(self) -> str:
        """Its name; empty where it has none."""
        nested = self.function or self.custom
        return nested.name if nested else self.name or ""


class AllowedTools(msgspec.Struct, kw_only=True):
    """Which tools may be called, and whether one must be."""

    mode: str | None = None
    tools: list[ToolRef] | None = None


class ToolChoice(ToolRef, kw_only=True):
    """A tool that must be called, or some of which one may be."""

    type: Annotated[str, schema_hint(enum=[*_TOOL_KINDS, "allowed_tools"])]
    allowed_tools: AllowedTools | None = None
    mode: str | None = None
    tools: list[ToolRef] | None = None


def tool_fields(
    tools: Sequence[Mapping[str, object]] | None,
    choice: str | ToolChoice | None,
    *,
    parallel: bool | None,
) -> ToolFields:
    """What a request says of tools, with the choice as OpenAI's APIs spell it.

    Raises:
        RequestError: The choice is none of them.
    """
    check_tool_kinds(tools)
    mode = "auto" if choice is None else choice
    name = None
    if isinstance(choice, ToolChoice):
        allowed = choice.allowed_tools or choice
        if choice.type in _TOOL_KINDS:
            mode = "required"
            name = choice.tool_name
        elif choice.type == "allowed_tools" and allowed.tools is not None:
            names = {each.tool_name for each in allowed.tools}
            tools = [each for each in tools or () if tool_name(each) in names]
            mode = allowed.mode or "auto"
    if mode not in _TOOL_MODES or (isinstance(choice, ToolChoice) and mode != "auto" and not tools):
        raise RequestError(
            "tool_choice is of no known kind, or leaves no tool.",
            param="tool_choice",
            expected="'auto', 'none', 'required', or a function's name in OpenAI's shape",
        )
    return tool_choice(tools, str(mode), name=name, parallel=parallel)


def check_tool_kinds(tools: Sequence[Mapping[str, object]] | None) -> None:
    """Refuse tools that others run for their clients: nobody would call them here."""
    kinds = [tool.get("type", "function") for tool in tools or ()]
    wrong = next((kind for kind in kinds if kind not in _TOOL_KINDS), None)
    if wrong is not None:
        raise RequestError(
            "a tool is of a kind that this server does not run.",
            param="tools",
            found=repr(wrong)[:50],
            expected="'function', which the client calls itself",
        )
