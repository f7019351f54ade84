"""JSON, any object or what a schema describes.

Whatever is accepted is enforced: a keyword that cannot be is refused, never ignored. What JSON
Schema leaves open is bounded where a model could otherwise write for ever: between two tokens of
JSON stands nothing, a space, or a new line and its indent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import unquote

from blazr.core.errors import GrammarError

MAX_DEPTH = 64
# All of them are said, because a schema may bring options of its own (`x-guidance`).
OPTIONS = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n[ \t]{0,20}",
    "coerce_one_of": False,
    "lenient": False,
    "json_allow_general_unicode_escapes": False,
}


def json_object(value: object, special_ids: Mapping[str, int]) -> str:
    """Any JSON object; the value is ``True``.

    Raises:
        GrammarError: The value is something else.
    """
    if value is not True:
        raise GrammarError("json_object takes no schema.", expected="true")
    return json_schema({"type": "object"}, special_ids)


def json_schema(value: object, special_ids: Mapping[str, int]) -> str:  # noqa: ARG001
    """What a JSON Schema describes; the value is the schema, or its JSON.

    Raises:
        GrammarError: It is no schema, or nothing is valid under it.
    """
    return json.dumps({"grammars": [{"json_schema": json.loads(schema_source(value))}]})


def schema_source(value: object) -> str:
    """A schema as JSON with our options in it, for ``%json`` in a Lark grammar.

    Raises:
        GrammarError: It is no schema, or nothing is valid under it.
    """
    schema = value
    if isinstance(value, str):
        try:
            schema = json.loads(value)
        except (ValueError, RecursionError):
            raise GrammarError("the schema is not valid JSON.") from None
    level = [schema]
    depth = 0
    while level := [inner for each in level for inner in _children(each)]:
        depth += 1
        if depth == MAX_DEPTH:
            expected = f"at most {MAX_DEPTH} levels"
            raise GrammarError("the schema is nested too deep.", expected=expected)
    if schema is True:
        schema = {}
    if schema is False:
        raise GrammarError("nothing is valid under the schema.", found="false")
    if not isinstance(schema, Mapping):
        raise GrammarError("the schema is no schema.", expected="an object, or true")
    _check_references(schema)
    schema = _with_exact_formats(schema)
    assert isinstance(schema, Mapping)
    try:
        return json.dumps({**schema, "x-guidance": OPTIONS}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GrammarError(
            "the schema holds something that JSON cannot say.", found=str(error)[:100]
        ) from None


_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    f"{_LEAP_YEAR}-02-29)"
)
_ZONE = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_FRACTION = r"(?:\.[0-9]+)?"
# Seconds leap at midnight of UTC alone.
_TIME = (
    f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}{_ZONE}|"
    f"23:59:60{_FRACTION}(?:[Zz]|[+-]00:00))"
)
# Formats [RFC 3339] that llguidance takes more widely: a day in February too many, any leap second.
_EXACT = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}[Tt]{_TIME}"}
_VALUES = frozenset(
    {"const", "enum", "default", "examples"}
)  # keywords whose values are no schemas


def _with_exact_formats(schema: object) -> object:
    """A schema with patterns for the formats that need them."""
    if isinstance(schema, list | tuple):
        return [_with_exact_formats(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {
        key: value if key in _VALUES else _with_exact_formats(value)
        for key, value in schema.items()
    }
    form = found.get("format")
    if isinstance(form, str) and form in _EXACT:
        del found["format"]
        pattern = {"pattern": f"^{_EXACT[form]}$"}
        if "pattern" not in found:
            return found | pattern
        return found | {"allOf": [*_list(found.get("allOf")), pattern]}
    return found


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _check_references(root: Mapping[str, object]) -> None:
    """Refuse references that lead in a circle without any value on the way.

    JSON Schema forbids them, because they describe nothing; llguidance lets them pass.
    """
    known: dict[str, object] = {}

    def follow(schema: object, path: tuple[str, ...]) -> None:
        if not isinstance(schema, Mapping):
            return
        for each in _list(schema.get("allOf")):
            follow(each, path)
        pointer = schema.get("$ref")
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return
        if pointer in path:
            raise GrammarError("a $ref of the schema leads back to itself.", found=pointer[:100])
        if len(path) == MAX_DEPTH:
            expected = f"at most {MAX_DEPTH}"
            raise GrammarError("too many $ref of the schema in a row.", expected=expected)
        if pointer not in known:
            known[pointer] = resolve(root, pointer)
            follow(known[pointer], (*path, pointer))

    level: list[object] = [root]
    while level:
        for each in level:
            follow(each, ())
        level = [inner for each in level for inner in _children(each)]


def resolve(root: Mapping[str, object], pointer: str) -> object:
    """What a JSON pointer [RFC 6901] leads to; None where that is nothing."""
    if pointer != "#" and not pointer.startswith("#/"):
        return None  # an anchor, or somewhere else
    value: object = root
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return None
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
