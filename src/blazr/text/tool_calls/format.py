"""What a format of tool calls is: how it is read from a stream, written, and enforced."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from blazr.core.errors import RequestError
from blazr.text.grammars.plain import inside_string
from blazr.text.grammars.tool_call import (
    CallPart,
    InputText,
    Maybe,
    OneOf,
    TextUntil,
    ToolGrammar,
)
from blazr.text.splitter import Scan, Sink, Splitter
from blazr.text.tool_calls.custom import INPUT, PARAMETERS, custom_name, input_grammar, is_custom


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that may be called.

    Args:
        name: Its name.
        parameters: JSON Schema of its arguments, an object's.
        is_custom: Whether it takes one text instead, which models write as its only argument.
        lark: The grammar that this text follows; None is any text.
    """

    name: str
    parameters: Mapping[str, object]
    is_custom: bool = False
    lark: str | None = None

    @property
    def properties(self) -> Mapping[str, object]:
        """The schema of each argument by name."""
        found = self.parameters.get("properties")
        return found if isinstance(found, Mapping) else {}

    @property
    def required(self) -> frozenset[str]:
        """The arguments that no call leaves out."""
        found = self.parameters.get("required")
        return frozenset(map(str, found)) if isinstance(found, list | tuple) else frozenset()


Tools = Mapping[str, ToolSpec]  # by name; empty where they are not known


class CallSyntax(ABC):
    """How calls are written, whatever stands around them."""

    @abstractmethod
    def scan(self, tools: Tools, marker: str, sink: Sink) -> Scan:
        """Read calls.

        Args:
            tools: What may be called.
            marker: Which of the format's markers or starters stood before.
            sink: Where to put what is found.
        """

    @abstractmethod
    def parts(self, tool: ToolSpec) -> Sequence[CallPart]:
        """What a call of a tool looks like to a grammar."""

    @abstractmethod
    def spell(self, name: str, arguments: Mapping[str, object]) -> str:
        """A call as a model writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way in which models write calls of tools.

    Args:
        name: What ``--tool-parser`` calls it.
        markers: Texts that begin calls, wherever they are.
        starters: Texts that begin calls where the reply begins.
        tokens: Special tokens calls are made of, besides the markers.
        signs: What a chat template for it holds, all of them; by default its first marker.
        families: Kinds of checkpoint that use it.
        calls: How calls are written between what follows.
        begin: Written before the first call.
        separator: Written between two calls; None where there is only one.
        end: Written after the last call.
        stop_names: Special tokens that end a reply with calls.
        text_markers: Those of the markers that stand before other text too.
    """

    name: str
    markers: tuple[str, ...] = ()
    starters: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    calls: CallSyntax
    begin: str = ""
    separator: str | None = None
    end: str = ""
    stop_names: tuple[str, ...] = ()
    text_markers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "signs", self.signs or self.markers[:1])

    @property
    def special_names(self) -> frozenset[str]:
        """Names of special tokens whose text the parser must see."""
        return frozenset((*self.markers, *self.starters, *self.tokens))

    def parser(self, tools: Sequence[ToolSpec] = ()) -> Splitter:
        """A parser for one reply.

        Args:
            tools: What may be called. They tell the types of arguments where the format does not,
                and calls from other text where no marker does.
        """
        known = {tool.name: tool for tool in tools}
        return Splitter(
            lambda marker, sink: self.calls.scan(known, marker, sink),
            markers=self.markers,
            starters=self.starters,
        )

    def grammar(self, tools: Sequence[ToolSpec], *, parallel: bool = True) -> ToolGrammar:
        """What a reply that must call a tool has to follow; a value for GRAMMARS' ``tool_call``.

        Args:
            tools: One of them is called, or more.
            parallel: Whether more than one may be, where the format knows how.
        """
        return ToolGrammar(
            calls=[self.calls.parts(tool) for tool in tools],
            begin=self.begin,
            separator=self.separator if parallel else None,
            end=self.end,
        )

    def input_grammar(self, tools: Sequence[ToolSpec]) -> ToolGrammar | None:
        """What a reply that may call tools has to follow, so that custom tools get their input.

        Text is free up to a marker. After it one of the tools is called. In formats without a
        marker only calls of custom tools can be distinguished from text: by their whole beginning.

        Returns:
            A value for GRAMMARS' ``tool_call``; None where nothing has to be followed.
        """
        if self.text_markers or all(tool.lark is None for tool in tools):
            return None
        heads = {tool.name: self.begin + str(self.calls.parts(tool)[0]) for tool in tools}
        triggers = [
            next(
                (each for each in self.markers if all(x.startswith(each) for x in heads.values())),
                "",
            )
        ]
        if not triggers[0]:
            triggers = [heads[tool.name] for tool in tools if tool.lark is not None]
        grammar = self.grammar(tools)
        # functions are held to no more than the types of their arguments, and to values that are
        # listed, where nothing but a custom tool is to follow a grammar
        calls = [[_loosened(part) for part in parts] for parts in grammar.calls]
        return replace(grammar, calls=calls, triggers=triggers)

    def write(self, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
        """Calls as the model writes them, for templates that do not.

        Args:
            calls: Name and arguments of each.
        """
        spelled = [self.calls.spell(name, arguments) for name, arguments in calls]
        separator = self.end + self.begin if self.separator is None else self.separator
        return self.begin + separator.join(spelled) + self.end


def tool_specs(tools: Sequence[Mapping[str, object]]) -> list[ToolSpec]:
    """Tools as the OpenAI API describes them; what has no name is left out.

    Raises:
        RequestError: The format of a custom tool's input is of no known kind, or what a tool takes
            is no object.
    """
    specs = []
    for tool in tools:
        if is_custom(tool):
            name = custom_name(tool)
            lark = input_grammar(tool)
            specs.append(ToolSpec(name, PARAMETERS, is_custom=True, lark=lark))
            continue
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            specs.append(ToolSpec(str(function["name"]), _parameters_of(function)))
    return specs


def _parameters_of(function: Mapping[str, object]) -> Mapping[str, object]:
    parameters = function.get("parameters")
    if parameters is None:
        return {}
    kind = parameters.get("type", "object") if isinstance(parameters, Mapping) else None
    if isinstance(parameters, Mapping) and "object" in (kind if isinstance(kind, list) else [kind]):
        return parameters
    raise RequestError(
        "a tool's parameters are no schema of an object.",
        param="tools",
        found=f"{parameters!r:.100}",
        expected='{"type": "object", "properties": {...}}',
    )


def as_json(value: object) -> str:
    """JSON as models write it."""
    return json.dumps(value, ensure_ascii=False)


def arguments_of(tool: ToolSpec) -> CallPart:
    """All arguments as JSON: an object, whatever the tool says."""
    if tool.lark is not None:
        before = "{" + as_json(INPUT) + ': "'
        return InputText(lark=tool.lark, before=before, end='"}', in_json=True)
    return {"type": "object", **tool.parameters}


def argument_of(tool: ToolSpec, argument: str) -> CallPart:
    """One argument as JSON."""
    if tool.lark is not None:
        return InputText(lark=tool.lark, before='"', end='"', in_json=True)
    return with_definitions(tool, argument)


def listed_arguments(
    tool: ToolSpec, separator: str, parts_of: Callable[[str, str], tuple[CallPart, ...]]
) -> Iterator[CallPart]:
    """The parts of all arguments, with separators between them; those that are required come first.

    Where the first is left out, the separator before the next stands all the same.

    Args:
        tool: Whose arguments.
        separator: Text between two of them.
        parts_of: The parts of one, from the text before it and its name.
    """
    before = ""
    for key in sorted(tool.properties, key=lambda key: key not in tool.required):
        argument = parts_of(before, key)
        yield from argument if key in tool.required else [Maybe(argument)]
        before = separator


def put_string(sink: Sink, text: str) -> None:
    """Put a text into the arguments of a call, as it stands between the quotes of a JSON string."""
    sink.arguments(inside_string(text))


def text_of(tool: ToolSpec, end: str) -> CallPart:
    """An argument that is a text, as it is, up to its end."""
    if tool.lark is not None:
        return InputText(lark=tool.lark, end=end, in_json=False)
    return TextUntil(end)


def _loosened(part: CallPart) -> CallPart:
    """A part of a call, with every schema in it reduced to the types it allows."""
    if isinstance(part, Maybe):
        return Maybe(tuple(map(_loosened, part.parts)))
    if isinstance(part, OneOf):
        return OneOf(tuple(tuple(map(_loosened, each)) for each in part.options))
    if isinstance(part, Mapping):
        return {"type": part["type"]} if "type" in part else {}
    return part


def with_definitions(tool: ToolSpec, argument: str) -> Mapping[str, object]:
    """The schema of one argument, with the definitions of the whole that it may refer to."""
    schema = tool.properties.get(argument)
    found = schema if isinstance(schema, Mapping) else {}
    shared = {
        key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters
    }
    return {**found, **shared}
