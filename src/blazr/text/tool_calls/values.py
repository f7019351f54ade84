"""Values that a model writes without JSON's quotes, back to JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from blazr.text.grammars.schema_rewriting import resolve
from blazr.text.tool_calls.format import ToolSpec, as_json

_OF_PYTHON: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
# Of a schema, which names no type or whose values are to be written out.
_MOST_ALTERNATIVES = 64
_MOST_VALUES = 1000
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_MARKS = {"(": "[", ")": "]", ",": ", ", ":": ": "}
_TOKEN = re.compile(
    r"""\s+|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<mark>[][{}(),:])"""
    r"""|(?P<word>[^][{}(),:\s"']+)""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SINGLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}


def types_of(tool: ToolSpec | None, argument: str) -> frozenset[str]:
    """The JSON types an argument may have; none where that is not known."""
    found = [_types(each) for each in _alternatives(tool, argument)] if tool else []
    return frozenset().union(*found) if all(found) else frozenset()


def values_of(tool: ToolSpec, argument: str) -> list[object]:
    """The values of an argument, where its schema lists them; none where there may be others."""
    found = [_values(each) for each in _alternatives(tool, argument)]
    is_bounded = all(found) and sum(map(len, found)) <= _MOST_VALUES
    return [value for each in found for value in each] if is_bounded else []


def _alternatives(tool: ToolSpec, argument: str) -> list[Mapping[str, object]]:
    """The schemas of which an argument follows one; an empty one where nothing is known."""
    waiting = [tool.properties.get(argument)]
    found: list[Mapping[str, object]] = []
    seen: set[str] = set()
    for each in waiting:
        if len(waiting) > _MOST_ALTERNATIVES:
            return [{}]
        schema = each if isinstance(each, Mapping) else {}
        pointer = schema.get("$ref")
        if isinstance(pointer, str):
            waiting += [] if pointer in seen else [resolve(tool.parameters, pointer)]
            seen.add(pointer)
            continue
        whole = _list(schema.get("allOf"))
        choices = [*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))]
        choices += whole if len(whole) == 1 else []
        if choices and schema.keys().isdisjoint({"type", "enum", "const"}):
            waiting += choices
        else:
            found.append(schema)
    return found


def _types(schema: Mapping[str, object]) -> frozenset[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list | tuple):
        return frozenset(map(str, declared))
    return frozenset(_OF_PYTHON.get(type(each), "") for each in _values(schema))


def _values(schema: Mapping[str, object]) -> list[object]:
    if schema.get("type") == "null":
        return [None]
    listed = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    return listed if len(listed) <= _MOST_VALUES else []


def to_json(text: str, types: frozenset[str], *, is_json: bool = False) -> str:
    """The JSON of a value that was written bare.

    Args:
        text: What was written.
        types: The types it may have; none where that is not known.
        is_json: Whether the format says that it is JSON, so that text in quotes is a string.
    """
    found = text.strip()
    try:
        value = _parse(found)
    except (ValueError, RecursionError):
        # Python's spelling is read where the text cannot be meant as it is
        translated = python_to_json(found) if types and "string" not in types else None
        if translated is None:
            return as_json(text)
        found = translated
        value = _parse(found)
    kind = _OF_PYTHON[type(value)]
    fits = kind in types or (kind == "integer" and "number" in types)
    is_text = (kind == "string" and not is_json) or (not fits and "string" in types)
    return as_json(text) if is_text else found


def python_to_json(text: str) -> str | None:
    """The JSON of a Python literal; None where it is none.

    JSON itself is understood too. Nothing is evaluated.
    """
    parts: list[str] = []
    position = 0
    after_value = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        position = match.end()
        if not match.lastgroup:
            continue
        if match["mark"] in {"]", "}", ")"} and parts and parts[-1] == ", ":
            parts.pop()
        if after_value and not match["mark"]:
            return None
        after_value = not match["mark"]
        if match["text"]:
            parts.append(as_json(unescape(match["text"][1:-1])))
        elif match["mark"]:
            parts.append(_MARKS.get(match["mark"], match["mark"]))
        else:
            parts.append(PYTHON_WORDS.get(match["word"], match["word"]))
    found = "".join(parts)
    try:
        _parse(found)
    except (ValueError, RecursionError):
        return None
    return found


def _parse(text: str) -> object:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def unescape(text: str) -> str:
    """What stands between the quotes of a Python string, as text."""

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        if code:
            return chr(int(code, 16))
        return _SINGLE.get(match[3], match[3])

    return (
        _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
