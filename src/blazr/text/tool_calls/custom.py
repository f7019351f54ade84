"""Custom tools: they take one text, perhaps under a grammar, instead of arguments.

Models are trained on functions, so each is shown to them as a function of one text.
"""

from __future__ import annotations

from collections.abc import Mapping

from blazr.core.errors import RequestError
from blazr.text.grammars.plain import lark_rules, regex
from blazr.text.messages import function_tool

INPUT = "input"  # the name of the only argument
PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
}
_KINDS = ("text", "grammar")  # not a set: a client may send what cannot be looked for in one
_SYNTAXES = {"lark": (lark_rules, "Lark grammar"), "regex": (regex, "regular expression")}


def is_custom(tool: Mapping[str, object]) -> bool:
    """Whether a tool, as the OpenAI API describes it, is a custom one."""
    return tool.get("type") == "custom"


def custom_name(tool: Mapping[str, object]) -> str:
    """Its name.

    Raises:
        RequestError: It has none.
    """
    name = _custom(tool).get("name")
    if not isinstance(name, str) or not name:
        raise _wrong("a custom tool has no name.", name)
    return name


def input_grammar(tool: Mapping[str, object]) -> str | None:
    """The grammar that its input follows, in Lark; None is any text.

    Raises:
        RequestError: Its format is of no known kind.
        GrammarError: The grammar is none.
    """
    found = _definition(tool)
    if found is None:
        return None
    syntax, definition = found
    return _SYNTAXES[syntax][0](definition, {})


def as_function(tool: Mapping[str, object]) -> Mapping[str, object]:
    """A tool as models are shown it: a custom one as a function of one text.

    Raises:
        RequestError: The format of its input is of no known kind.
    """
    if not is_custom(tool):
        return tool
    said = _custom(tool).get("description")
    texts = [said] if isinstance(said, str) and said else []
    found = _definition(tool)
    if found is not None:
        texts.append(f"The input follows this {_SYNTAXES[found[0]][1]}:\n{found[1]}")
    return function_tool(custom_name(tool), "\n\n".join(texts), PARAMETERS)


def as_function_call(call: Mapping[str, object]) -> Mapping[str, object]:
    """A call in a message as the call of a function."""
    if not is_custom(call):
        return call
    custom = _custom(call)
    function = {"name": custom.get("name"), "arguments": {INPUT: custom.get("input") or ""}}
    others = {key: value for key, value in call.items() if key != "custom"}
    return {**others, "type": "function", "function": function}


def _custom(tool: Mapping[str, object]) -> Mapping[str, object]:
    """What describes it: nested, as in chats, or flat."""
    nested = tool.get("custom", tool)
    return nested if isinstance(nested, Mapping) else {}


def _definition(tool: Mapping[str, object]) -> tuple[str, str] | None:
    form = _custom(tool).get("format")
    if form is None:
        return None
    if not isinstance(form, Mapping) or form.get("type") not in _KINDS:
        raise _wrong("the format of a custom tool is of no known kind.", form)
    if form["type"] == "text":
        return None
    grammar = form.get("grammar", form)  # nested, as in chats, or flat
    syntax, definition = (
        (grammar.get("syntax"), grammar.get("definition"))
        if isinstance(grammar, Mapping)
        else (None, None)
    )
    is_known = isinstance(syntax, str) and syntax in _SYNTAXES
    if not is_known or not isinstance(definition, str) or not definition.strip():
        raise _wrong("the grammar of a custom tool is of no known kind.", grammar)
    return str(syntax), definition


def _wrong(message: str, found: object) -> RequestError:
    return RequestError(
        message,
        param="tools",
        found=repr(found)[:100],
        expected='{"type": "grammar", "syntax": "lark" or "regex", "definition": "..."}',
    )
