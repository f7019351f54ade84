"""What the requests of OpenAI's APIs have in common: sampling fields and tools.

Unknown fields are ignored: clients send many that mean nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from blazr.core.errors import RequestError
from blazr.server.params import (
    Bias,
    ResponseFormat,
    Samplers,
    Stop,
    Texts,
    ToolFields,
    TruncatingBody,
    tool_choice,
)
from blazr.server.schema import schema_hint

_Name = Annotated[str, msgspec.Meta(max_length=256)] | None
_Text = Annotated[str, schema_hint(minLength=1)]
_TOOL_KINDS = ("function", "custom")
_TOOL_MODES = ("auto", "none", "required")
ToolMode = Annotated[str, schema_hint(enum=_TOOL_MODES)]


class StreamOptions(msgspec.Struct):
    """What a stream holds besides the text: the usage at its end, and in every chunk so far."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


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

    type: Annotated[str, schema_hint(enum=["function", "custom", "allowed_tools"])]
    allowed_tools: AllowedTools | None = None
    mode: str | None = None
    tools: list[ToolRef] | None = None


class SamplingBody(TruncatingBody, kw_only=True):
    """The fields of every request to generate."""

    model: str | None = None
    adapter: _Name = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Texts | None = None
    bad_words: Texts | None = None
    allowed_token_ids: list[int] | None = None
    samplers: Samplers | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    speculate: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[int, Bias] | None = None
    n: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    json_schema: dict[str, Any] | str | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[_Text], schema_hint(minItems=1)] | None = None
    guided_grammar: str | None = None
    cache_salt: _Name = None
    cache_anchors: (
        Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=1024)] | None
    ) = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    request_id: _Name = None
    rid: _Name = None


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
        if choice.type in {"function", "custom"}:
            mode = "required"
            name = choice.tool_name
        elif choice.type == "allowed_tools" and allowed.tools is not None:
            names = {each.tool_name for each in allowed.tools}
            tools = [each for each in tools or () if _name_of(each) in names]
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


def _name_of(tool: Mapping[str, object]) -> str | None:
    function = tool.get("function", tool.get("custom", tool))
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None
