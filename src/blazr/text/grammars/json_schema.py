"""JSON, any object or what a schema describes.

Whatever is accepted is enforced: a keyword that cannot be is refused, never ignored. What JSON
Schema leaves open is bounded where a model could otherwise write for ever: between two tokens of
JSON stands nothing, a space, or a new line and its indent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from blazr.core.errors import GrammarError
from blazr.text.grammars.schema_rewriting import Schema, resolve, rewrite, schemas

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
    schema = rewrite(schema)
    _check_references(schema)
    try:
        return json.dumps({**schema, "x-guidance": OPTIONS}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GrammarError(
            "the schema holds something that JSON cannot say.", found=str(error)[:100]
        ) from None


def _check_references(root: Schema) -> None:
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

    for each in schemas(root):
        follow(each, ())


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
