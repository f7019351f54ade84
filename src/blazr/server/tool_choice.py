"""Tools and the choice among them, as OpenAI's APIs spell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from blazr.core.errors import RequestError, too_many
from blazr.server.schema import Schema, of_type, schema_hint
from blazr.text.tool_calls.json_scan import NAME

MAX_TOOLS = 128
MAX_TOOL_NAME = 128  # characters; OpenAI takes 64, Anthropic 128
_NAMED: Schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
_NESTED_TOOL = {"properties": {"custom": _NAMED}, "required": ["custom"]}
_FLAT_TOOL = {"properties": {"name": {"type": "string"}, "custom": False}, "required": ["name"]}
_CUSTOM = {"anyOf": [_NESTED_TOOL, _FLAT_TOOL]}
_FUNCTION = {"type": {"enum": ["function", None]}}
CUSTOM_TOOL: Schema = of_type("custom", **_CUSTOM)
# A tool, and a call of one, as OpenAI describes them.
Tool = Annotated[dict[str, Any], schema_hint(anyOf=[{"properties": _FUNCTION}, CUSTOM_TOOL])]
ToolCall = Annotated[
    dict[str, Any],
    schema_hint(
        anyOf=[
            {"properties": {"function": _NAMED}, "required": ["function"]},
            CUSTOM_TOOL,
        ]
    ),
]


class ToolFields(TypedDict):
    """Fields of a `GenerationRequest` that concern tools."""

    tools: Sequence[Mapping[str, object]] | None
    tool_choice: Literal["auto", "none", "required"]
    tool_name: str | None
    parallel_tool_calls: bool | None


def tool_name(tool: Mapping[str, object]) -> str | None:
    """The name of a tool in OpenAI's shapes, nested or flat; None where it has none."""
    inner = tool.get("function", tool.get("custom", tool))
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def tool_choice(
    tools: Sequence[Mapping[str, object]] | None,
    choice: str = "auto",
    *,
    name: str | None = None,
    parallel: bool | None = None,
) -> ToolFields:
    """What a request says of tools.

    Args:
        tools: Functions in OpenAI's shape.
        choice: ``"auto"``, ``"none"`` or ``"required"``.
        name: The function that must be called.
        parallel: Whether several may be called at once; None is not said.

    Raises:
        RequestError: There are too many tools, or one has no name, or none that can be called.
    """
    if tools and len(tools) > MAX_TOOLS:
        raise too_many(tools, MAX_TOOLS, "tools", param="tools")
    for tool in tools or ():
        found = tool_name(tool)
        if not found:
            raise RequestError(
                "a tool has no function with a name.",
                param="tools",
                expected='{"type": "function", "function": {"name": "..."}}',
            )
        if len(found) > MAX_TOOL_NAME:
            raise RequestError(
                "a tool's name is too long.",
                param="tools",
                found=f"{len(found)} characters",
                expected=f"at most {MAX_TOOL_NAME}",
            )
        if not NAME.fullmatch(found):
            raise RequestError(
                "a tool's name has characters by which no reply can call it.",
                param="tools",
                found=repr(found)[:100],
                expected="letters, digits, and any of _ - . : /",
            )
    return {
        "tools": tools or None,
        "tool_choice": "none" if choice == "none" else "auto" if choice == "auto" else "required",
        "tool_name": name,
        "parallel_tool_calls": parallel,
    }


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
