"""What a reply must follow: a response format, or a grammar in whichever field a body has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from blazr.core.errors import RequestError
from blazr.server.schema import of_type, schema_hint

TEXT = {"type": "text"}  # the response format that holds a reply to nothing
_JSON_SCHEMA = {"anyOf": [{"type": ["object", "string"]}, {"const": True}]}
_WITH_SCHEMA = {"properties": {"schema": _JSON_SCHEMA}, "required": ["schema"]}
_OBJECT = {"type": {"const": "json_object"}, "schema": _JSON_SCHEMA, "value": _JSON_SCHEMA}
_NESTED = {"type": {"const": "json_schema"}, "json_schema": {"type": "object", **_WITH_SCHEMA}}
_FLAT = {"type": {"const": "json_schema"}, "schema": _JSON_SCHEMA, "json_schema": False}
_TGI_JSON = {"type": {"const": "json"}, "value": _JSON_SCHEMA}
_TGI_SCHEMA = {"type": {"const": "json_schema"}, "value": {"type": "object", **_WITH_SCHEMA}}
_TGI_REGEX = {"type": {"const": "regex"}, "value": {"type": "string"}}
ResponseFormat = Annotated[
    dict[str, Any],
    schema_hint(
        anyOf=[
            of_type("text"),
            {"properties": _OBJECT, "required": ["type"]},
            {"properties": _NESTED, "required": ["type", "json_schema"]},
            {"properties": _FLAT, "required": ["type", "schema"]},
            {"properties": _TGI_JSON, "required": ["type", "value"]},
            {"properties": _TGI_SCHEMA, "required": ["type", "value"]},
            {"properties": _TGI_REGEX, "required": ["type", "value"]},
        ]
    ),
]
# What others call kinds of grammar that have other names here.
_GRAMMARS = {"json": "json_schema", "ebnf": "grammar"}
# Where llama.cpp, SGLang and older vLLM have a grammar.
_GRAMMAR_FIELDS = (
    "json_schema",
    "grammar",
    "regex",
    "ebnf",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def grammar_fields(body: object) -> Iterator[str]:
    """The fields by which a body, or a part of it, says what a reply must follow."""
    for name in (*_GRAMMAR_FIELDS, "structured_outputs"):
        if _asks(getattr(body, name, None)):
            yield name
    if (getattr(body, "response_format", None) or TEXT) != TEXT:
        yield "response_format"
    if getattr(getattr(body, "text", None), "format", None):
        yield "text"
    if getattr(body, "tools", None):  # a custom tool has a grammar
        yield "tools"


def grammar_of(
    form: Mapping[str, object] | None, *, param: str = "response_format"
) -> dict[str, object] | None:
    """What the reply must follow, from a response format as OpenAI spells it; None is any text.

    Raises:
        RequestError: There is no such format.
    """
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":  # llama.cpp's server takes a schema with it, and TGI a "value"
        name = next((name for name in ("schema", "value") if name in form), None)
        return {"json_object": True} if name is None else _of_schema(form[name], param)
    value = form.get("value")  # what TGI's kinds have, of which huggingface_hub's docs tell
    inner = form.get("json_schema", form if value is None else value)  # the newer API has it flat
    if kind == "json_schema" and isinstance(inner, Mapping) and "schema" in inner:
        return _of_schema(inner["schema"], param)
    if kind == "json" and value is not None:
        return _of_schema(value, param)
    if kind == "regex" and isinstance(value, str):
        return {"regex": value}
    raise RequestError(
        f"{param} is of no known kind, or lacks its schema.",
        param=param,
        found=repr(kind)[:50],
        expected="'text', 'json_object' or 'json_schema'; 'json' or 'regex' with a value",
    )


def _of_schema(schema: object, param: str) -> dict[str, object]:
    if isinstance(schema, Mapping | str) or schema is True:
        return {"json_schema": schema}
    raise RequestError("the schema is no schema.", param=param, expected="an object, or true")


def _asks(value: object) -> bool:
    """Whether a field in which a grammar may be has one; there are empty schemas and choices."""
    return value is not None and value is not False and value != ""


def one_grammar(body: msgspec.Struct) -> dict[str, object] | None:
    """What the reply must follow, in whichever field a body says it; None is any text.

    Raises:
        RequestError: There are two that differ, or no such format.
    """
    outputs: Mapping[str, object] = getattr(body, "structured_outputs", None) or {}
    given = {f"structured_outputs.{name}": value for name, value in outputs.items()}
    given |= {name: getattr(body, name, None) for name in _GRAMMAR_FIELDS}
    found: dict[str, dict[str, object]] = {}
    for field, value in given.items():
        if not _asks(value):
            continue
        name = field.rpartition(".")[2].removeprefix("guided_")
        name = _GRAMMARS.get(name, name)
        if name == "grammar":
            name = "gbnf" if isinstance(value, str) and "::=" in value else "lark"
        found[field] = {name: value}
    asked = grammar_of(getattr(body, "response_format", None))
    if asked is not None:
        found["response_format"] = asked
    if not found:
        return None
    # Clients that know older servers, too, say the same under the older name.
    first, *others = found.values()
    if any(each != first for each in others):
        param = next(iter(found)).partition(".")[0]
        raise RequestError("give one grammar.", param=param, found=", ".join(found)[:100])
    return first
