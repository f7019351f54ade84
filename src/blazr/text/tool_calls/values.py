"""Values that a model writes without JSON's quotes, back to JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

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
    schema = tool.properties.get(argument) if tool else None
    return _types(schema) if isinstance(schema, Mapping) else frozenset()


def _types(schema: Mapping[str, object]) -> frozenset[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list | tuple):
        return frozenset(map(str, declared))
    if isinstance(schema.get("enum"), list):
        return frozenset(_OF_PYTHON.get(type(each), "") for each in _list(schema["enum"]))
    choices = [*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))]
    found = [_types(each) if isinstance(each, Mapping) else frozenset() for each in choices]
    return frozenset().union(*found) if found and all(found) else frozenset()


def to_json(text: str, types: frozenset[str]) -> str:
    """The JSON of a value that was written bare.

    Args:
        text: What was written.
        types: The types it may have; none where that is not known.
    """
    try:
        value = _parse(text)
    except (ValueError, RecursionError):
        word = PYTHON_WORDS.get(text.strip())
        return as_json(text) if word is None or not types or "string" in types else word
    kind = _OF_PYTHON[type(value)]
    fits = kind in types or (kind == "integer" and "number" in types)
    is_text = kind == "string" or (not fits and "string" in types)
    return as_json(text) if is_text else text.strip()


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
